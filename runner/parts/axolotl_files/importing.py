"""A recipe from an Axolotl file, by the schema's mapping read backwards."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from runner import catalog
from runner.check import by_schema, validate
from runner.data.conversation_formats import ROLES
from runner.data.tokenizers import MISTRAL
from runner.parts.axolotl_files import checking
from runner.parts.edits.copying import commented, flow
from runner.recipe import reading
from runner.recipe.document import Document, Path_, path_of
from runner.recipe.recipe import Override
from runner.scenarios.shared import common
from runner.scenarios.shared.axolotl import LIGER
from runner.tools import packaged
from runner.tools.problem import Problem, Stop, errors_of, listed, worded

# The GPU of an imported recipe, as Axolotl files name none; two if the file shares the model
# between several.
GPU = "NVIDIA-H100-80GB-HBM3"
OTHER_WORDS = (
    "The words around question and answer are those of the chat template, not of this type."
)
NO_GPU = f"The file names no GPU, so the recipe has {GPU}."
table = partial(checking.table, "mapping")


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

    def get(self, key: str, default: Any = None) -> Any:
        """A setting of Axolotl's, which then counts as handled."""
        self.used.add(key)
        value = self.file.data.get(key)
        if value is None:
            return default
        return checking.as_axolotl_reads(self.file, (key,), value)

    def say(self, setting: str | Path_, value: Any, *source: str | int) -> None:
        """Gives a setting of the recipe the value that a line of the file has."""
        if isinstance(setting, str):
            path = path_of(setting)
        else:
            path = setting
        self.values[path] = value
        if source:
            self.sources[path] = source

    def choose(self, setting: str, value: Any, key: str) -> None:
        """Sets a setting, or refuses the line if the setting has only a few values, and this is
        none of them."""
        known = by_schema.part("lora", setting).get("enum", [value])
        if value in known:
            self.say(setting, value, key)
        else:
            name = setting.rpartition(".")[2]
            if len(known) < 9:
                few = f"{listed(known, 'or')} is possible."
            else:
                few = "The schema of recipes names them all."
            self.refuse((key,), f"Recipes have no {name} `{value}`.", few)

    def begin(self, scenario: str) -> None:
        """The scenario, and a name after the file's."""
        self.say("scenario", scenario)
        stem = re.sub("[^a-z0-9]+", "-", Path(self.file.file).stem.lower()).strip("-")
        self.say("name", (stem if stem[:1].isalpha() else f"run-{stem}")[:53].rstrip("-"))

    def name_gpu(self) -> None:
        """A GPU, as other trainers' files name none; if several share a model or rows, as many as
        the file needs."""
        self.say("machines.gpu", GPU)
        sizes = (self.file.data.get(f"{way}_size") for way in table()["groups"]["sizes"])
        gpus = max(
            1 + (("distribution",) in self.values),
            prod(one for one in sizes if isinstance(one, int) and one > 1),
        )
        if gpus > 1 and ("machines", "gpus_per_node") not in self.values:
            self.say("machines.gpus_per_node", gpus)
        self.note((), NO_GPU, "Change `machines` to what you have.")

    def finish(self, refused: Mapping[str, str], more: Mapping[str, Sequence[str]] = {}) -> None:
        """Everything else: notes name the settings that the runner decides, and the rest stays
        under Axolotl's names. refused: reasons for settings that no recipe has; more: further
        settings that the runner decides, by group."""
        for key, why in refused.items():
            if self.get(key):
                self.refuse((key,), why)
        said = {source[0] for source in self.sources.values()}
        for name, group in table()["runner"].items():
            settings = dict.fromkeys((*group["settings"], *more.get(name, ())))
            there = [
                key
                for key in settings
                if self.file.data.get(key) not in (None, "", False) and key not in said
            ]
            self.used.update(settings)
            if there:
                self.note((there[0],), f"{group['says']} The recipe leaves out {listed(there)}.")
        known = catalog.axolotl_settings()["properties"]
        other = self.trainer != "Axolotl"
        for key in self.file.data:
            if (
                key in self.used
                or (value := self.get(key)) is None
                or (other and value in (False, ""))
            ):
                continue
            if isinstance(value, bool) and "boolean" not in str(known.get(key, "boolean")):
                value = int(value)  # as Axolotl reads it
            if other and key not in known:
                self.refuse((key,), f"Recipes have no setting for `{key}` of {self.trainer}.")
            else:
                self.say(("advanced", "axolotl", key), value, key)

    def note(self, key: Path_, message: str, hint: str = "") -> None:
        self.notes.append(self.file.problem(key, message, hint, key=True, severity="note"))

    def refuse(self, key: Path_, message: str, hint: str = "") -> None:
        self.refused.append(self.file.problem(key, message, hint, key=True))

    def say_sets(self, sets: Sequence[Mapping[str, Any]], *source: str | int) -> None:
        """The data sets; a single one needs no list."""
        for key, value in sets[0].items() if len(sets) == 1 else [("sets", sets)]:
            self.say(("data", key), value, *source)

    def hold_out(self, key: str, *place: str) -> None:
        """The rows for validation: a share of them, or the fewest that recipes hold out. place: of
        the note on these."""
        share = self.get(key) or 0
        if not isinstance(share, int | float):
            self.refuse((key,), "This is not a number.")
        elif 0 < share < 1:
            self.say("data.validation_share", max(0.001, min(share, 0.5)), key)
        elif share:
            self.refuse((key,), *worded("axolotl_files.share-of-rows"))
        else:
            self.say("data.validation_share", 0.001, *place)
            self.note(place, *worded("axolotl_files.no-rows-out"))

    def refuse_deepspeed(self, file: str) -> None:
        self.refuse(("deepspeed",), *worded("axolotl_files.no-zero-stage", deepspeed=file))

    def name_no_layers(self, *key: str) -> None:
        self.note(key, *worded("axolotl_files.layers-by-peft"))

    @property
    def text(self) -> str:
        """The recipe's text, with the comments of the lines that it comes from."""
        comments = {
            paths[0]: words for _, paths, _, words in commented(self.file) for _ in paths[:1]
        }
        lines = [
            f"# yaml-language-server: $schema={packaged.schema_file(self.values['scenario',]).name}"
        ]
        written: list[Path_] = []
        for path in sorted(self.values, key=self._order):
            for length in range(1, len(path)):
                if path[:length] not in written:
                    written.append(path[:length])
                    lines.append(f"{'  ' * (length - 1)}{path[length - 1]}:")
            line = f"{'  ' * (len(path) - 1)}{path[-1]}: {flow(self.values[path])}"
            words = comments.get(self.sources.get(path, ()), "")
            lines.append(f"{line:<38} # {words}" if words else line)
        return "\n".join(lines) + "\n"

    def _order(self, path: Path_) -> tuple[int, int]:
        """Sections are in the table's order, and their settings in that of the schema."""
        known = [*by_schema.part(self.values["scenario",], path[:1]).get("properties", ())]
        return table()["order"].index(str(path[0])), known.index(path[1]) if path[1:2] and path[
            1
        ] in known else 0

    @property
    def recipe(self) -> Document:
        """The recipe as a document whose settings are at the lines of the Axolotl file that they
        come from."""
        made = reading.parse(self.file.file, self.text)

        def source(path: Path_) -> Path_ | None:
            lengths = (
                length for length in range(len(path), 0, -1) if path[:length] in self.sources
            )
            return next((self.sources[path[:length]] + path[length:] for length in lengths), None)

        places = {path: source(path) for path in (*made.keys, *made.values)}
        made.keys, made.values = (
            {path: of[there] for path, there in places.items() if there in of}
            for of in (self.file.keys, self.file.values)
        )
        return replace(made, text=self.file.text)


