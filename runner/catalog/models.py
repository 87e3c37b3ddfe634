"""Models: facts from the catalog, or from a `config.json`."""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

from runner.catalog.tables import Facts, table
from runner.tools.files import read_record
from runner.tools.problem import Stop, listed, nearest

CONFIG = "config.json"
ModelConfig = Mapping[str, Any]  # the contents of CONFIG


@dataclass(frozen=True)
class Model:
    """The facts about a model that training needs.

    id: hub name or folder. Sizes are counts. tied: whether embedding and LM head are one tensor.
    layers_path, embedding, lm_head: names inside the model, as `named_parameters()` gives them.
    layer_class: the class of one transformer layer, for FSDP. linear: the linear layers inside one,
    for LoRA. parameters: all parameters, tied ones once; None if they were not counted.
    chat_template: the special tokens it was trained to see, a section of templates.toml; empty if
    unknown. fp16: whether its activations stay within fp16. own_template: whether its tokenizer has
    a chat template, as far as is known. custom_code: whether it runs code that comes with the
    model; remote_code: whether that code is fetched from the hub. published: the hub's own count of
    parameters, which may count tied ones twice. licence: as the hub abbreviates it; gated: whether
    it must be accepted there before a download. revision: the commit in a lock file; empty without
    one. usual_glu: whether its feed-forward part has the activation of its family and no biases,
    which is what fused kernels compute; False if unknown. config: what else its class needs, as
    JSON. beside: parameters in its files that are not trained. stored: the quantization method of
    its files; empty for plain numbers. text_type: of a model that also sees, the type of its half
    for text, whose sizes these are; towers: as JSON, the settings of its other parts, by the name
    of each in its config."""

    id: str
    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    tied: bool
    layers_path: str = "model.layers"
    embedding: str = "model.embed_tokens.weight"
    lm_head: str = "lm_head.weight"
    layer_class: str = ""
    linear: tuple[str, ...] = ()
    chat_template: str = ""
    eos_token: str = ""
    pad_token: str = ""
    bos_token: str = ""
    fp16: bool = True
    own_template: bool = True
    custom_code: bool = False
    remote_code: bool = False
    parameters: int | None = None
    published: int | None = None
    licence: str = ""
    gated: bool = False
    revision: str = ""
    usual_glu: bool = False
    config: str = "{}"
    beside: int = 0
    stored: str = ""
    text_type: str = ""
    towers: str = "{}"
    source: str = ""

    @property
    def own(self) -> Facts:
        """The settings of its config that only its architecture has."""
        return dict(json.loads(self.config))

    @property
    def sizes(self) -> Facts:
        """What its class needs to build it, by the names of its config."""
        sizes = {name: getattr(self, name) for name in (*_SIZES, *_OPTIONAL)}
        return sizes | {"tie_word_embeddings": self.tied} | self.own

    @property
    def record(self) -> Facts:
        """All of it as JSON has it; for a model without parts that see, without their fields, so
        that its plans and prepared data stay what they were."""
        fields = asdict(self)
        if not self.sees:
            del fields["text_type"], fields["towers"]
        return fields

    @property
    def sees(self) -> bool:
        """Whether it also reads images, or sound: only its half for text is trained."""
        return bool(self.text_type)

    @property
    def tower_settings(self) -> dict[str, Facts]:
        """The settings of each part that sees or hears, by its name in the config."""
        return dict(json.loads(self.towers))

    def class_settings(
        self, sizes: Mapping[str, object], towers: Mapping[str, Facts] | None = None
    ) -> Facts:
        """What its class is built from. sizes: those of a language model, by the names of its
        config, such as `sizes` above. towers: the settings of the parts that see, if they are not
        its own."""
        if not self.sees:
            return dict(sizes)
        return {
            "text_config": {**sizes, "model_type": self.text_type},
            "tie_word_embeddings": sizes["tie_word_embeddings"],
            **(self.tower_settings if towers is None else towers),
        }

    @property
    def root(self) -> str:
        """The path of the module around the layers. All outside of it, but for the LM head, are
        parts that see."""
        return self.layers_path.rpartition(".")[0]

    def is_of_tower(self, name: str) -> bool:
        """Whether a parameter is in a part that sees or hears, which text does not train."""
        in_text = name.startswith(f"{self.root}.") or name == self.lm_head
        return self.sees and not in_text

    @property
    def family(self) -> Facts:
        """The facts about its architecture; empty if it is unknown."""
        return table("families").get(self.model_type, {})

    @property
    def has_experts(self) -> bool:
        """Whether it has experts: some models of an architecture with experts have none."""
        return "experts" in self.family and any(
            self.own.get(name) for name in self.own if name.endswith("_experts")
        )

    def mixes_rows(self, attention: str) -> bool:
        """Whether a row would see the row before it, if both were joined. attention: the one that
        the model has."""
        return self.family.get("mixes_rows") in (True, attention)

    @property
    def free(self) -> bool:
        """Whether everybody may use and share models that are trained from it."""
        return self.licence in ("apache-2.0", "mit")

    @property
    def fused_lora(self) -> bool:
        """Whether Axolotl's fused LoRA kernels support its layers: they look for separate query,
        key and value, and stop a run if these are one layer (Phi), or if a norm covers the whole of
        one (OLMo). Untried with experts."""
        joint = self.family.get("joint_norms") or "layer" in self.family
        return {"q_proj", "k_proj", "v_proj"} <= set(self.linear) and not joint

    def linear_path(self, layer: int, name: str) -> str:
        """The path of a linear layer inside a transformer layer."""
        if name in ("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj"):
            usual = "self_attn"
        else:
            usual = "mlp"
        home = self.family.get("homes", {}).get(name, usual)
        return f"{self.layers_path}.{layer}.{home}.{name}"

    def fitting(self, name_or_pattern: str) -> dict[str, int]:
        """The linear layers that a name or pattern matches, by peft's rule for lists, each counted.
        Raises re.error."""
        pattern = re.compile(rf"(?:.*\.)?(?:{name_or_pattern})")
        counts = Counter[str]()
        for name in self.linear:
            for layer in range(self.num_hidden_layers):
                if pattern.fullmatch(self.linear_path(layer, name)):
                    counts[name] += 1
        return dict(counts)

    def matched(self, pattern: str) -> dict[str, bool]:
        """The modules that a pattern matches by peft's rule for a text, and whether each is linear.
        Raises re.error."""
        matches = {}
        for layer in range(self.num_hidden_layers):
            for path, linear in self._modules(layer).items():
                if re.fullmatch(pattern, path):
                    matches[path] = linear
        return matches

    def named(self, pattern: str) -> list[str]:
        """The names, each once, of the modules that a pattern matches, as above."""
        names = (path.rpartition(".")[2] for path in self.matched(pattern))
        return list(dict.fromkeys(names))

    def seeing_modules(self, pattern: str) -> Iterator[str]:
        """The modules of its parts that see or hear that a pattern matches, as above."""
        for part, settings in self.tower_settings.items():
            tower = self.family["towers"][part]
            paths = [*tower["once"]]
            for index in range(settings[tower["count"]]):
                paths += [f"{tower['layers']}.{index}.{name}" for name in tower["each"]]
            for path in paths:
                module = path.rpartition(".")[0]
                for name in (module, module.rpartition(".")[0]):
                    if re.fullmatch(pattern, name):
                        yield name

    @staticmethod
    def pattern_of(names: Iterable[str]) -> str:
        """A pattern that matches modules of these names in every transformer layer."""
        return rf".*\.(?:{'|'.join(map(re.escape, names))})"

    def kinds(self, layer: int) -> Iterator[str]:
        """What a transformer layer is, as the keys of `layer` in families.toml."""
        yield "every"
        types = self.own.get("layer_types")
        if types:
            layer_type = types[layer]
            # Granite's older names, as all others call them.
            names = {"mamba": "linear_attention", "attention": "full_attention"}
            yield names.get(layer_type, layer_type)
        sharing = self.own.get(self.family.get("shared", ""), 0)
        if layer >= self.num_hidden_layers - sharing:
            yield "shared"
        elif types:
            yield "own"
            yield f"{types[layer]}_own"
        dense_layers = self.own.get(self.family.get("dense", ""), 0)
        interval = self.own.get(self.family.get("interleaved", ""), 1)
        if layer < dense_layers or (layer + 1) % interval:
            yield "dense"
        else:
            yield "sparse"

    def _modules(self, layer: int) -> dict[str, bool]:
        """The known modules of a transformer layer, by their paths, and whether each is a linear
        layer."""
        layer_path = f"{self.layers_path}.{layer}"
        weight_names = self.family.get("layer", {})
        weights = []
        for layer_kind in self.kinds(layer):
            for name in weight_names.get(layer_kind, ()):
                weights.append(f"{layer_path}.{name}")
        paths = [name.removesuffix(".weight") for name in weights if name.endswith(".weight")]
        paths = paths or [self.linear_path(layer, name) for name in self.linear]
        if self.family.get("head_norms"):
            paths += [f"{layer_path}.self_attn.{name}" for name in ("q_norm", "k_norm")]
        homes = {path.rpartition(".")[0]: False for path in paths}
        return (
            {layer_path: False}
            | homes
            | {path: path.rpartition(".")[2] in self.linear for path in paths}
        )


