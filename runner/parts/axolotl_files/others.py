"""A recipe from a file of LLaMA-Factory, and from a command line or configuration of TRL, by the
tables of others.toml."""

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from runner import catalog
from runner.check import by_schema
from runner.data.conversation_formats import ROLES
from runner.parts.axolotl_files import checking, importing
from runner.parts.axolotl_files.importing import Import
from runner.recipe import reading
from runner.recipe.document import Document, Span, path_of
from runner.tools.problem import Stop, listed, worded

# A comment of a shell script, what ends a command, or a word of one; the backslashes at the ends of
# its lines are blanks by then.
WORD = re.compile(
    r"""(?P<comment>(?:^|(?<=\s))\#[^\n]*)|(?P<end>\n|\d?[;&|<>]+)|(?:'[^']*'|"[^"]*"|[^\s'";&|<>])+"""
)
table = partial(checking.table, "others")


def trainer(document: Document) -> str | None:
    """The trainer that a file is for, by its keys; None if it is neither LLaMA-Factory's nor
    TRL's."""
    if "scenario" in document.data or "model_name_or_path" not in document.data:
        return None
    ours = table()["llama-factory"]["keys"]
    if document.data.keys() & {*ours}:
        return "llama-factory"
    return "trl"


def command_line(name: str, text: str) -> Document | None:
    """The settings of the first command of TRL in a shell script; None if there is none. Raises
    Stop if a value is a variable of the shell."""
    words = list[re.Match[str]]()
    for word in chain(
        WORD.finditer(re.sub(r"\\\r?\n", lambda cut: " " * len(cut[0]), text)), [None]
    ):
        if word and not word.lastgroup:
            words.append(word)
        elif word is None or word.lastgroup == "end":
            for at, (before, now) in enumerate(pairwise([*words, *words[-1:]]), 1):
                if before[0] == "trl":
                    named = f"{before[0]} {now[0]}"
                else:
                    named = Path(before[0]).name
                command = re.fullmatch(
                    rf"(?:trl )?({'|'.join(table()['trl']['all-commands'])})(?:\.py)?", named
                )
                if command and named != command[1]:
                    return _settings(Document(name, text, {"command": command[1]}), words, at)
            words = []
    return None


def _settings(document: Document, words: Sequence[re.Match[str]], at: int) -> Document:
    """The options of a command, and those of the launcher before it that recipes have. at: where
    its own begin."""
    key = ""
    for number, word in enumerate(words, 1):
        line = document.text.rfind("\n", 0, word.start()) + 1
        row = document.text.count("\n", 0, word.start()) + 1
        span = Span(row, word.start() - line + 1, len(word[0]), word.start(), word.end())
        option, equals, value = word[0].partition("=")
        if number == at:
            document.keys["command",], key = span, ""
        elif option.startswith("--"):
            if option == "--config_file":
                key = "accelerate_config"
            else:
                key = option[2:].replace("-", "_")
            if number > at or key in table()["trl"]["launcher"]:
                document.keys[key.removeprefix("no_"),] = span
                document.data[key.removeprefix("no_")] = not key.startswith("no_")
        else:
            equals = "="
            value = word[0]
        if number == at or not equals or key not in document.data:
            continue
        if "$" in value and not value.startswith("'"):
            raise Stop(
                document.problem_at(span, *worded("axolotl_files.shell-variable", value=value))
            )
        one = reading.scalar("".join(shlex.split(value)))
        before = document.data[key]
        if before is True:
            document.data[key] = one
        else:
            document.data[key] = [*(before if isinstance(before, list) else [before]), one]
        document.values[key,] = span
    return document


def read(document: Document, name: str) -> Import:
    """The recipe that a trainer's file can become. name: of the trainer."""
    facts = table()[name]
    made = Import(document, trainer=facts["title"])
    if not isinstance(document.data.get("model_name_or_path"), str):
        made.refuse(
            ("model_name_or_path",), "The file names no model.", "Write `model_name_or_path`."
        )
    if name == "llama-factory":
        settings = _llama_factory
    else:
        settings = _trl
    adapter, rows, objective = settings(made, facts)
    made.begin("lora" if adapter else "causal-lm" if rows == "text" else "full")
    if objective:
        made.say("train.objective", objective)
    if rows != "conversations":
        made.say("data.form", "preferences" if objective else rows)
    for key, (setting, *default) in facts["settings"].items():
        _setting(made, key, setting, default, "labels" if objective == "kto" else rows, facts)
    if made.get("trust_remote_code") and made.get("model_name_or_path") in catalog.model_ids():
        made.values.pop(("model", "trust_remote_code"), None)
        made.note(("trust_remote_code",), *worded("axolotl_files.no-own-code"))
    pure = made.get("pure_bf16")
    if pure and by_schema.part(made.values["scenario",], "model.master_weights"):
        made.say("model.master_weights", "bf16", "pure_bf16")
    if document.data.get("bf16") is False:
        usual = "fp32"
    else:
        usual = facts["precision"]
    if pure:
        kind = "bf16"
    else:
        kind = next((kind for kind in ("bf16", "fp16") if made.get(kind)), usual)
    made.say("model.precision", kind, kind)
    if not objective and rows != "text":
        key = next(
            (key for key in ("padding_free", "neat_packing", "packing") if made.get(key)), ""
        )
        made.say("train.packing", {"": "none", "padding_free": "flatten"}.get(key, "pack"), key)
    _curves(made)
    _machines(made)
    for key in facts["template"]:
        if made.get(key) is not None and rows != "text":
            made.note((key,), *worded("axolotl_files.own-template"))
    made.used.update(facts["unread"])
    made.finish(facts["refused"], table()["runner"])
    return made