def read(document: Document) -> Import:
    """The recipe that an Axolotl file can become. Raises Stop with every Problem if Axolotl refuses
    the file."""
    if not checking.is_axolotls(document):
        raise Stop(Problem(document.file, 1, 1, *worded("axolotl_files.not-axolotl")))
    refused, dropped = checking.faults(document)
    wrong = errors_of(refused)
    if wrong:
        raise Stop(wrong)
    left_out = "The recipe leaves it out."
    notes = [
        replace(problem, hint=left_out, severity="note") for problem in errors_of(dropped.values())
    ]
    made = Import(document, notes=notes, used={str(path[0]) for path in dropped if len(path) == 1})
    adapter = document.data.get("adapter")
    objective = _objective(made)
    rows = _rows(made, objective)
    if adapter in ("lora", "qlora"):
        scenario = "lora"
    elif rows == "text":
        scenario = "causal-lm"
    else:
        scenario = "full"
    if adapter and scenario != "lora":
        made.refuse(("adapter",), f"Recipes have no adapter `{adapter}`.")
    made.begin(scenario)
    _model(made)
    _training(made, scenario)
    if objective == "ebft":
        _features(made, rows)
    tokens = {
        name: token
        for name, token in (made.get("special_tokens") or {}).items()
        if token is not None
    }
    if tokens.pop("pad_token", None):
        made.note(
            ("special_tokens",),
            "The runner pads with the model's own token; padding is never trained.",
        )
    if tokens:
        made.say("advanced.axolotl.special_tokens", tokens, "special_tokens")
    _machines(made)
    made.finish(table()["refused"])
    if document.data.get("plugins") == [LIGER] and made.values["train", "kernels"] == "auto":
        made.values.pop(("advanced", "axolotl", "plugins"), None)
    return made