class TeachingSetting(NamedTuple):
    """A setting of a recipe, by its name there, with its comment."""

    setting: str
    value: Any
    why: str


@dataclass(frozen=True)
class Teaching:
    """What an adapter needs to learn the facts of few questions with answers: `teaching` of
    packaged-models.toml, which explains each field."""

    settings: tuple[TeachingSetting, ...]
    passes: tuple[tuple[int, int], ...]
    most_parameters: int

    @classmethod
    def of_table(cls, table: Mapping[str, Any]) -> Self:
        settings = [TeachingSetting(name, **row) for name, row in table["settings"].items()]
        passes = [(row["fewer_rows"], row["epochs"]) for row in table["passes"]]
        return cls(tuple(settings), tuple(passes), table["most_parameters"])

    def epochs(self, training_rows: int) -> int | None:
        """The passes through this many rows; None if these settings are for fewer."""
        for fewer_rows, epochs in self.passes:
            if training_rows < fewer_rows:
                return epochs
        return None


@dataclass(frozen=True)
class PackagedModel:
    """A model that a Python package contains: a row of packaged-models.toml, which explains each
    field. name: as a recipe names it."""

    name: str
    like: str
    package: str
    version: str
    module: str
    file: str
    sha256: str
    quantization: str
    source: str
    teaching: Teaching

    @property
    def facts(self) -> Model:
        """Those of the model that it was quantised from, under its own name."""
        return replace(
            of_facts({"usual_glu": True, **_facts(self.like), "id": self.name}), source=self.source
        )

    @property
    def title(self) -> str:
        return f"{self.like}, dequantised from {self.quantization}"


