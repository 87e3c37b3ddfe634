"""A recipe from an Axolotl file, by the schema's mapping read backwards."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from runner import catalog
from runner.check import by_schema
from runner.check.copying import commented, flow
from runner.data.conversation_formats import ROLES
from runner.data.tokenizers import MISTRAL
from runner.parts.axolotl_files import checking
from runner.recipe import reading
from runner.recipe.document import Document, Path_, path_of
from runner.scenarios.shared import common
from runner.scenarios.shared.axolotl import LIGER
from runner.tools import packaged
from runner.tools.problem import Problem, Stop, errors_of, listed

# The GPU of an imported recipe, as Axolotl files name none; two if the file shares the model
# between several.
GPU = "NVIDIA-H100-80GB-HBM3"
OTHER_WORDS = (
    "The words around question and answer are those of the chat template, not of this type."
)
NO_GPU = f"The file names no GPU, so the recipe has {GPU}."
table = partial(checking.table, "mapping")


class ImportedSet(NamedTuple):
    """A data set as a recipe describes it, and the kind of its rows."""

    settings: dict[str, Any]
    rows: str


@dataclass
class Import:
    """A recipe in the making. values: by the recipe's paths; sources: the paths of their lines in
    the Axolotl file; notes: on changed meanings; refused: what no recipe can express; used: the
    settings that are handled."""

    file: Document
    values: dict[Path_, Any] = field(default_factory=dict)
    sources: dict[Path_, Path_] = field(default_factory=dict)
    notes: list[Problem] = field(default_factory=list)
    refused: list[Problem] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    trainer: str = "Axolotl"

    def get(self, key: str, default: object = None) -> Any:
        """A setting of Axolotl's, which then counts as handled."""
        self.used.add(key)
        value = self.file.data.get(key)
        if value is None:
            return default
        return checking.as_axolotl_reads(self.file, (key,), value)

    def say(self, setting: str | Path_, value: object, *source: str | int) -> None:
        """Gives a setting of the recipe the value that a line of the file has."""
        if isinstance(setting, str):
            path = path_of(setting)
        else:
            path = setting
        self.values[path] = value
        if source:
            self.sources[path] = source

    def choose(self, setting: str, value: object, key: str) -> None:
        """Sets a setting, or refuses the line if the setting has only a few values, and this is
        none of them."""
        allowed = by_schema.part("lora", setting).get("enum", [value])
        if value in allowed:
            self.say(setting, value, key)
        else:
            name = setting.rpartition(".")[2]
            if len(allowed) < 9:
                few = f"{listed(allowed, 'or')} is possible."
            else:
                few = "The schema of recipes names them all."
            self.refuse((key,), f"Recipes have no {name} `{value}`.", few)

    def begin(self, scenario: str) -> None:
        """The scenario, and a name after the file's."""
        self.say("scenario", scenario)
        stem = Path(self.file.file).stem.lower()
        name = re.sub("[^a-z0-9]+", "-", stem).strip("-")
        if not name[:1].isalpha():
            name = f"run-{name}"
        self.say("name", name[:53].rstrip("-"))

    def name_gpu(self) -> None:
        """A GPU, as other trainers' files name none; if several share a model or rows, as many as
        the file needs."""
        self.say("machines.gpu", GPU)
        gpus = 1
        for group in table()["groups"]["sizes"]:
            size = self.file.data.get(f"{group}_size")
            if isinstance(size, int) and size > 1:
                gpus *= size
        if ("distribution",) in self.values:
            gpus = max(2, gpus)
        if gpus > 1 and ("machines", "gpus_per_node") not in self.values:
            self.say("machines.gpus_per_node", gpus)
        self.note((), NO_GPU, "Change `machines` to what you have.")

    def finish(self, refused: Mapping[str, str], more: Mapping[str, Sequence[str]] = {}) -> None:
        """Everything else: notes name the settings that the runner decides, and the rest stays
        under Axolotl's names. refused: reasons for settings that no recipe has; more: further
        settings that the runner decides, by group."""
        for key, reason in refused.items():
            if self.get(key):
                self.refuse((key,), reason)
        self._leave_out(more)
        of_axolotl = catalog.axolotl_settings()["properties"]
        is_foreign = self.trainer != "Axolotl"
        for key in self.file.data:
            if key in self.used:
                continue
            value = self.get(key)
            if value is None or (is_foreign and value in (False, "")):
                continue
            is_switch = "boolean" in str(of_axolotl.get(key, "boolean"))
            if isinstance(value, bool) and not is_switch:
                value = int(value)  # as Axolotl reads it
            if is_foreign and key not in of_axolotl:
                self.refuse((key,), f"Recipes have no setting for `{key}` of {self.trainer}.")
            else:
                self.say(("advanced", "axolotl", key), value, key)

    def _leave_out(self, more: Mapping[str, Sequence[str]]) -> None:
        """Notes on the settings that the runner decides. more: as for `finish`."""
        in_recipe = {source[0] for source in self.sources.values()}
        for name, group in table()["runner"].items():
            settings = dict.fromkeys((*group["settings"], *more.get(name, ())))
            written_keys = []
            for key in settings:
                is_written = self.file.data.get(key) not in (None, "", False)
                if is_written and key not in in_recipe:
                    written_keys.append(key)
            self.used.update(settings)
            if written_keys:
                self.note(
                    (written_keys[0],),
                    f"{group['says']} The recipe leaves out {listed(written_keys)}.",
                )

    def note(self, key: Path_, message: str, hint: str = "") -> None:
        self.notes.append(self.file.problem(key, message, hint, key=True, severity="note"))

    def refuse(self, key: Path_, message: str, hint: str = "") -> None:
        self.refused.append(self.file.problem(key, message, hint, key=True))

    def say_sets(self, sets: Sequence[Mapping[str, object]], *source: str | int) -> None:
        """The data sets; a single one needs no list."""
        if len(sets) == 1:
            for key, value in sets[0].items():
                self.say(("data", key), value, *source)
        else:
            self.say(("data", "sets"), sets, *source)

    def hold_out(self, key: str, rows: str, *place: str) -> None:
        """The rows for validation: a share of them, or the fewest that recipes hold out of this
        form of rows. place: of the note on these."""
        share = self.get(key) or 0
        if not isinstance(share, int | float):
            self.refuse((key,), "This is not a number.")
        elif 0 < share < 1:
            self.say("data.validation_share", max(0.001, min(share, 0.5)), key)
        elif share:
            self.refuse((key,), "Recipes hold out a share of the rows.", "Write a share below 1.")
        elif rows == "conversations":
            self.say("data.validation_share", 0, *place)
        elif rows != "text":  # plain text without this setting holds out no rows
            self.say("data.validation_share", 0.001, *place)
            self.note(
                place, "The file holds no rows out; the recipe holds out one of 1,000, the least."
            )

    def refuse_deepspeed(self, file: str) -> None:
        self.refuse(
            ("deepspeed",),
            f"`{file}` does not name its ZeRO stage.",
            "Write `zero1`, `zero2` or `zero3` in it.",
        )

    def name_no_layers(self, *key: str) -> None:
        self.note(
            key,
            "The file names no layers, so PEFT chooses them; the recipe adapts every linear layer.",
            "Write `train.lora_layers` to name them.",
        )

    @property
    def text(self) -> str:
        """The recipe's text, with the comments of the lines that it comes from."""
        comments = {paths[0]: comment for _, paths, _, comment in commented(self.file)}
        schema = packaged.schema_file(self.values["scenario",])
        lines = [f"# yaml-language-server: $schema={schema.name}"]
        sections = set[Path_]()
        for path in sorted(self.values, key=self._order):
            for depth, name in enumerate(path[:-1]):
                section = path[: depth + 1]
                if section not in sections:
                    sections.add(section)
                    lines.append(f"{'  ' * depth}{name}:")
            indent = "  " * (len(path) - 1)
            line = f"{indent}{path[-1]}: {flow(self.values[path])}"
            comment = comments.get(self.sources.get(path, ()))
            if comment:
                line = f"{line:<38} # {comment}"
            lines.append(line)
        return "\n".join(lines) + "\n"

    def _order(self, path: Path_) -> tuple[int, int]:
        """Sections are in the table's order, and their settings in that of the schema."""
        schema = by_schema.part(self.values["scenario",], path[:1])
        settings = list(schema.get("properties", ()))
        place = 0
        if len(path) > 1 and path[1] in settings:
            place = settings.index(path[1])
        return table()["order"].index(path[0]), place

    @property
    def recipe(self) -> Document:
        """The recipe as a document whose settings are at the lines of the Axolotl file that they
        come from."""
        document = reading.parse(self.file.file, self.text)
        paths = dict.fromkeys((*document.keys, *document.values))
        document.keys = {}
        document.values = {}
        for path in paths:
            source = self._source_of(path)
            if source in self.file.keys:
                document.keys[path] = self.file.keys[source]
            if source in self.file.values:
                document.values[path] = self.file.values[source]
        return replace(document, text=self.file.text)

    def _source_of(self, path: Path_) -> Path_ | None:
        """The path of a setting's line in the Axolotl file, or of its place within that line."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.sources:
                return self.sources[path[:length]] + path[length:]
        return None


def read(document: Document) -> Import:
    """The recipe that an Axolotl file can become. Raises Stop with every Problem if Axolotl refuses
    the file."""
    if not checking.is_axolotls(document):
        raise Stop(
            Problem(
                document.file,
                1,
                1,
                "This is not an Axolotl file: it has no line `base_model`.",
                "Name a YAML file of Axolotl.",
            )
        )
    refused, dropped = checking.faults(document)
    wrong = errors_of(refused)
    if wrong:
        raise Stop(wrong)
    left_out = "The recipe leaves it out."
    notes = []
    for problem in errors_of(dropped.values()):
        notes.append(replace(problem, hint=left_out, severity="note"))
    dropped_settings = {str(path[0]) for path in dropped if len(path) == 1}
    draft = Import(document, notes=notes, used=dropped_settings)
    objective = _objective(draft)
    rows = _rows(draft, objective)
    scenario = _scenario(draft, rows)
    draft.begin(scenario)
    _model(draft)
    _training(draft, scenario)
    if objective == "ebft":
        _features(draft, rows)
    _special_tokens(draft)
    _machines(draft)
    draft.finish(table()["refused"])
    if document.data.get("plugins") == [LIGER] and draft.values["train", "kernels"] == "auto":
        draft.values.pop(("advanced", "axolotl", "plugins"), None)
    return draft


def _scenario(draft: Import, rows: str) -> str:
    adapter = draft.file.data.get("adapter")
    if adapter in ("lora", "qlora"):
        return "lora"
    if adapter:
        draft.refuse(("adapter",), f"Recipes have no adapter `{adapter}`.")
    if rows == "text":
        return "causal-lm"
    return "full"


def _special_tokens(draft: Import) -> None:
    tokens = {}
    for name, token in (draft.get("special_tokens") or {}).items():
        if token is not None:
            tokens[name] = token
    if tokens.pop("pad_token", None):
        draft.note(
            ("special_tokens",),
            "The runner pads with the model's own token; padding is never trained.",
        )
    if tokens:
        draft.say("advanced.axolotl.special_tokens", tokens, "special_tokens")


def _objective(draft: Import) -> str | None:
    """A recipe's name for the loss on preferences; None for the prediction of the next token."""
    rl = draft.get("rl")
    losses = draft.get("dpo_loss_type") or ["sigmoid"]
    alpha = draft.file.data.get("cpo_alpha")
    if draft.get("reward_model"):
        draft.used.update(common.table("objectives")["reward"])
        draft.say("train.objective", "reward", "reward_model")
        return "reward"
    if not rl:
        return None
    for name, config in common.table("objectives").items():
        has_losses = config.get("dpo_loss_type", losses) == losses
        has_alpha = config.get("cpo_alpha", alpha) == alpha
        is_same = config.get("rl") == rl and has_losses and has_alpha
        if is_same or name == rl == "ipo":
            draft.used.add("cpo_alpha")
            draft.say("train.objective", name, "rl")
            return name
    draft.refuse(("rl",), f"Recipes cannot learn by `{rl}` from a file of Axolotl.")
    return None