def _setting(
    made: Import,
    key: str,
    setting: str,
    default: Sequence[Any],
    rows: str,
    facts: Mapping[str, Any],
) -> None:
    """One setting of the table, if recipes of this kind have it."""
    part = by_schema.part(made.values["scenario",], setting)
    value = made.get(key)
    written = made.file.data.get(key) is not None
    objective = made.values.get(("train", "objective"))
    idle = {"train.simpo_margin": objective != "simpo", "train.beta": objective == "reward"}.get(
        setting
    )
    if not part or idle or rows not in part.get("x-rows", (rows,)):
        return
    said = path_of(setting) in made.values
    if "x-default-if" not in part:
        usual = part.get("default")
    else:
        usual = None
    if not written and (said or not default or default[0] == usual):
        return
    if not written:
        value = default[0]
    else:
        value = facts.get("values", {}).get(key, {}).get(str(value), value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if setting == "train.warmup_steps":
        if not value:
            return
        made.values.pop(("train", "warmup_ratio"), None)
        if isinstance(value, float):  # transformers 5 reads it as a share
            setting = "train.warmup_ratio"
    if setting == "train.optimizer":
        value = importing.table()["optimizers"].get(str(value), value)
    made.choose(setting, value, key)


def _curves(made: Import) -> None:
    tools = _names(made.get("report_to", "none"))
    known = by_schema.part("lora", "train.report_to")["enum"]
    tool = next((one for one in tools if one in known), "tensorboard")
    made.say("train.report_to", tool, "report_to")
    strange = [one for one in tools if one not in (*known, "all")]
    if strange:
        made.note(("report_to",), f"Recipes send no curves to {listed(strange)}.")


def _machines(made: Import) -> None:
    """How GPUs share the work, by the name of DeepSpeed's file or of accelerate's."""
    key = next((key for key in ("deepspeed", "accelerate_config") if made.get(key)), "fsdp")
    name = Path(str(made.file.data.get(key) or "")).name
    way = re.search(r"z(?:ero_?)?([0-3])", name)
    if way:
        made.say("distribution", f"zero{way[1]}" if way[1] != "0" else "ddp", key)
        if "offload" in name:
            for part in ("optimizer", "weights") if way[1] == "3" else ("optimizer",):
                made.say(f"sharding.offload_{part}", "cpu", key)
    elif name and (key == "fsdp" or "fsdp" in name):
        made.say("distribution", "fsdp", key)
    elif "multi_gpu" in name:
        made.say("distribution", "ddp", key)
    elif key == "deepspeed":
        made.refuse_deepspeed(name)
    elif name and "single_gpu" not in name:
        made.note(
            (key,),
            f"The recipe does not read `{name}`.",
            "Write `distribution` if several GPUs share the work.",
        )
    made.name_gpu()


def _names(value: Any) -> list[str]:
    """Names in a list, or with commas between them."""
    return [
        str(one).strip() for one in (value if isinstance(value, list) else str(value).split(","))
    ]


# --- LLaMA-Factory


def _llama_factory(made: Import, facts: Mapping[str, Any]) -> tuple[bool, str, str | None]:
    """Whether the file trains an adapter, the kind of its rows, and its objective."""
    stage = made.get("stage", "sft")
    kind = made.get("finetuning_type", "lora")
    if stage == "dpo":
        loss = str(made.get("pref_loss", "sigmoid"))
    elif stage in ("kto", "rm"):
        loss = stage
    else:
        loss = None
    for key, row in facts["allowed"].items():
        value = made.get(key)
        if value is not None and value not in row["values"]:
            made.refuse((key,), row["says"].format(value=value), row.get("do", ""))
    if loss and loss not in facts["objectives"]:
        made.refuse(("pref_loss",), f"Recipes have no objective `{loss}`.")
    bits = made.get("quantization_bit")
    if bits == 8:
        made.say("train.eight_bit_base", True, "quantization_bit")
    if bits and made.file.data.get("quantization_method") not in (None, "bnb", "BNB"):
        made.refuse(("quantization_method",), "Recipes quantise with bitsandbytes.")
    if stage == "pt":
        rows = "text"
    elif loss:
        rows = "preferences"
    else:
        rows = "conversations"
    if kind == "lora":
        made.say("train.adapter", "qlora" if bits == 4 else "lora", "quantization_bit")
        names = _names(made.get("lora_target", "all"))
        if names != ["all"]:
            made.say("train.lora_layers", names, "lora_target")
        if made.file.data.get("lora_alpha") is None and made.get("use_rslora"):
            made.say(
                "train.lora_alpha",
                2 * rank if isinstance(rank := made.get("lora_rank", 8), int) else rank,
            )
    if made.get("use_muon"):
        made.say("train.optimizer", "muon", "use_muon")
    made.say("model.gradient_checkpointing", not made.get("disable_gradient_checkpointing", False))
    if rows == "conversations":
        every = made.get("train_on_prompt")
        last = made.get("mask_history")
        if every or last:
            made.say(
                "data.train_on",
                "all" if every else "last",
                "train_on_prompt" if every else "mask_history",
            )
    if stage == "sft" and made.file.data.get("packing") and not made.file.data.get("neat_packing"):
        made.note(
            ("packing",),
            "LLaMA-Factory lets joined rows see each other; the recipe keeps them apart.",
        )
    _described_sets(made, rows, loss == "kto")
    made.hold_out("val_size")
    return kind == "lora", rows, facts["objectives"].get(loss) if loss else None


def _described_sets(made: Import, rows: str, labelled: bool) -> None:
    """The data sets, as LLaMA-Factory's dataset_info.json describes them."""
    names = _names(made.get("dataset", ""))
    folder = str(made.get("dataset_dir", "data"))
    limit = made.get("max_samples")
    places = [Path(folder), *(above / folder for above in Path(made.file.file).absolute().parents)]
    home = next((place for place in places if (place / "dataset_info.json").is_file()), None)
    if home is None:
        made.refuse(
            ("dataset",), *worded("axolotl_files.no-descriptions", folder=folder, name=names[0])
        )
        return
    try:
        known = json.loads((home / "dataset_info.json").read_text("utf-8"))
    except ValueError as error:
        made.refuse(("dataset",), f"`{home}/dataset_info.json` is not JSON: {error}.")
        return
    sets = []
    for name in names:
        if not isinstance(known, dict) or not isinstance(known.get(name), dict):
            made.refuse(
                ("dataset",),
                f"`{home}/dataset_info.json` does not describe `{name}`.",
                "Add it there.",
            )
        else:
            sets.append(_described(made, name, known[name], home, rows, labelled))
            if limit and ("path" in sets[-1] or "[" in sets[-1].get("split", "")):
                made.note(
                    ("max_samples",),
                    f"The recipe reads all rows of `{name}`.",
                    "Set `share` for a part.",
                )
            elif limit:
                sets[-1]["split"] = f"{sets[-1].get('split', 'train')}[:{limit}]"
    if sets:
        made.say_sets(sets, "dataset")


def _described(
    made: Import, name: str, one: dict[str, Any], home: Path, rows: str, labelled: bool
) -> dict[str, Any]:
    """A data set as a recipe describes it. one: its description, whose columns have defaults only
    if it names none."""
    source = one.get("hf_hub_url")
    data = {"hub": source}
    if not source:
        data = {
            "path": os.path.relpath(home / str(one.get("file_name")), Path(made.file.file).parent)
        }
    if not source and not one.get("file_name"):
        made.refuse(
            ("dataset",),
            f"Recipes read data sets of the Hugging Face hub and files, and `{name}` is neither.",
        )
    data |= {key: one[key] for key in ("subset", "split") if source and one.get(key)}
    chat = one.get("formatting", "alpaca") != "alpaca"
    alpaca = table()["llama-factory"]["columns"]
    columns = one.get("columns") or ({} if chat else alpaca)
    tags = one.get("tags") or {}
    if not (isinstance(columns, dict) and isinstance(tags, dict)):
        made.refuse(
            ("dataset",),
            f"`dataset_info.json` describes `{name}` by something other than sections.",
        )
        return {}
    for key in ("system", "tools", "images", "videos", "audios", "history"):
        if columns.get(key) and not (key == "system" and chat):
            made.refuse(("dataset",), f"Recipes read no column of {key}, and `{name}` has one.")
    asked = "\n".join(f"[{columns[key]}]" for key in ("prompt", "query") if columns.get(key))
    turns = columns.get("messages", "conversations")
    forms = importing.table()["turns"]
    if chat:
        strange = [
            role
            for role in ("user", "assistant", "system")
            if ROLES.get(tags.get(f"{role}_tag", role)) != role
        ]
        names = [tags.get("role_tag", "from"), tags.get("content_tag", "value")]
        if strange or names not in [form[1:] for form in forms.values()]:
            made.refuse(("dataset",), *worded("axolotl_files.other-turns", name=name))
    if rows == "text":
        data["text"] = columns.get("prompt", "instruction")
    elif labelled:
        if chat:
            answer = f"[{turns}]"
        else:
            answer = f"[{columns.get('response', 'output')}]"
        data |= {
            "prompt": answer if chat else asked,
            "completion": answer,
            "label": f"[{columns.get('kto_tag')}]",
        }
    elif rows == "preferences":
        pair = {key: f"[{columns.get(key, key)}]" for key in ("chosen", "rejected")}
        data |= {"prompt": f"[{turns}]" if chat else asked} | pair
    elif chat:
        form = next((form for form, (column, _, _) in forms.items() if column == turns), None)
        if form is None:
            made.refuse(
                ("dataset",),
                f"Recipes read no turns from a column `{turns}`.",
                f"`{name}` has them there.",
            )
        else:
            data["form"] = form
    elif columns == alpaca:
        data["form"] = "alpaca"
    else:
        data |= {"question": asked, "answer": f"[{columns.get('response', 'output')}]"}
    return data


# --- TRL


def _trl(made: Import, facts: Mapping[str, Any]) -> tuple[bool, str, str | None]:
    """Whether the file trains an adapter, the kind of its rows, and its objective."""
    keys = made.file.data.keys()
    meant = (name for name, own in facts["commands"].items() if keys & {*own})
    command = str(made.get("command") or next(meant, "sft"))
    if command == "dpo":
        loss = made.get("loss_type", "sigmoid")
    else:
        loss = command
    objectives = facts["objectives" if command == "dpo" else "other-objectives"]
    rows = "preferences"
    objective = objectives.get("".join(_names(loss)))
    if command == "sft":
        if "dataset_text_field" in keys:
            rows = "text"
        else:
            rows = "conversations"
    elif objective is None and command == "dpo":
        made.refuse(("loss_type",), f"Recipes have no objective `{loss}`.")
    elif objective is None:
        rewarded = worded("axolotl_files.grpo-command")
        other = worded("axolotl_files.other-command", command=command)
        made.refuse(("command",), *(rewarded if command == "grpo" else other))
    adapter = bool(made.get("use_peft"))
    if adapter:
        made.say("train.adapter", "qlora" if made.get("load_in_4bit") else "lora", "load_in_4bit")
        if made.get("load_in_8bit"):
            made.say("train.eight_bit_base", True, "load_in_8bit")
        layers = made.get("lora_target_modules")
        if layers is None:
            made.name_no_layers()
        elif layers not in ("all-linear", ["all-linear"]):
            made.say("train.lora_layers", _names(layers), "lora_target_modules")
    if command in facts["rates"] and made.get("learning_rate") is None:
        made.say("train.learning_rate", facts["rates"][command])
    _trl_sets(made)
    if rows == "conversations":
        if not made.get("assistant_only_loss"):
            made.say("data.train_on", "all")
        made.note((), *worded("axolotl_files.form-by-columns"))
    return adapter, rows, objective


def _trl_sets(made: Import) -> None:
    """The data set of `dataset_name`, or the mixture of `datasets`."""
    names = {"dataset_name": "path", "dataset_config": "name", "dataset_train_split": "split"}
    single = {theirs: made.get(key) for key, theirs in names.items()}
    named = made.get("datasets")
    if isinstance(named, list):
        mixture = [one for one in named if isinstance(one, dict)]
    else:
        mixture = []
    if named and not isinstance(named, list):
        made.refuse(("datasets",), "This is not a list of data sets.")
    sets = list[dict[str, Any]]()
    ours = {"name": "subset", "split": "split", "fraction": "share"}
    for one in mixture or [single]:
        source = str(one.get("path") or "")
        data = {"path" if source.startswith((".", "/", "~")) else "hub": source}
        sets.append(data | {name: one[key] for key, name in ours.items() if one.get(key)})
        for key in ("data_files", "data_dir", "columns"):
            if one.get(key):
                made.refuse(("datasets",), f"Recipes have no `{key}` of a data set.")
    made.say_sets(sets, "datasets" if mixture else "dataset_name")
    if not single["path"] and not mixture:
        made.refuse((), "The file names no data set.", "Write `dataset_name`.")
    made.hold_out("test_split_size")