def packaged_models() -> tuple[PackagedModel, ...]:
    return tuple(
        PackagedModel(name=name, **{**row, "teaching": Teaching.of_table(row["teaching"])})
        for name, row in table("packaged-models").items()
    )


def packaged_model(name: str) -> PackagedModel | None:
    for packaged in packaged_models():
        if packaged.name == name:
            return packaged
    return None


def teaching(name: str, on_processor: bool) -> Teaching | None:
    """How a small model learns facts: a packaged one as measured, and on a processor one of a
    similar size like it. None for others."""
    packaged = packaged_model(name)
    if packaged:
        return packaged.teaching
    facts = model(name)
    if facts is None or facts.parameters is None or not on_processor:
        return None
    for similar in packaged_models():
        if facts.parameters <= similar.teaching.most_parameters:
            return similar.teaching
    return None


@cache
def _facts(name: str) -> Facts:
    """A model's facts, with those that it shares with another; empty if the catalog does not have
    it."""
    facts = dict(table("models").get(name, {}))
    facts.pop("released", None)
    like = facts.pop("like", "")
    if like:
        return {**_facts(like), **facts}
    return facts


def model_ids() -> list[str]:
    return list(table("models"))


def original(name: str) -> str:
    """The model of the catalog that one takes its sizes from, mostly itself."""
    like = table("models").get(name, {}).get("like", "")
    if like:
        return original(like)
    return name


def release_year(name: str) -> int:
    """The year in which a model of the catalog was released; 0 for others."""
    year = table("models").get(name, {}).get("released", 0)
    if not year and original(name) != name:
        return release_year(original(name))
    return int(year)


@cache
def model_types() -> frozenset[str]:
    """The architectures that the catalog knows."""
    return frozenset(table("families"))


def near_model(name: str) -> str | None:
    """The catalog's model most like `name`, with or without its owner, preferably one that begins
    with it, or None."""
    without_owner = {model_id.partition("/")[2]: model_id for model_id in model_ids()}
    low = name.lower()
    begins = (
        model_id
        for short, model_id in without_owner.items()
        if any(candidate.lower().startswith(low) for candidate in (short, model_id))
    )
    return (
        next(begins, None)
        or nearest(name, model_ids())
        or without_owner.get(nearest(name, without_owner) or "")
    )