def _model(draft: Import) -> None:
    draft.say("model.base", draft.get("base_model"), "base_model")
    for setting, key in table()["switches"].items():
        value = draft.get(key)
        if value:
            draft.say(setting, value, key)
    precision = next(filter(draft.get, ("bf16", "fp16")), None)
    if not precision and "bf16" not in draft.file.data:
        precision = "bf16"  # Axolotl's default
    draft.say("model.precision", precision or "fp32", precision or "bf16")
    old_names = table()["attention"]
    key = next(filter(draft.get, old_names), "attn_implementation")
    attention = old_names.get(key) or draft.get(key) or "sdpa"
    draft.choose("model.attention", attention, key)
    checkpointing = draft.get("gradient_checkpointing", False)
    offload = {"offload": True, "offload_disk": "disk"}.get(str(checkpointing))
    if offload:
        draft.say("advanced.axolotl.activation_offloading", offload, "gradient_checkpointing")
    draft.say("model.gradient_checkpointing", bool(checkpointing), "gradient_checkpointing")


def _training(draft: Import, scenario: str) -> None:
    """The settings that the schema maps unchanged, and those that follow from several."""
    for section in ("model", "train"):
        for name, part in by_schema.part(scenario, section)["properties"].items():
            key = part.get("x-axolotl")
            if key and (section, name) not in draft.values and key not in draft.used:
                _mapped_setting(draft, (section, name), key)
    try:
        draft.say("train.learning_rate", float(draft.get("learning_rate", "")), "learning_rate")
    except ValueError:
        if "learning_rate" in draft.file.data:
            message = "This is not a number."
        else:
            message = "Axolotl needs a line `learning_rate`."
        draft.refuse(("learning_rate",), message)
    _half_for_text(draft)
    draft.used.update(("load_in_4bit", "sample_packing", "batch_flattening"))
    optimizer = draft.get("optimizer", "adamw_torch_fused")
    optimizer = table()["optimizers"].get(optimizer, optimizer)
    draft.choose("train.optimizer", optimizer, "optimizer")
    if not draft.values.keys() & {("train", "warmup_steps"), ("train", "warmup_ratio")}:
        draft.say("train.warmup_ratio", 0.03)
    if scenario == "lora":
        _layers(draft)
    kernels = "none"
    for key in table()["runner"]["kernels"]["settings"]:
        if key.startswith("liger") and draft.file.data.get(key):
            kernels = "auto"
    draft.say("train.kernels", kernels)
    if ("train", "objective") not in draft.values:
        _cross_entropy(draft)
        if draft.values.get(("data", "form")) != "text":
            _packing(draft)
    _intervals(draft)
    tools = []
    for tool, keys in table()["curves"].items():
        if any(map(draft.file.data.get, keys)):
            tools.append(tool)
    draft.say("train.report_to", tools[0] if tools else "none")