def _objective(made: Import) -> str | None:
    """A recipe's name for the loss on preferences; None for the prediction of the next token."""
    rl = made.get("rl")
    losses = made.get("dpo_loss_type") or ["sigmoid"]
    alpha = made.file.data.get("cpo_alpha")
    if made.get("reward_model"):
        made.used.update(common.table("objectives")["reward"])
        made.say("train.objective", "reward", "reward_model")
        return "reward"
    for name, config in common.table("objectives").items() if rl else ():
        same = config.get("rl") == rl and config.get("dpo_loss_type", losses) == losses
        if (same and config.get("cpo_alpha", alpha) == alpha) or name == rl == "ipo":
            made.used.add("cpo_alpha")
            made.say("train.objective", name, "rl")
            return name
    if rl:
        made.refuse(("rl",), f"Recipes cannot learn by `{rl}` from a file of Axolotl.")
    return None


def _model(made: Import) -> None:
    made.say("model.base", made.get("base_model"), "base_model")
    for setting, key in table()["switches"].items():
        value = made.get(key)
        if value:
            made.say(setting, value, key)
    # Axolotl's default is bf16.
    key = next(
        (key for key in ("bf16", "fp16") if made.get(key)),
        None if "bf16" in made.file.data else "bf16",
    )
    made.say("model.precision", key or "fp32", key or "bf16")
    old = table()["attention"]
    key = next((key for key in old if made.get(key)), "attn_implementation")
    made.choose("model.attention", old.get(key) or made.get(key) or "sdpa", key)
    checkpointing = made.get("gradient_checkpointing", False)
    offload = {"offload": True, "offload_disk": "disk"}.get(str(checkpointing))
    if offload:
        made.say("advanced.axolotl.activation_offloading", offload, "gradient_checkpointing")
    made.say("model.gradient_checkpointing", bool(checkpointing), "gradient_checkpointing")