def unsuitable(name: str, folder: Path | None = None) -> tuple[str, str] | None:
    """The problem with a model that the pinned stack cannot train, and the hint, by its name or its
    `config.json`; None without a known reason."""
    config: ModelConfig = {}
    if not _known(name):
        config = config_of(name, folder)
    return unsuitable_type(config, name)


def unsuitable_type(config: ModelConfig, name: str) -> tuple[str, str] | None:
    """The same by the content of a `config.json`, if the name is not in the table."""
    rows = table("unsuitable")
    # Of a model that also sees, the type of its half for text counts too.
    types = (config.get("model_type"), (config.get("text_config") or {}).get("model_type"))
    facts = rows.get(name)
    if not facts:
        method = (config.get("quantization_config") or {}).get("quant_method")
        of_type = (
            row
            for row in rows.values()
            if row["model_type"] in types and row.get("stored", method) == method
        )
        facts = next(of_type, None)
    if facts is None:
        return None
    remedy = f"Use {listed(facts['instead'], 'or')} instead"
    if len(facts["instead"]) > 1:
        remedy += "; the first is the nearest in size and licence"
    return (
        f"recipe-runner cannot train `{name}`.",
        f"{facts['why']}. {remedy}.",
    )


@cache
def _known(name: str) -> Model | None:
    """The catalog's model of that name: one object, so that caches by model find it at once."""
    packaged = packaged_model(name)
    if packaged:
        return packaged.facts
    facts = _facts(name)
    if facts:
        return of_facts({"usual_glu": True, **facts, "id": name})
    return None


class UnknownArchitecture(Exception):
    """No formulas exist for models of this type."""


def of_facts(facts: Mapping[str, Any]) -> Model:
    """A Model from its fields as JSON or TOML has them."""
    family = table("families").get(facts["model_type"], {})
    texts = {}
    for name in ("config", "towers"):
        value = facts.get(name, "{}")
        if not isinstance(value, str):
            value = json.dumps(value, sort_keys=True)
        texts[name] = value
    inherited = {key: family[key] for key in INHERITED if key in family}
    if isinstance(facts.get("towers"), Mapping):
        texts["towers"] = json.dumps(_towers(facts["towers"], family), sort_keys=True)
    return Model(**{**inherited, **facts, "linear": tuple(facts["linear"]), **texts})


def model(name: str, folder: Path | None = None) -> Model | None:
    """The catalog's model of that name, else that of `config.json` in the folder `name` (below
    `folder`), or None."""
    catalogued = _known(name)
    if catalogued:
        return catalogued
    config = config_of(name, folder)
    if config:
        with suppress(*NO_GEOMETRY):
            return from_config(name, config)
    return None


def config_of(name: str, folder: Path | None) -> Facts:
    """The `config.json` in the folder `name`; empty if there is none that can be read."""
    return read_record((folder or Path()) / name / CONFIG)


# The errors of `from_config` if a config lacks the size of its model.
NO_GEOMETRY = (KeyError, TypeError, ValueError, ZeroDivisionError)
# Facts that a `config.json` lacks: those that models of one type share, and those of one
# vocabulary.
INHERITED = ("layers_path", "embedding", "lm_head", "layer_class", "fp16")
SPOKEN = ("chat_template", "eos_token", "pad_token", "bos_token")
# The setting in a tiny twin's `config.json` with these facts about its original, which need not be
# in the catalog; older twins contain only its name.
TWIN_OF = "twin_of"