def unfrozen_root(pattern: object) -> str:
    """The module whose weights a pattern of `unfrozen_parameters` names."""
    return str(pattern).lstrip("^").rstrip("*.$")


def _half_for_text(draft: Import) -> None:
    """Leaves out lines that freeze the parts of a model that see, which recipes do themselves."""
    key = "unfrozen_parameters"
    facts = catalog.model(str(draft.file.data.get("base_model")))
    patterns = draft.file.data.get(key)
    if facts is None or not facts.sees or not isinstance(patterns, list):
        return
    roots = {unfrozen_root(pattern) for pattern in patterns}
    if facts.root in roots and roots <= {facts.root, facts.lm_head.removesuffix(".weight")}:
        draft.used.add(key)
        draft.note(
            (key,),
            "From rows of text, recipes train only the half for text of a model that also sees.",
            "The recipe leaves this line out.",
        )


def _mapped_setting(draft: Import, path: tuple[str, str], key: str) -> None:
    """A setting with the value of Axolotl's setting `key`, or with Axolotl's default."""
    setting = ".".join(path)
    value = draft.get(key)
    if value is None and key == "rl_beta":
        value = draft.get("dpo_beta")
        if value:
            key = "dpo_beta"
    is_switched_off = value is False and key.startswith(("lora", "peft"))
    if value is None or is_switched_off:
        default = table()["defaults"].get(setting, "")
        if default != "":
            draft.say(path, default)
    else:
        draft.choose(setting, value, key)


