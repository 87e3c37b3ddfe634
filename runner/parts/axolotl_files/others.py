"""A recipe from a file of LLaMA-Factory, and from a command line or configuration of TRL, by the
tables of others.toml."""

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from runner import catalog
from runner.check import by_schema
from runner.data.conversation_formats import ROLES
from runner.parts.axolotl_files import checking, importing
from runner.parts.axolotl_files.importing import Import
from runner.recipe import reading
from runner.recipe.document import Document, Span, path_of
from runner.tools.problem import Stop, listed

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
    # The offsets stay those of the file.
    on_one_line = re.sub(r"\\\r?\n", lambda cut: " " * len(cut[0]), text)
    shell_words = list[re.Match[str]]()
    for word in chain(WORD.finditer(on_one_line), [None]):
        if word and not word.lastgroup:
            shell_words.append(word)
        elif word is None or word.lastgroup == "end":
            document = _command(name, text, shell_words)
            if document:
                return document
            shell_words = []
    return None


def _command(name: str, text: str, shell_words: Sequence[re.Match[str]]) -> Document | None:
    """The settings of a command of the shell, if it starts TRL."""
    commands = "|".join(table()["trl"]["all-commands"])
    pattern = re.compile(rf"(?:trl )?({commands})(?:\.py)?")
    words = [word[0] for word in shell_words]
    for number, (word, next_word) in enumerate(zip_longest(words, words[1:]), 1):
        if word == "trl":
            program = f"trl {next_word}"
        else:
            program = Path(word).name
        command = pattern.fullmatch(program)
        if command and program != command[1]:
            return _settings(Document(name, text, {"command": command[1]}), shell_words, number)
    return None


def _settings(document: Document, shell_words: Sequence[re.Match[str]], first_own: int) -> Document:
    """The options of a command, and those of the launcher before it that recipes have.
    first_own: the number of the command's word, after which its own options begin."""
    key = ""
    for number, word in enumerate(shell_words, 1):
        line = document.text.rfind("\n", 0, word.start()) + 1
        row = document.text.count("\n", 0, word.start()) + 1
        span = Span(row, word.start() - line + 1, len(word[0]), word.start(), word.end())
        option, equals, value = word[0].partition("=")
        if number == first_own:
            document.keys["command",], key = span, ""
        elif option.startswith("--"):
            if option == "--config_file":
                key = "accelerate_config"
            else:
                key = option[2:].replace("-", "_")
            if number > first_own or key in table()["trl"]["launcher"]:
                document.keys[key.removeprefix("no_"),] = span
                document.data[key.removeprefix("no_")] = not key.startswith("no_")
        else:
            equals = "="
            value = word[0]
        if number == first_own or not equals or key not in document.data:
            continue
        if "$" in value and not value.startswith("'"):
            raise Stop(
                document.problem_at(
                    span,
                    f"`{value}` is a variable of the shell, and the recipe needs its value.",
                    "Write the value instead.",
                )
            )
        setting_value = reading.scalar("".join(shlex.split(value)))
        before = document.data[key]
        if before is True:
            document.data[key] = setting_value
        else:
            document.data[key] = [
                *(before if isinstance(before, list) else [before]),
                setting_value,
            ]
        document.values[key,] = span
    return document