def cached_model(name: str, revision: str) -> Model | None:
    """The model of that name and revision (branch, tag or commit) from the hub's cache on this
    machine, or None."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache_folder = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    cached = cache_folder / f"models--{name.replace('/', '--')}"
    ref = cached / "refs" / revision
    try:
        if ref.is_file():
            commit = ref.read_text(encoding="utf-8").strip()
        else:
            commit = revision
        config = read_record(cached / "snapshots" / commit / CONFIG)
        # Not a folder as the source: the model, with any code of its own, is on the hub.
        return replace(
            from_config(name, config), source=f"config.json of {name} in the hub's cache"
        )
    except (*NO_GEOMETRY, OSError):
        return None


def from_config(name: str, config: ModelConfig) -> Model:
    """A Model from a Hugging Face `config.json`. Missing values come from a twin's original, else
    from the catalog's first model of that type, and special tokens only if the vocabulary has the
    same size. Other names inside the model default to those of the LLaMA family. Raises KeyError if
    the config lacks a size, or another of NO_GEOMETRY if a size is not a number."""
    if not isinstance(config["model_type"], str):
        raise TypeError("model_type is not text")
    alike = []
    for facts in map(_facts, model_ids()):
        if facts["model_type"] == config["model_type"]:
            alike.append(facts)
    family: Facts = table("families").get(config["model_type"], {})
    towers = _towers(config, family)
    text_type = ""
    if towers:
        config = _half_for_text(config, family)
        text_type = config["text_type"]
    if not alike or "layer" in family:
        config = _by_usual_names(config)
    origin = config.get(TWIN_OF, "")
    if isinstance(origin, str):
        twin = _facts(origin)
    else:
        twin = origin
    if twin:
        kin = same_words = twin
    else:
        kin = alike[0] if alike else family
        of_same_words = [facts for facts in alike if facts["vocab_size"] == config["vocab_size"]]
        same_words = of_same_words[0] if of_same_words else {}
    heads = config["num_attention_heads"]
    auto_map = config.get("auto_map") or {}
    code = [str(place) for place in auto_map.values()]
    # The settings that the shapes of an architecture need, under the names that its class has for
    # them.
    needed = {}
    for entry in family.get("config", ()):
        setting, _, usual_name = entry.partition("=")
        value = config.get(setting)
        if value is None:
            value = config.get(usual_name)
        if value is not None:
            needed[setting] = value
    optional = [size for size in _OPTIONAL if config.get(size) is not None]
    for size in (*_SIZES, *optional):
        if not isinstance(config[size], int) or config[size] < 1:
            raise ValueError(f"{size} is not a count")
    head = config.get("head_dim") or config["hidden_size"] // heads
    groups = config.get("num_key_value_heads") or heads
    if alike and (head % 2 or heads % groups):
        raise ValueError(
            "rotary positions turn numbers in pairs, and heads share keys and values in equal groups"
        )
    quantization = config.get("quantization_config") or {}
    return Model(
        id=name,
        model_type=config["model_type"],
        **{size: config[size] for size in (*_SIZES, "max_position_embeddings")},
        num_key_value_heads=groups,
        head_dim=head,
        tied=config.get("tie_word_embeddings", False),
        linear=tuple(kin.get("linear", _LLAMAS_LINEAR)),
        # If transformers has the class, code beside the weights (Phi) is not used.
        custom_code=bool(code) and not kin,
        # `owner/name--module.Class` means that the code is in another repository than the weights.
        remote_code=any("--" in place for place in code),
        usual_glu=_usual_glu(config),
        config=json.dumps(needed, sort_keys=True),
        stored=str(quantization.get("quant_method", "")),
        text_type=text_type,
        towers=json.dumps(towers, sort_keys=True),
        source=f"{name}/config.json",
        **{key: value for key, value in {**family, **kin}.items() if key in INHERITED},
        **{key: same_words[key] for key in SPOKEN if key in same_words},
    )


def _towers(config: ModelConfig, family: Facts) -> dict[str, Facts]:
    """The settings of the parts of a model that see or hear, by the name of each in its config:
    those that their shapes need. Raises KeyError for a model that should have such a part."""
    towers = {}
    for name, tower in family.get("towers", {}).items():
        given = config.get(name)
        if given is None:
            continue
        settings = {}
        for setting, usual in tower["settings"].items():
            settings[setting] = given.get(setting, usual)
        towers[name] = settings
    if family.get("towers") and not towers:
        raise KeyError(next(iter(family["towers"])))
    return towers


def _half_for_text(config: ModelConfig, family: Facts) -> Facts:
    """The config of a model that also sees, with the settings of its half for text in the place of
    its own."""
    text = config["text_config"]
    # The settings of single layers, as transformers 5.16.1 saves Gemma 4's full attention.
    wide: Facts = next(iter((text.get("per_layer_config") or {}).values()), {})
    return {
        "global_head_dim": wide.get("head_dim"),
        "num_global_key_value_heads": wide.get("num_key_value_heads"),
        "tie_word_embeddings": family.get("tied", False),
        **text,
        **{key: value for key, value in config.items() if not key.endswith("_config")},
        "text_type": text["model_type"],
    }


_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
)
_OPTIONAL = ("num_key_value_heads", "head_dim", "max_position_embeddings")
_LLAMAS_LINEAR = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
)
UNBOUNDED = 2**31 - 1  # models without positions accept rows of any length


def _by_usual_names(config: ModelConfig) -> Facts:
    """The config of an architecture that the catalog does not contain, with its sizes under the
    usual names. Sizes that it may lack (heads of a state-space model, positions of ALiBi) get
    neutral values, because only a trace counts."""
    other_names = table("synonyms")["sizes"]
    sizes: Facts = {
        "intermediate_size": 0,
        "num_attention_heads": 1,
        "max_position_embeddings": UNBOUNDED,
    }
    kinds = config.get("layer_types") or config.get("layers_block_type")
    if kinds:
        sizes["num_hidden_layers"] = len(kinds)
    for name, other_names_of_size in other_names.items():
        for other_name in (name, *other_names_of_size):
            size = config.get(other_name)
            if isinstance(size, int) and size > 0:
                sizes[name] = size
                break
    if "hidden_size" in sizes and not sizes["intermediate_size"]:
        sizes["intermediate_size"] = 4 * sizes["hidden_size"]
    if config.get("block_auto_adjust_ff_dim"):
        # LFM2's class makes its feed-forward part this much narrower.
        step = config.get("block_multiple_of", 256)
        factor = config.get("block_ffn_dim_multiplier") or 1
        narrow = int(factor * int(2 * sizes["intermediate_size"] / 3))
        sizes["intermediate_size"] = -(-narrow // step) * step
        sizes["block_auto_adjust_ff_dim"] = False
    usual_config = {}
    for key, value in config.items():
        # Lists of values by layer are dropped.
        is_odd = key in _OPTIONAL and not isinstance(value, int)
        if not is_odd and key not in other_names:
            usual_config[key] = value
    return usual_config | sizes


def _usual_glu(config: ModelConfig) -> bool:
    activation = config.get("hidden_activation") or config.get("hidden_act") or "silu"
    if config.get("mlp_bias"):
        return False
    if str(config["model_type"]).startswith("gemma"):
        return activation == "gelu_pytorch_tanh"
    return activation in ("silu", "swish")


@dataclass(frozen=True)
class ChatTemplate:
    """The special tokens around each message of a conversation.

    axolotl: Axolotl's name for it. turn: the form of a message, with `{role}` and `{content}`;
    after `{answer}` the form of an answer, if it differs. end: the token that ends a message.
    assistant: the name of the answering role. tokens: texts that the tokenizer must have as one
    token each. begin: the text before the first message, if the model's own tokenizer writes one.
    system: the form of a system prompt without a turn of its own, with `{content}`; it precedes the
    words of the next question. system_turn: the form of its turn, if it differs from the others."""

    axolotl: str
    turn: str
    end: str
    tokens: tuple[str, ...]
    assistant: str = "assistant"
    begin: str = ""
    system: str = ""
    system_turn: str | None = None

    def conversation(self, messages: Iterable[tuple[str, str]]) -> str:
        """The messages, each a role and its content, as the model sees them."""
        parts = [self.begin]
        waiting = ""
        for role, content in messages:
            if role == "system" and self.system:
                waiting += self.system.replace("{content}", content)
                continue
            if role == "user":
                content = waiting + content
                waiting = ""
            parts.append(self.message(role, content))
        return "".join(parts)

    def turn_of(self, role: str) -> str:
        asking, _, answering = self.turn.partition("{answer}")
        if role == "assistant" and answering:
            return answering
        if role == "system" and self.system_turn:
            return self.system_turn
        return asking

    def message(self, role: str, content: str) -> str:
        if role == "assistant":
            role_name = self.assistant
        else:
            role_name = role
        return self.turn_of(role).replace("{role}", role_name).replace("{content}", content)

    @property
    def reply(self) -> str:
        """The text before an answer."""
        return (
            self.turn_of("assistant")
            .partition("{content}")[0]
            .replace("{role}", self.assistant)
            .rstrip(" ")
        )


def chat_template(name: str) -> ChatTemplate:
    facts = table("templates")[name]
    return ChatTemplate(**facts | {"tokens": tuple(facts["tokens"])})


# The files beside `config.json`. Newer tokenizers have their template in a separate one.
BESIDE = ("tokenizer_config.json", "generation_config.json", "chat_template.jinja")
Fetch = Callable[[str], Path | None]


def why_no_hub() -> str | None:
    """None if the hub answers; else why it does not, in plain words."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return "HF_HUB_OFFLINE is set"
    import urllib.error
    import urllib.request

    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=5)
    except urllib.error.HTTPError:
        return None  # any answer counts
    except (OSError, ValueError) as error:
        return f"{address} does not answer ({getattr(error, 'reason', error)})"
    return None