def _cross_entropy(draft: Import) -> None:
    loss = "plain"
    if draft.get("chunked_cross_entropy"):
        loss = "chunked"
    if draft.get("liger_fused_linear_cross_entropy"):
        loss = "fused"
    draft.say("train.cross_entropy", loss)


def _packing(draft: Import) -> None:
    """How short rows are handled: as they are for a model whose class mixes joined rows."""
    packing = "none"
    if draft.get("batch_flattening"):
        packing = "flatten"
    if draft.get("sample_packing"):
        packing = "pack"
    facts = catalog.model(str(draft.get("base_model")))
    attention = str(draft.values.get(("model", "attention")))
    if packing != "none" and facts and facts.mixes_rows(attention):
        key = "sample_packing" if packing == "pack" else "batch_flattening"
        draft.note(
            (key,),
            "Models of this type do not keep joined rows apart: each row would see the one before it. The recipe pads rows instead.",
        )
        packing = "none"
    draft.say("train.packing", packing, "sample_packing")


def _intervals(draft: Import) -> None:
    """Early stopping, and the steps between evaluations and between checkpoints."""
    patience = draft.get("early_stopping_patience")
    if patience:
        draft.say("train.early_stopping", {"patience": patience}, "early_stopping_patience")
    steps = {}
    for key in ("eval_steps", "save_steps"):
        interval = draft.get(key)
        if isinstance(interval, int) and interval >= 1:
            steps[key] = interval
    # Each evaluation also writes a checkpoint, so the recipe saves at least as often as it
    # evaluates.
    for key, interval in steps.items():
        if steps.get("eval_steps", interval) % interval == 0:
            draft.say(("train", key), interval, key)