def read(document: Document, name: str) -> Import:
    """The recipe that a trainer's file can become. name: of the trainer."""
    facts = table()[name]
    draft = Import(document, trainer=facts["title"])
    if not isinstance(document.data.get("model_name_or_path"), str):
        draft.refuse(
            ("model_name_or_path",), "The file names no model.", "Write `model_name_or_path`."
        )
    if name == "llama-factory":
        settings = _llama_factory
    else:
        settings = _trl
    adapter, rows, objective = settings(draft, facts)
    draft.begin("lora" if adapter else "causal-lm" if rows == "text" else "full")
    if objective:
        draft.say("train.objective", objective)
    if rows != "conversations":
        draft.say("data.form", "preferences" if objective else rows)
    for key, (setting, *default) in facts["settings"].items():
        _setting(draft, key, setting, default, "labels" if objective == "kto" else rows, facts)
    if draft.get("trust_remote_code") and draft.get("model_name_or_path") in catalog.model_ids():
        draft.values.pop(("model", "trust_remote_code"), None)
        draft.note(
            ("trust_remote_code",),
            "The code of this model is part of transformers, so the recipe runs none of the model's own.",
        )
    pure = draft.get("pure_bf16")
    if pure and by_schema.part(draft.values["scenario",], "model.master_weights"):
        draft.say("model.master_weights", "bf16", "pure_bf16")
    if document.data.get("bf16") is False:
        usual = "fp32"
    else:
        usual = facts["precision"]
    if pure:
        precision = "bf16"
    else:
        precision = next(
            (precision for precision in ("bf16", "fp16") if draft.get(precision)), usual
        )
    draft.say("model.precision", precision, precision)
    if not objective and rows != "text":
        key = next(
            (key for key in ("padding_free", "neat_packing", "packing") if draft.get(key)), ""
        )
        draft.say("train.packing", {"": "none", "padding_free": "flatten"}.get(key, "pack"), key)
    _curves(draft)
    _machines(draft)
    for key in facts["template"]:
        if draft.get(key) is not None and rows != "text":
            draft.note(
                (key,),
                "The recipe writes turns with the model's own chat template, whatever this line says.",
                "Compare with `recipe prepare`, which shows the first rows.",
            )
    draft.used.update(facts["unread"])
    draft.finish(facts["refused"], table()["runner"])
    return draft


def _setting(
    draft: Import,
    key: str,
    setting: str,
    default: Sequence[object],
    rows: str,
    facts: Mapping[str, Any],
) -> None:
    """One setting of the table, if recipes of this kind have it."""
    part = by_schema.part(draft.values["scenario",], setting)
    value = draft.get(key)
    written = draft.file.data.get(key) is not None
    objective = draft.values.get(("train", "objective"))
    if not part or rows not in part.get("x-rows", (rows,)):
        return
    if setting == "train.simpo_margin" and objective != "simpo":
        return
    if setting == "train.beta" and objective == "reward":
        return
    if written:
        renamed = facts.get("values", {}).get(key, {})
        value = renamed.get(str(value), value)
    else:
        usual = None
        if "x-default-if" not in part:
            usual = part.get("default")
        is_set = path_of(setting) in draft.values
        if is_set or not default or default[0] == usual:
            return
        value = default[0]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if setting == "train.warmup_steps":
        if not value:
            return
        draft.values.pop(("train", "warmup_ratio"), None)
        if isinstance(value, float):  # transformers 5 reads it as a share
            setting = "train.warmup_ratio"
    if setting == "train.optimizer":
        value = importing.table()["optimizers"].get(str(value), value)
    draft.choose(setting, value, key)


def _curves(draft: Import) -> None:
    tools = _names(draft.get("report_to", "none"))
    tools_of_recipes = by_schema.part("lora", "train.report_to")["enum"]
    tool = next((name for name in tools if name in tools_of_recipes), "tensorboard")
    draft.say("train.report_to", tool, "report_to")
    strange = [name for name in tools if name not in (*tools_of_recipes, "all")]
    if strange:
        draft.note(("report_to",), f"Recipes send no curves to {listed(strange)}.")


def _machines(draft: Import) -> None:
    """How GPUs share the work, by the name of DeepSpeed's file or of accelerate's."""
    key = next((key for key in ("deepspeed", "accelerate_config") if draft.get(key)), "fsdp")
    name = Path(str(draft.file.data.get(key) or "")).name
    zero = re.search(r"z(?:ero_?)?([0-3])", name)
    if zero:
        stage = zero[1]
        draft.say("distribution", "ddp" if stage == "0" else f"zero{stage}", key)
        if "offload" in name:
            draft.say("sharding.offload_optimizer", "cpu", key)
            if stage == "3":
                draft.say("sharding.offload_weights", "cpu", key)
    elif name and (key == "fsdp" or "fsdp" in name):
        draft.say("distribution", "fsdp", key)
    elif "multi_gpu" in name:
        draft.say("distribution", "ddp", key)
    elif key == "deepspeed":
        draft.refuse_deepspeed(name)
    elif name and "single_gpu" not in name:
        draft.note(
            (key,),
            f"The recipe does not read `{name}`.",
            "Write `distribution` if several GPUs share the work.",
        )
    draft.name_gpu()