def in_folder(folder: Path, name: str) -> Model:
    """The model in a folder, under a name. Raises Stop if there is none."""

    def file_in_folder(file: str) -> Path | None:
        path = folder / file
        if path.is_file():
            return path
        return None

    return described(name, file_in_folder)


def described(name: str, fetch: Fetch) -> Model:
    """The facts from a model's own files. fetch: gives a file by its name, or None. Raises Stop if
    they describe no model that can be trained."""
    config = _json(fetch(CONFIG), name)
    if not config:
        raise Stop(
            f"`{name}` has no `{CONFIG}`, so transformers cannot load it.",
            "Check whether it is an adapter, or in GGUF format.",
        )
    refusal = unsuitable_type(config, name)
    if refusal:
        raise Stop(*refusal)
    try:
        model = from_config(name, config)
    except NO_GEOMETRY as error:
        model_type = config.get("model_type", "no type")
        if isinstance(error, KeyError):
            lacks = f"lacks {error}"
        else:
            lacks = "has sizes that are not numbers"
        raise Stop(
            f"recipe-runner does not know `{name}` ({model_type}) as a language model for text: its `{CONFIG}` {lacks}.",
            "Check whether it is a language model. Of those that also read images, `recipe models` lists the known ones.",
        ) from None
    tokenizer_config, ends = (_json(fetch(file), name) for file in BESIDE[:2])
    file = fetch(BESIDE[2])
    if file:
        written_template = file.read_text(encoding="utf-8", errors="replace")
    else:
        written_template = tokenizer_config.get("chat_template") or ""
    special_tokens: Facts = {}
    for key in SPOKEN:
        if key != "chat_template":
            special_tokens[key] = _token(tokenizer_config.get(key)) or getattr(model, key)
    number = ends.get("eos_token_id")
    if isinstance(number, list) and number:
        end_number = number[0]
    else:
        end_number = number
    special_tokens["eos_token"] = special_tokens["eos_token"] or _token(
        (tokenizer_config.get("added_tokens_decoder") or {}).get(str(end_number))
    )
    special_tokens["pad_token"] = special_tokens["pad_token"] or special_tokens["eos_token"]
    special_tokens["chat_template"] = _template(
        model.chat_template, json.dumps(written_template, ensure_ascii=False), tokenizer_config
    )
    return replace(model, **special_tokens)