def _features(draft: Import, rows: str) -> None:
    """The settings of energy-based fine-tuning: those of features, and of the model's own answers
    to prompts."""
    settings = draft.get("ebft")
    of_recipes = by_schema.schema("lora", rows)["properties"]["ebft"]["properties"]
    if settings.pop("mode", "structured") == "strided":
        draft.refuse(
            ("ebft", "mode"),
            "Recipes have no strided mode: Axolotl 0.19.0 takes the probability of each token from another continuation, and tiny models learned nothing with it.",
            "`mode: structured` compares whole answers to prompts (`ebft_opencode.transform`).",
        )
    for key, value in settings.items():
        if key in of_recipes:
            draft.say(("ebft", key), value, "ebft", key)
        elif value:
            draft.say(("advanced", "axolotl", "ebft", key), value, "ebft", key)
    draft.note(
        ("rl",),
        "The recipe ends an answer at the end of a turn, where the chat template has one. Axolotl ends it at the end of a text.",
    )
    _own_answers(draft)


def _own_answers(draft: Import) -> None:
    """TRL's settings of a model's own answers. Those that no recipe has stay under their names."""
    trl = draft.get("trl", {})
    for key, setting in table()["answers"].items():
        value = trl.pop(key, None)
        if value is not None:
            draft.say(("train", setting), value, "trl", key)
    if trl.get("use_vllm") and trl.get("vllm_mode", "server") == "server":
        del trl["use_vllm"]
        trl.pop("vllm_mode", None)
        draft.say("train.generator", "vllm-server", "trl", "use_vllm")
        host = trl.pop("vllm_server_host", None)
        port = trl.pop("vllm_server_port", None)
        if host or port:
            address = f"{host or '0.0.0.0'}:{port or 8000}"
            draft.say("train.vllm_server", address, "trl")
    for key, value in trl.items():
        draft.say(("advanced", "axolotl", "trl", key), value, "trl", key)


def _layers(draft: Import) -> None:
    modules = draft.get("lora_target_modules")
    is_every_layer = draft.get("lora_target_linear")
    if is_every_layer or modules == "all-linear":
        return
    if isinstance(modules, list) and modules:
        draft.say("train.lora_layers", modules, "lora_target_modules")
    elif modules:
        draft.say("train.lora_pattern", modules, "lora_target_modules")
    elif draft.file.data.get("lora_target_parameters"):
        draft.say("train.lora_layers", [], "lora_target_parameters")
    else:
        draft.name_no_layers("adapter")


def _rows(draft: Import, objective: str | None) -> str:
    """Sets the data sets, in the forms of recipes; returns the kind of rows."""
    entries = draft.get("datasets") or []
    data_sets = _data_sets(draft, entries, objective)
    kinds = list(dict.fromkeys(data_set.rows for data_set in data_sets))
    if len(kinds) > 1:
        draft.refuse(
            ("datasets",),
            "Recipes do not mix rows of different kinds: text, conversations and preferences.",
        )
    rows = kinds[0] if kinds else "conversations"
    if rows != "conversations":
        draft.say("data.form", rows)
    source: tuple[str | int, ...] = ("datasets",)
    if len(data_sets) == 1:
        source = ("datasets" if entries else "pretraining_dataset", 0)
    draft.say_sets([data_set.settings for data_set in data_sets], *source)
    if draft.get("train_on_inputs") and rows == "conversations":
        draft.say("data.train_on", "all", "train_on_inputs")
    if rows != "text":
        _template(draft, entries)
    draft.hold_out("val_set_size", rows, "val_set_size")
    return rows