def _names(value: object) -> list[str]:
    """Names in a list, or with commas between them."""
    if isinstance(value, list):
        names = list(map(str, value))
    else:
        names = str(value).split(",")
    return [name.strip() for name in names]


# --- LLaMA-Factory


def _llama_factory(draft: Import, facts: Mapping[str, Any]) -> tuple[bool, str, str | None]:
    """Whether the file trains an adapter, the kind of its rows, and its objective."""
    stage = draft.get("stage", "sft")
    finetuning_type = draft.get("finetuning_type", "lora")
    if stage == "dpo":
        loss = str(draft.get("pref_loss", "sigmoid"))
    elif stage in ("kto", "rm"):
        loss = stage
    else:
        loss = None
    for key, row in facts["allowed"].items():
        value = draft.get(key)
        if value is not None and value not in row["values"]:
            draft.refuse((key,), row["says"].format(value=value), row.get("do", ""))
    if loss and loss not in facts["objectives"]:
        draft.refuse(("pref_loss",), f"Recipes have no objective `{loss}`.")
    bits = draft.get("quantization_bit")
    if bits == 8:
        draft.say("train.eight_bit_base", True, "quantization_bit")
    if bits and draft.file.data.get("quantization_method") not in (None, "bnb", "BNB"):
        draft.refuse(("quantization_method",), "Recipes quantise with bitsandbytes.")
    if stage == "pt":
        rows = "text"
    elif loss:
        rows = "preferences"
    else:
        rows = "conversations"
    if finetuning_type == "lora":
        draft.say("train.adapter", "qlora" if bits == 4 else "lora", "quantization_bit")
        names = _names(draft.get("lora_target", "all"))
        if names != ["all"]:
            draft.say("train.lora_layers", names, "lora_target")
        if draft.file.data.get("lora_alpha") is None and draft.get("use_rslora"):
            rank = draft.get("lora_rank", 8)
            if isinstance(rank, int):
                rank *= 2
            draft.say("train.lora_alpha", rank)
    if draft.get("use_muon"):
        draft.say("train.optimizer", "muon", "use_muon")
    draft.say(
        "model.gradient_checkpointing", not draft.get("disable_gradient_checkpointing", False)
    )
    if rows == "conversations":
        on_prompts = draft.get("train_on_prompt")
        on_last_answer = draft.get("mask_history")
        if on_prompts or on_last_answer:
            draft.say(
                "data.train_on",
                "all" if on_prompts else "last",
                "train_on_prompt" if on_prompts else "mask_history",
            )
    if (
        stage == "sft"
        and draft.file.data.get("packing")
        and not draft.file.data.get("neat_packing")
    ):
        draft.note(
            ("packing",),
            "LLaMA-Factory lets joined rows see each other; the recipe keeps them apart.",
        )
    _described_sets(draft, rows, loss == "kto")
    draft.hold_out("val_size", rows)
    return finetuning_type == "lora", rows, facts["objectives"].get(loss) if loss else None