def _json(file: Path | None, name: str) -> Mapping[str, Any]:
    if file is None:
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise Stop(
            f"`{file.name}` of `{name}` cannot be read as JSON.",
            "Copy the file again from its source.",
        ) from None
    if isinstance(content, dict):
        return content
    return {}


def _token(value: object) -> str:
    if isinstance(value, dict):
        content = value.get("content")
    else:
        content = value
    if isinstance(content, str):
        return content
    return ""


def _template(kin: str, written_template: str, tokenizer_config: Mapping[str, Any]) -> str:
    """The catalog's template whose tokens are all in the model's own template: that of related
    models (`kin`) if it fits, else the one with the most tokens. A model without a template gets
    `kin` if its tokenizer has the tokens. Empty if none fits; then its own is used."""
    tokens_by_template = {name: chat_template(name).tokens for name in table("templates")}
    added = set()
    for value in (tokenizer_config.get("added_tokens_decoder") or {}).values():
        added.add(_token(value))
    if written_template in ('""', "[]"):
        if kin and set(tokens_by_template[kin]) <= added:
            return kin
        return ""
    fitting = []
    for name, tokens in tokens_by_template.items():
        if len(tokens) > 1 and all(token in written_template for token in tokens):
            fitting.append(name)
    if kin in fitting:
        return kin
    return max(fitting, key=lambda name: len(tokens_by_template[name]), default="")