def _data_sets(draft: Import, entries: list[Any], objective: str | None) -> list[ImportedSet]:
    """The data sets of the file, each once. entries: those of `datasets`."""
    data_sets = list[ImportedSet]()
    for index, entry in enumerate(entries):
        if entry in entries[:index]:
            draft.note(
                ("datasets", index),
                "The file names these rows a second time. Recipes train on each row once.",
            )
        else:
            data_sets.append(_data_set(draft, ("datasets", index), entry, objective))
    for index, entry in enumerate(draft.get("pretraining_dataset") or ()):
        path = ("pretraining_dataset", index)
        text = {key: value for key, value in entry.items() if key not in ("text_column", "type")}
        as_completion = {"field": entry.get("text_column"), **text, "type": "completion"}
        data_sets.append(_data_set(draft, path, as_completion, objective))
        draft.note(
            path,
            "Recipes prepare all rows before training, instead of streaming them.",
            "Write a smaller `subset`, or `split: train[:1%]`, for a part of a large set.",
        )
    return data_sets


def _template(draft: Import, entries: list[object]) -> None:
    """The chat template. entries: those of `datasets`."""
    if draft.get("tokenizer_use_mistral_common"):
        draft.say("data.chat_template", MISTRAL, "tokenizer_use_mistral_common")
        return
    template = draft.get("chat_template")
    if template is None:
        types = [str(entry.get("type")) for entry in entries if isinstance(entry, dict)]
        templated = all(type_name.startswith("chat_template") for type_name in types)
        draft.say("data.chat_template", "tokenizer_default" if templated else "auto")
        return
    if template in ("chatml", "tokenizer_default"):
        of_recipe = template
    elif template == _template_of_model(draft.file.data["base_model"]):
        of_recipe = "auto"
    else:
        of_recipe = "tokenizer_default"
    draft.say("data.chat_template", of_recipe, "chat_template")
    if of_recipe not in (template, "auto"):
        draft.note(
            ("chat_template",),
            f"Recipes have no chat template `{template}` for this model; the recipe uses the tokenizer's own.",
            "Compare the two with `recipe prepare`, which shows the first rows.",
        )


def _template_of_model(base: str) -> str | None:
    """Axolotl's name for the chat template of a model; None if the catalog does not have it."""
    if base not in catalog.model_ids():
        return None
    facts = catalog.model(base)
    if facts and facts.chat_template:
        return catalog.chat_template(facts.chat_template).axolotl
    return None


def _data_set(
    draft: Import, path: Path_, entry: dict[str, Any], objective: str | None
) -> ImportedSet:
    """A data set as a recipe describes it. path: of its lines in the file."""
    idle = table()["idle"]
    # Each function below takes out the options that it handles.
    options = {}
    for key, value in entry.items():
        if value is not None and value not in idle.get(key, ("",)):
            options[key] = value
    settings = _source(draft, path, options)
    written_type = options.pop("type", None)
    type_name = str(written_type or "")
    style, _, ending = type_name.replace(":", ".").partition(".")
    rows = "conversations"
    if objective == "ebft":
        rows = "prompts"
        settings |= _columns_of_prompts(draft, path, type_name)
    elif objective:
        rows = "preferences"
        settings |= _columns_of_preferences(draft, path, options, objective, type_name)
    elif isinstance(written_type, dict) or written_type is None:
        settings |= _columns_of_own_type(draft, path, written_type or {})
    elif style == "completion":
        rows = "text"
        settings["text"] = options.pop("field", "text")
        draft.note(
            (*path, "type"),
            "Recipes join texts, short ones too, and cut them into blocks of equal length.",
        )
    elif style == "chat_template" and not ending:
        settings |= _turns(draft, path, options)
    elif style in ("alpaca", "alpaca_chat"):
        settings["form"] = "alpaca"
        draft.note((*path, "type"), OTHER_WORDS)
    else:
        _refuse_type(draft, path, type_name)
    for key in options:
        draft.refuse((*path, key), f"Recipes have no line for `{key}` of a data set.")
    return ImportedSet(settings, rows)