def _described_sets(draft: Import, rows: str, labelled: bool) -> None:
    """The data sets, as LLaMA-Factory's dataset_info.json describes them."""
    names = _names(draft.get("dataset", ""))
    folder = str(draft.get("dataset_dir", "data"))
    limit = draft.get("max_samples")
    places = [
        Path(folder),
        *(parent / folder for parent in Path(draft.file.file).absolute().parents),
    ]
    home = next((place for place in places if (place / "dataset_info.json").is_file()), None)
    if home is None:
        draft.refuse(
            ("dataset",),
            f"There is no `{folder}/dataset_info.json` here or in a folder above, which says what the data set `{names[0]}` is.",
            "Put LLaMA-Factory's file there, or name its folder in `dataset_dir`.",
        )
        return
    try:
        descriptions = json.loads((home / "dataset_info.json").read_text("utf-8"))
    except ValueError as error:
        draft.refuse(("dataset",), f"`{home}/dataset_info.json` is not JSON: {error}.")
        return
    sets = []
    if not isinstance(descriptions, dict):
        descriptions = {}
    for name in names:
        description = descriptions.get(name)
        if not isinstance(description, dict):
            draft.refuse(
                ("dataset",),
                f"`{home}/dataset_info.json` does not describe `{name}`.",
                "Add it there.",
            )
            continue
        data_set = _described(draft, name, description, home, rows, labelled)
        split = data_set.get("split", "train")
        if limit and ("path" in data_set or "[" in split):
            draft.note(
                ("max_samples",),
                f"The recipe reads all rows of `{name}`.",
                "Set `share` for a part.",
            )
        elif limit:
            data_set["split"] = f"{split}[:{limit}]"
        sets.append(data_set)
    if sets:
        draft.say_sets(sets, "dataset")


def _described(
    draft: Import, name: str, description: dict[str, object], home: Path, rows: str, labelled: bool
) -> dict[str, Any]:
    """A data set as a recipe describes it. description: its columns have defaults only if it names
    none."""
    source = description.get("hf_hub_url")
    if source:
        data = {"hub": source}
        for key in ("subset", "split"):
            if description.get(key):
                data[key] = description[key]
    else:
        file = description.get("file_name")
        from_recipe = os.path.relpath(home / str(file), Path(draft.file.file).parent)
        data = {"path": Path(from_recipe).as_posix()}
        if not file:
            draft.refuse(
                ("dataset",),
                f"Recipes read data sets of the Hugging Face hub and files, and `{name}` is neither.",
            )
    chat = description.get("formatting", "alpaca") != "alpaca"
    alpaca = table()["llama-factory"]["columns"]
    columns = description.get("columns") or ({} if chat else alpaca)
    tags = description.get("tags") or {}
    if not (isinstance(columns, dict) and isinstance(tags, dict)):
        draft.refuse(
            ("dataset",),
            f"`dataset_info.json` describes `{name}` by something other than sections.",
        )
        return {}
    for key in ("system", "tools", "history"):
        if columns.get(key) and not (key == "system" and chat):
            draft.refuse(("dataset",), f"Recipes read no column of {key}, and `{name}` has one.")
    for key in ("images", "videos", "audios"):
        if columns.get(key):
            draft.refuse(
                ("dataset",),
                f"Training on images or sound is not possible yet, and `{name}` has a column of {key}.",
            )
    question_columns = [columns[key] for key in ("prompt", "query") if columns.get(key)]
    question = "\n".join(f"[{column}]" for column in question_columns)
    turns = columns.get("messages", "conversations")
    forms = importing.table()["turns"]
    if chat:
        strange = []
        for role in ("user", "assistant", "system"):
            if ROLES.get(tags.get(f"{role}_tag", role)) != role:
                strange.append(role)
        names = [tags.get("role_tag", "from"), tags.get("content_tag", "value")]
        if strange or names not in [form[1:] for form in forms.values()]:
            draft.refuse(
                ("dataset",),
                f"Recipes read no turns with the names that `{name}` has for their parts or roles.",
                "Rename them to role and content, with user and assistant.",
            )
    if rows == "text":
        data["text"] = columns.get("prompt", "instruction")
    elif labelled:
        if chat:
            answer = f"[{turns}]"
        else:
            answer = f"[{columns.get('response', 'output')}]"
        data |= {
            "prompt": answer if chat else question,
            "completion": answer,
            "label": f"[{columns.get('kto_tag')}]",
        }
    elif rows == "preferences":
        data["prompt"] = f"[{turns}]" if chat else question
        for key in ("chosen", "rejected"):
            data[key] = f"[{columns.get(key, key)}]"
    elif chat:
        form = next((form for form, names in forms.items() if names[0] == turns), None)
        if form is None:
            draft.refuse(
                ("dataset",),
                f"Recipes read no turns from a column `{turns}`.",
                f"`{name}` has them there.",
            )
        else:
            data["form"] = form
    elif columns == alpaca:
        data["form"] = "alpaca"
    else:
        data |= {"question": question, "answer": f"[{columns.get('response', 'output')}]"}
    return data