def _training(made: Import, scenario: str) -> None:
    """The settings that the schema maps unchanged, and those that follow from several."""
    for home in ("model", "train"):
        for name, part in by_schema.part(scenario, home)["properties"].items():
            key = part.get("x-axolotl")
            path = (home, name)
            if not key or path in made.values or key in made.used:
                continue
            value = made.get(key)
            if value is None and key == "rl_beta" and (value := made.get("dpo_beta")):
                key = "dpo_beta"
            if value is None or (key.startswith(("lora", "peft")) and value is False):
                default = table()["defaults"].get(f"{home}.{name}", "")
                if default != "":
                    made.say(path, default)
            else:
                made.choose(f"{home}.{name}", value, key)
    try:
        made.say("train.learning_rate", float(made.get("learning_rate", "")), "learning_rate")
    except ValueError:
        there = "learning_rate" in made.file.data
        made.refuse(
            ("learning_rate",),
            "This is not a number." if there else "Axolotl needs a line `learning_rate`.",
        )
    made.used.update(("load_in_4bit", "sample_packing", "batch_flattening"))
    optimizer = made.get("optimizer", "adamw_torch_fused")
    made.choose("train.optimizer", table()["optimizers"].get(optimizer, optimizer), "optimizer")
    if ("train", "warmup_steps") not in made.values and (
        "train",
        "warmup_ratio",
    ) not in made.values:
        made.say("train.warmup_ratio", 0.03)
    if scenario == "lora":
        _layers(made)
    kernels = [key for key in table()["runner"]["kernels"]["settings"] if key.startswith("liger")]
    made.say("train.kernels", "auto" if any(map(made.file.data.get, kernels)) else "none")
    if ("train", "objective") not in made.values:
        fused = made.get("liger_fused_linear_cross_entropy")
        chunked = made.get("chunked_cross_entropy")
        made.say("train.cross_entropy", "fused" if fused else "chunked" if chunked else "plain")
        if made.values.get(("data", "form")) != "text":
            packed = made.get("sample_packing")
            flat = made.get("batch_flattening")
            facts = catalog.model(str(made.get("base_model")))
            if (
                (packed or flat)
                and facts
                and facts.mixes_rows(str(made.values.get(("model", "attention"))))
            ):
                made.note(
                    ("sample_packing" if packed else "batch_flattening",),
                    *worded("axolotl_files.mixes-rows"),
                )
                packed = flat = False
            made.say(
                "train.packing",
                "pack" if packed else "flatten" if flat else "none",
                "sample_packing",
            )
    patience = made.get("early_stopping_patience")
    if patience:
        made.say("train.early_stopping", {"patience": patience}, "early_stopping_patience")
    steps = {
        key: one
        for key in ("eval_steps", "save_steps")
        if isinstance(one := made.get(key), int) and one >= 1
    }
    # Each evaluation also writes a checkpoint, so the recipe saves at least as often as it
    # evaluates.
    for key, one in steps.items():
        if steps.get("eval_steps", one) % one == 0:
            made.say(("train", key), one, key)
    tools = (tool for tool, keys in table()["curves"].items() if any(map(made.file.data.get, keys)))
    made.say("train.report_to", next(tools, "none"))


def _features(made: Import, rows: str) -> None:
    """The settings of energy-based fine-tuning: those of features, and of the model's own answers
    to prompts."""
    own = made.get("ebft")
    known = by_schema.schema("lora", rows)["properties"]["ebft"]["properties"]
    if own.pop("mode", "structured") == "strided":
        made.refuse(("ebft", "mode"), *worded("axolotl_files.strided"))
    for key, value in own.items():
        if key in known or value:
            made.say(
                ("ebft", key) if key in known else ("advanced", "axolotl", "ebft", key),
                value,
                "ebft",
                key,
            )
    made.note(("rl",), *worded("axolotl_files.ends-of-turns"))
    left = made.get("trl", {})
    for key, setting in table()["answers"].items():
        value = left.pop(key, None)
        if value is not None:
            made.say(("train", setting), value, "trl", key)
    if left.get("use_vllm") and left.get("vllm_mode", "server") == "server":
        left = {key: value for key, value in left.items() if key not in ("use_vllm", "vllm_mode")}
        made.say("train.generator", "vllm-server", "trl", "use_vllm")
        host = left.pop("vllm_server_host", None)
        port = left.pop("vllm_server_port", None)
        if host or port:
            made.say("train.vllm_server", f"{host or '0.0.0.0'}:{port or 8000}", "trl")
    for key, value in left.items():
        made.say(("advanced", "axolotl", "trl", key), value, "trl", key)