def _refuse_type(draft: Import, path: Path_, type_name: str) -> None:
    message = f"Recipes have no form for rows of the type `{type_name}`."
    draft.refuse((*path, "type"), message, "Convert the rows.")


def _source(draft: Import, path: Path_, options: dict[str, Any]) -> dict[str, Any]:
    """Where the rows of a data set come from: a path here, or a name on the hub and what is taken
    of it."""
    source = str(options.pop("path", ""))
    files = options.pop("data_files", None) or []
    if isinstance(files, str):
        files = [files]
    if len(files) == 1 and source in ("json", "csv", "parquet"):
        source = files[0]
        files = []
    is_local = source.startswith((".", "/", "~")) or re.search(
        r"\.(jsonl|json|csv|tsv|parquet|xlsx|txt)$", source
    )
    settings: dict[str, Any] = {"path" if is_local else "hub": source}
    for of_axolotl, of_recipe in (("name", "subset"), ("split", "split"), ("revision", "revision")):
        value = options.pop(of_axolotl, None)
        if value is not None and not is_local:
            settings[of_recipe] = value
    if files and "/" in source and not is_local:
        settings["files"] = files
    elif files:
        draft.refuse((*path, "data_files"), "Recipes name each file of this machine as a `path`.")
    return settings


def _columns_of_prompts(draft: Import, path: Path_, type_name: str) -> dict[str, Any]:
    """The columns for energy-based fine-tuning."""
    columns = table()["features"].get(type_name.removesuffix(".transform"))
    if columns is None:
        _refuse_type(draft, path, type_name)
    return columns or {}


def _columns_of_preferences(
    draft: Import, path: Path_, options: dict[str, object], objective: str, type_name: str
) -> dict[str, Any]:
    style, _, ending = type_name.replace(":", ".").partition(".")
    if objective == "kto":
        judged_as = "labels"
    else:
        judged_as = "preferences"
    columns = table()[judged_as].get(style if objective == "reward" else ending)
    is_chat = style == "chat_template" and ending in ("", "default")
    if judged_as == "preferences" and is_chat:
        turns = options.pop("field_messages", "messages")
        chosen = options.pop("field_chosen", "chosen")
        rejected = options.pop("field_rejected", "rejected")
        columns = [f"[{turns}]", f"[{chosen}]", f"[{rejected}]"]
        _refuse_other_turns(draft, path, options, {"role": "role", "content": "content"})
    if not columns:
        draft.refuse(
            (*path, "type"), f"Recipes have no form for preferences of the type `{type_name}`."
        )
        return {}
    return dict(zip(table()["judged"][judged_as], columns, strict=True))


def _columns_of_own_type(draft: Import, path: Path_, fields: dict[str, object]) -> dict[str, Any]:
    """The columns of a type that the file itself describes."""
    has_both = {"field_instruction", "field_output"} <= fields.keys()
    if not has_both or fields.keys() & {"format", "field_input"}:
        draft.refuse(
            (*path, "type"),
            "Recipes have no form for this data set's own type.",
            "Write `question` and `answer` into the recipe, with columns in brackets.",
        )
        return {}
    draft.note((*path, "type"), OTHER_WORDS)
    return {
        "question": f"[{fields['field_instruction']}]",
        "answer": f"[{fields['field_output']}]",
    }


def _turns(draft: Import, path: Path_, options: dict[str, object]) -> dict[str, Any]:
    """The form of conversations, and how their turns are read."""
    settings = dict[str, Any]()
    column = options.pop("field_messages", "messages")
    forms = table()["turns"]
    form_by_column = {names[0]: form for form, names in forms.items()}
    form = form_by_column.get(column)
    if form is None:
        columns = listed(form_by_column, "or")
        draft.refuse(
            (*path, "field_messages"),
            f"Recipes read no turns from a column `{column}`.",
            f"Rename the column to {columns}.",
        )
    else:
        settings["form"] = form
        usual_names = dict(zip(("role", "content"), forms[form][1:], strict=True))
        _refuse_other_turns(draft, path, options, usual_names)
    if options.get("roles_to_train") == ["assistant"]:
        options.pop("roles_to_train")
    if options.pop("drop_system_message", False):
        settings["drop_system"] = True
    thoughts = by_schema.part("lora", "data.thinking_field")["enum"]
    if options.get("field_thinking") == options.get("template_thinking_key") in thoughts:
        settings["thinking_field"] = options.pop("field_thinking")
        options.pop("template_thinking_key")
    return settings