# --- TRL


def _trl(draft: Import, facts: Mapping[str, Any]) -> tuple[bool, str, str | None]:
    """Whether the file trains an adapter, the kind of its rows, and its objective."""
    keys = draft.file.data.keys()
    command = draft.get("command")
    if not command:
        commands = (name for name, settings in facts["commands"].items() if keys & set(settings))
        command = next(commands, "sft")
    command = str(command)
    if command == "dpo":
        loss = draft.get("loss_type", "sigmoid")
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
        draft.refuse(("loss_type",), f"Recipes have no objective `{loss}`.")
    elif objective is None and command == "grpo":
        draft.refuse(
            ("command",),
            "The rewards of `trl grpo` are functions in Python, and recipes describe them in `rewards`.",
            "Start from a copy: `recipe new my-rewards --from arithmetic`.",
        )
    elif objective is None:
        draft.refuse(
            ("command",),
            f"Recipes cannot say `trl {command}`.",
            "They can say sft, dpo, kto, orpo, cpo and reward.",
        )
    adapter = bool(draft.get("use_peft"))
    if adapter:
        draft.say("train.adapter", "qlora" if draft.get("load_in_4bit") else "lora", "load_in_4bit")
        if draft.get("load_in_8bit"):
            draft.say("train.eight_bit_base", True, "load_in_8bit")
        layers = draft.get("lora_target_modules")
        if layers is None:
            draft.name_no_layers()
        elif layers not in ("all-linear", ["all-linear"]):
            draft.say("train.lora_layers", _names(layers), "lora_target_modules")
    if command in facts["rates"] and draft.get("learning_rate") is None:
        draft.say("train.learning_rate", facts["rates"][command])
    _trl_sets(draft, rows)
    if rows == "conversations":
        if not draft.get("assistant_only_loss"):
            draft.say("data.train_on", "all")
        draft.note(
            (),
            "TRL chooses the form of the rows by their columns, and so does the recipe.",
            "TRL trains on every turn unless `assistant_only_loss` is set, and so does the recipe; of a prompt and its completion, TRL trains the completion: `--set data.train_on=assistant`.",
        )
    return adapter, rows, objective


def _trl_sets(draft: Import, rows: str) -> None:
    """The data set of `dataset_name`, or the mixture of `datasets`."""
    names = {"dataset_name": "path", "dataset_config": "name", "dataset_train_split": "split"}
    single = {theirs: draft.get(key) for key, theirs in names.items()}
    written_sets = draft.get("datasets")
    mixture = []
    if isinstance(written_sets, list):
        mixture = [entry for entry in written_sets if isinstance(entry, dict)]
    elif written_sets:
        draft.refuse(("datasets",), "This is not a list of data sets.")
    sets = list[dict[str, Any]]()
    ours = {"name": "subset", "split": "split", "fraction": "share"}
    for entry in mixture or [single]:
        source = str(entry.get("path") or "")
        is_local = source.startswith((".", "/", "~"))
        data_set = {"path" if is_local else "hub": source}
        for key, name in ours.items():
            if entry.get(key):
                data_set[name] = entry[key]
        sets.append(data_set)
        for key in ("data_files", "data_dir", "columns"):
            if entry.get(key):
                draft.refuse(("datasets",), f"Recipes have no `{key}` of a data set.")
    draft.say_sets(sets, "datasets" if mixture else "dataset_name")
    if not single["path"] and not mixture:
        draft.refuse((), "The file names no data set.", "Write `dataset_name`.")
    draft.hold_out("test_split_size", rows)