def _layers(made: Import) -> None:
    named = made.get("lora_target_modules")
    every = made.get("lora_target_linear")
    if every or named == "all-linear":
        return
    if isinstance(named, list) and named:
        made.say("train.lora_layers", named, "lora_target_modules")
    elif named:
        made.say("train.lora_pattern", named, "lora_target_modules")
    elif made.file.data.get("lora_target_parameters"):
        made.say("train.lora_layers", [], "lora_target_parameters")
    else:
        made.name_no_layers("adapter")


def _rows(made: Import, objective: str | None) -> str:
    """Sets the data sets, in the forms of recipes; returns the kind of rows."""
    sets = made.get("datasets") or []
    found = list[tuple[dict[str, Any], str]]()
    for index, one in enumerate(sets):
        if one in sets[:index]:
            made.note(("datasets", index), *worded("axolotl_files.same-data"))
        else:
            found.append(_set(made, ("datasets", index), one, objective))
    for index, one in enumerate(made.get("pretraining_dataset") or ()):
        path = ("pretraining_dataset", index)
        text = {key: value for key, value in one.items() if key not in ("text_column", "type")}
        found.append(
            _set(
                made,
                path,
                {"field": one.get("text_column"), **text, "type": "completion"},
                objective,
            )
        )
        made.note(path, *worded("axolotl_files.not-streamed"))
    kinds = list(dict.fromkeys(rows for _, rows in found))
    if len(kinds) > 1:
        made.refuse(
            ("datasets",),
            "Recipes do not mix rows of different kinds: text, conversations and preferences.",
        )
    kind = kinds[0] if kinds else "conversations"
    if kind != "conversations":
        made.say("data.form", kind)
    single = ("datasets" if sets else "pretraining_dataset", 0)
    made.say_sets([data for data, _ in found], *(single if len(found) == 1 else ("datasets",)))
    if made.get("train_on_inputs") and kind == "conversations":
        made.say("data.train_on", "all", "train_on_inputs")
    if kind != "text":
        _template(made, sets)
    if made.get("val_set_size") or kind != "text":
        made.hold_out("val_set_size", "val_set_size")
    return kind


def _template(made: Import, sets: list[Any]) -> None:
    if made.get("tokenizer_use_mistral_common"):
        made.say("data.chat_template", MISTRAL, "tokenizer_use_mistral_common")
        return
    named = made.get("chat_template")
    base = made.file.data["base_model"]
    if base in catalog.model_ids():
        facts = catalog.model(base)
    else:
        facts = None
    if facts and facts.chat_template:
        own = catalog.chat_template(facts.chat_template).axolotl
    else:
        own = None
    if named is None:
        templated = all(
            str(one.get("type")).startswith("chat_template")
            for one in sets
            if isinstance(one, dict)
        )
        made.say("data.chat_template", "tokenizer_default" if templated else "auto")
        return
    if named in ("chatml", "tokenizer_default"):
        known = named
    elif named == own:
        known = "auto"
    else:
        known = "tokenizer_default"
    made.say("data.chat_template", known, "chat_template")
    if known not in (named, "auto"):
        made.note(("chat_template",), *worded("axolotl_files.other-template", named=named))