def _refuse_other_turns(
    draft: Import, path: Path_, options: dict[str, Any], usual_names: dict[str, str]
) -> None:
    """Refuses turns whose parts have other names than the usual ones, by Axolotl's names for
    them."""
    names = {"role": "role", "content": "content"}
    names |= dict(options.pop("message_property_mappings", {}))
    for part in ("role", "content"):
        field_name = options.pop(f"message_field_{part}", None)
        if field_name:
            names[part] = field_name
    unusual = [name for key, name in names.items() if usual_names.get(key, key) != name]
    # The runner reads both spellings of a turn in either column.
    spellings = [form[1:] for form in table()["turns"].values()]
    if unusual and [names.get("role"), names.get("content")] not in spellings:
        message = f"Recipes read no turns with {listed(unusual)}."
        draft.refuse((*path, "message_property_mappings"), message)
    for role, aliases in (options.pop("roles", None) or {}).items():
        strange = [alias for alias in aliases if ROLES.get(alias) != role]
        if strange:
            draft.refuse((*path, "roles"), f"Recipes know no role {listed(strange)} of the {role}.")


def _machines(draft: Import) -> None:
    """How GPUs share the work."""
    deepspeed = str(draft.file.data.get("deepspeed") or "")
    zero = re.search("zero([123])", deepspeed)
    key = "deepspeed"
    offloaded = ""
    if draft.file.data.get("fsdp_config") or draft.file.data.get("fsdp"):
        key = "fsdp_config" if "fsdp_config" in draft.file.data else "fsdp"
        offloaded = _by_fsdp(draft, key)
    elif zero:
        draft.say("distribution", f"zero{zero[1]}", key)
        # Axolotl's own files have names such as zero3_bf16_cpuoffload_all.json.
        offloaded = deepspeed.partition("cpuoffload_")[2].partition(".")[0]
        if not deepspeed.startswith("deepspeed_configs/"):
            draft.note(
                ("deepspeed",),
                f"The recipe has DeepSpeed's settings of ZeRO-{zero[1]}, and leaves out what else this file says.",
                "To keep the file, name it: `sharding.file`.",
            )
    elif deepspeed:
        draft.refuse_deepspeed(deepspeed)
    for part in {"all": ("optimizer", "weights"), "params": ("weights",)}.get(offloaded, ()):
        draft.say(f"sharding.offload_{part}", "cpu", key)
    for name, part in by_schema.part("full", "sharding")["properties"].items():
        if "x-axolotl" in part:
            size = draft.get(part["x-axolotl"])
            if size and size > 1:
                draft.say(("sharding", name), size, name)
    draft.name_gpu()


def _by_fsdp(draft: Import, key: str) -> str:
    """Sets FSDP, or ZeRO-3 for an optimizer that cannot change split weights; returns what is
    offloaded. key: of the line that asks for FSDP."""
    optimizer = draft.values.get(("train", "optimizer"))
    is_split = optimizer and catalog.optimizers()[optimizer].sharded
    if not optimizer or is_split or draft.values.get(("train", "eight_bit_base")):
        draft.say("distribution", "fsdp", key)
    else:
        draft.say("distribution", "zero3", key)
        draft.note(
            (key,),
            f"FSDP 2, which recipes use, cannot take a step with `{optimizer}`. So DeepSpeed's ZeRO-3 splits the model.",
            "Or write `distribution: fsdp` and `optimizer: adamw_torch_8bit`.",
        )
    fsdp = draft.file.data.get("fsdp_config")
    if isinstance(fsdp, dict) and fsdp.get("offload_params"):
        return "all"
    return ""


def with_known_model(document: Document) -> Document:
    """The recipe with another base model, if the catalog does not have its own."""
    model = document.data["model"]
    if model["base"] not in catalog.model_ids():
        stand_ins = table()["stand_ins"]
        model["base"] = stand_ins["otherwise"]
        for value in (document.data["data"].get("chat_template"), model.get("attention")):
            if value in stand_ins:
                model["base"] = stand_ins[value]
        for layers in ("lora_layers", "lora_pattern"):  # which the other one may not have
            if document.data["train"].get(layers):
                del document.data["train"][layers]
    return document