def _set(
    made: Import, path: Path_, one: dict[str, Any], objective: str | None
) -> tuple[dict[str, Any], str]:
    """A data set as a recipe describes it, and the kind of its rows. path: of its lines in the
    file."""
    idle = table()["idle"]
    left = {
        key: value
        for key, value in one.items()
        if value is not None and value not in idle.get(key, ("",))
    }
    data = dict[str, Any]()
    source = str(left.pop("path", ""))
    files = left.pop("data_files", None)
    if isinstance(files, str):
        files = [files]
    else:
        files = files or []
    if len(files) == 1 and source in ("json", "csv", "parquet"):
        source = files[0]
        files = []
    local = source.startswith((".", "/", "~")) or re.search(
        r"\.(jsonl|json|csv|tsv|parquet|xlsx|txt)$", source
    )
    data["path" if local else "hub"] = source
    for theirs, ours in (("name", "subset"), ("split", "split"), ("revision", "revision")):
        value = left.pop(theirs, None)
        if value is not None and not local:
            data[ours] = value
    if files and "/" in source and not local:
        data["files"] = files
    elif files:
        made.refuse((*path, "data_files"), "Recipes name each file of this machine as a `path`.")
    written = left.pop("type", None)
    kind = str(written or "")
    rows = "conversations"
    named = isinstance(written, dict)
    style, _, ending = kind.replace(":", ".").partition(".")
    if objective == "ebft":
        rows = "prompts"
        columns = table()["features"].get(kind.removesuffix(".transform"))
        data |= columns or {}
        if columns is None:
            made.refuse(
                (*path, "type"),
                f"Recipes have no form for rows of the type `{kind}`.",
                "Convert the rows.",
            )
    elif objective:
        rows = "preferences"
        if objective == "kto":
            judged = "labels"
        else:
            judged = "preferences"
        columns = table()[judged].get(style if objective == "reward" else ending)
        if judged == rows and style == "chat_template" and ending in ("", "default"):
            turns = left.pop("field_messages", "messages")
            chosen = left.pop("field_chosen", "chosen")
            columns = [f"[{turns}]", f"[{chosen}]", f"[{left.pop('field_rejected', 'rejected')}]"]
            _shape(made, path, left, {"role": "role", "content": "content"})
        if not columns:
            made.refuse(
                (*path, "type"), f"Recipes have no form for preferences of the type `{kind}`."
            )
        else:
            data |= dict(zip(table()["judged"][judged], columns, strict=True))
    elif named or written is None:
        fields = written or {}
        if (
            not {"field_instruction", "field_output"} <= {*fields}
            or "format" in fields
            or "field_input" in fields
        ):
            made.refuse((*path, "type"), *worded("axolotl_files.own-form"))
        else:
            data |= {
                "question": f"[{fields['field_instruction']}]",
                "answer": f"[{fields['field_output']}]",
            }
            made.note((*path, "type"), OTHER_WORDS)
    elif style == "completion":
        rows, data["text"] = "text", left.pop("field", "text")
        made.note(
            (*path, "type"),
            "Recipes join texts, short ones too, and cut them into blocks of equal length.",
        )
    elif style == "chat_template" and not ending:
        turns = left.pop("field_messages", "messages")
        forms = table()["turns"]
        form = next((form for form, (column, _, _) in forms.items() if column == turns), None)
        if form is None:
            hint = (
                f"Rename the column to {listed((column for column, _, _ in forms.values()), 'or')}."
            )
            made.refuse(
                (*path, "field_messages"), f"Recipes read no turns from a column `{turns}`.", hint
            )
        else:
            data["form"] = form
            _shape(made, path, left, dict(zip(("role", "content"), forms[form][1:], strict=True)))
        if left.get("roles_to_train") == ["assistant"]:
            left.pop("roles_to_train")
        if left.pop("drop_system_message", False):
            data["drop_system"] = True
        thoughts = by_schema.part("lora", "data.thinking_field")["enum"]
        if left.get("field_thinking") == left.get("template_thinking_key") in thoughts:
            data["thinking_field"] = left.pop("field_thinking")
            left.pop("template_thinking_key")
    elif style in ("alpaca", "alpaca_chat"):
        data["form"] = "alpaca"
        made.note((*path, "type"), OTHER_WORDS)
    else:
        made.refuse(
            (*path, "type"),
            f"Recipes have no form for rows of the type `{kind}`.",
            "Convert the rows.",
        )
    for key in left:
        made.refuse((*path, key), f"Recipes have no line for `{key}` of a data set.")
    return data, rows


def _shape(made: Import, path: Path_, left: dict[str, Any], usual: dict[str, str]) -> None:
    """Refuses turns whose parts have other names than `usual`, by Axolotl's names for them."""
    names = {"role": "role", "content": "content"} | dict(left.pop("message_property_mappings", {}))
    names |= {
        part: named
        for part in ("role", "content")
        if (named := left.pop(f"message_field_{part}", None))
    }
    other = {key: name for key, name in names.items() if usual.get(key, key) != name}
    # The runner reads both spellings of a turn in either column.
    if other and [names.get("role"), names.get("content")] not in [
        form[1:] for form in table()["turns"].values()
    ]:
        made.refuse(
            (*path, "message_property_mappings"),
            f"Recipes read no turns with {listed(other.values())}.",
        )
    for role, words in (left.pop("roles", None) or {}).items():
        strange = [word for word in words if ROLES.get(word) != role]
        if strange:
            made.refuse((*path, "roles"), f"Recipes know no role {listed(strange)} of the {role}.")


def _machines(made: Import) -> None:
    deepspeed = str(made.file.data.get("deepspeed") or "")
    way = re.search("zero([123])", deepspeed)
    fsdp = made.file.data.get("fsdp_config")
    offloaded = ""
    if fsdp or made.file.data.get("fsdp"):
        if "fsdp_config" in made.file.data:
            key = "fsdp_config"
        else:
            key = "fsdp"
        named, few = (made.values.get(("train", line)) for line in ("optimizer", "eight_bit_base"))
        lacking = named and not catalog.optimizers()[named].sharded and not few
        made.say("distribution", "zero3" if lacking else "fsdp", key)
        if lacking:
            made.note((key,), *worded("axolotl_files.zero-for-fsdp", optimizer=named))
        if isinstance(fsdp, dict) and fsdp.get("offload_params"):
            offloaded = "all"
        else:
            offloaded = ""
    elif deepspeed and way:
        made.say("distribution", f"zero{way[1]}", key := "deepspeed")
        # Axolotl's own files have names such as zero3_bf16_cpuoffload_all.json.
        offloaded = deepspeed.partition("cpuoffload_")[2].partition(".")[0]
        if not deepspeed.startswith("deepspeed_configs/"):
            made.note(("deepspeed",), *worded("axolotl_files.own-deepspeed", way=way[1]))
    elif deepspeed:
        made.refuse_deepspeed(deepspeed)
    for part in {"all": ("optimizer", "weights"), "params": ("weights",)}.get(offloaded, ()):
        made.say(f"sharding.offload_{part}", "cpu", key)
    for name, part in by_schema.part("full", "sharding")["properties"].items():
        if "x-axolotl" in part:
            size = made.get(part["x-axolotl"])
        else:
            size = 1
        if size and size > 1:
            made.say(("sharding", name), size, name)
    made.name_gpu()


def judged(made: Import, changes: Iterable[Override] = ()) -> list[Problem]:
    """The recipe's errors after the changes, without those of its base model, which may be unknown
    here."""
    recipe, _ = validate.override(with_known_model(made.recipe), changes)
    return errors_of(validate.examined(recipe, allowed=validate.ALLOWED)[1])


def with_known_model(document: Document) -> Document:
    """The recipe with another base model, if the catalog does not have its own."""
    if document.data["model"]["base"] not in catalog.model_ids():
        lines = document.data["model"].get("attention"), document.data["data"].get("chat_template")
        known = table()["stand_ins"]
        document.data["model"]["base"] = next(
            (known[line] for line in lines if line in known), known["otherwise"]
        )
        for layers in ("lora_layers", "lora_pattern"):  # which the other one may not have
            if document.data["train"].get(layers):
                del document.data["train"][layers]
    return document
