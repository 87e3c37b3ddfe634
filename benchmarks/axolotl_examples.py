"""What recipe-runner makes of Axolotl's own examples: what `check` finds in each, and whether an
imported recipe comes back as the same configuration. `python benchmarks/axolotl_examples.py
FOLDER`, with the folder `examples` of Axolotl's source package (`pip download --no-binary axolotl
--no-deps axolotl==VERSION`), writes `benchmarks/axolotl-examples.json`. With names of examples
behind the folder, it rehearses these, which takes minutes for each.

Two configurations are the same if Axolotl, after its own validation, has the same value for every
setting except those that `runner/parts/axolotl_files/mapping.toml` leaves to the runner, and the
data sets, which the runner prepares.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this clone's package, not an installed one

from runner import catalog
from runner.check import batch, validate
from runner.check.validate import override, valid
from runner.parts.axolotl_files import checking, commands, importing
from runner.parts.planner.parameters import has_formulas
from runner.parts.planner.planned import Planned
from runner.recipe import reading
from runner.recipe.recipe import PROMPTS, TEXT, Override
from runner.scenarios import place, translate
from runner.tools.problem import Stop, errors_of, shortened
from tests.catalog.axolotls_own import validated

TABLE = Path(__file__).with_name("axolotl-examples.json")
# Ours, the model, which may be another one here, and what Axolotl computes from the others.
ASIDE = {
    "test_datasets",
    "recipe_runner",
    "plugins",
    "base_model",
    "capabilities",
    "env_capabilities",
    "chat_template",
    "eot_tokens",
    "chat_template_jinja",
}
# Values that mean the same, by setting: Axolotl's default where nothing is written, and its names.
SAME: dict[str, list[list[Any]]] = {
    "bf16": [[True, "auto"], [False, None]],
    "fp16": [[False, None]],
    "attn_implementation": [["sdpa", None]],
    "optimizer": [["adamw_bnb_8bit", "adamw_8bit"]],
    "warmup_ratio": [[0.03, None]],
    "max_grad_norm": [[1.0, None]],
    "seed": [[42, None]],
    "tf32": [[True, "auto"]],
    "save_total_limit": [[4, None]],
    "logging_steps": [[10, None]],
    "ddp_bucket_cap_mb": [[25, None]],
    "dpo_loss_type": [[["sigmoid"], None]],
    "rl_beta": [[0.1, None]],
    "kto_desirable_weight": [[1.0, None]],
    "kto_undesirable_weight": [[1.0, None]],
}


# Recipes run a model's own code only at a full commit. Examples name none, so one is named for
# them: `--set model.revision=COMMIT`.
COMMIT = [Override("model.revision", None, "0" * 40)]


def compared(text: str, made: importing.Import, changes: Sequence[Override] = ()) -> list[str]:
    """The settings, apart from the changes', in which an example and the recipe made of it differ
    for Axolotl. Raises what its validation raises."""
    from axolotl.integrations.base import PluginManager

    # Axolotl only asks whether ring attention's package is there, which can only be built beside a
    # GPU.
    sys.modules.setdefault("ring_flash_attn", ModuleType("ring_flash_attn"))
    document, _ = override(importing.with_known_model(made.recipe), changes)
    recipe, _ = valid(document)
    plan = translate(recipe, place(recipe))
    gpu = catalog.gpu(importing.GPU)
    assert gpu
    both = []
    for config in (yaml.safe_load(text), json.loads(json.dumps(plan.stage("train").config))):
        PluginManager._instance = None
        both.append(validated(config, gpu, 1))
    if recipe.rows == PROMPTS:  # answers end where a turn does, as `eot_tokens` say elsewhere
        (both[1].get("special_tokens") or {}).pop("eos_token", None)
    if stops := recipe.settings["train"].get("early_stopping"):  # which the runner's plug-in does
        both[1]["early_stopping_patience"] = stops.patience
    # Blocks of text are always full, and Axolotl chooses the kind of ring attention by the packing.
    filled = (
        {"sample_packing", "pad_to_sequence_len", "ring_attn_func"}
        if recipe.rows == TEXT
        else set()
    )
    found = {*differing(both[0], both[1], recipe.facts.linear)} - filled
    # Layers and how weights are stored belong to the example's own model, and the recipe leaves
    # them as they are.
    stored = {"model_quantization_config", "model_quantization_config_kwargs"} - {
        *yaml.safe_load(text)
    }
    layers = (
        {"lora_target_modules"}
        if {("train", "lora_layers"), ("train", "lora_pattern")} & {*made.values}
        else set()
    )
    found -= outside_of_text(recipe.facts, *both)
    replaced = recipe.model.base != made.values["model", "base"]
    return sorted(
        found
        - (stored | layers if replaced else set())
        - ({"revision_of_model"} if changes else set())
    )


def outside_of_text(
    model: catalog.Model, theirs: Mapping[str, Any], ours: Mapping[str, Any]
) -> set[str]:
    """The settings that differ only outside the half for text, of a model that also sees: rows of
    text train nothing there."""
    if not model.sees:
        return set()
    alike = set()
    pattern = ours.get("lora_target_modules")
    names = theirs.get("lora_target_modules") or ()
    if theirs.get("lora_target_linear"):
        names = (*names, *model.linear)
    chosen = {name.rpartition(".")[2] for name in names}
    if isinstance(pattern, str) and {*model.named(pattern)} == chosen:
        alike |= {"lora_target_modules", "lora_target_linear"}
    unfrozen = theirs.get("unfrozen_parameters") or ()
    roots = {importing.unfrozen_root(entry) for entry in unfrozen}
    if roots <= {model.root, model.lm_head.removesuffix(".weight")}:
        alike.add("unfrozen_parameters")
    return alike


def own_model(made: importing.Import, changes: Sequence[Override]) -> str:
    """How far the recipe gets with the example's own model: how it is planned, or why not."""
    if made.values["model", "base"] not in catalog.model_ids():
        return "not in the catalog"
    document, _ = override(made.recipe, changes)
    recipe, problems = validate.examined(document, allowed=validate.ALLOWED)
    if recipe is None or errors_of(problems):
        return "refused by check"
    if not has_formulas(recipe.facts.model_type):
        return "planned by a trace"
    Planned.of(recipe)
    return "planned by formulas"


def differing(theirs: Mapping[str, Any], ours: Mapping[str, Any], every: Any = ()) -> list[str]:
    """every: the names of all linear layers, which is what `lora_target_linear` means."""
    left = ASIDE | {
        key for group in importing.table()["runner"].values() for key in group["settings"]
    }
    found = []
    for key in {
        key
        for key in {*theirs, *ours} - left
        if not key.startswith("attn_") or key == "attn_implementation"
    }:
        one, other = _plain(theirs.get(key)), _plain(ours.get(key))
        alike = any(one in same and other in same for same in SAME.get(key, ()))
        if key in ("lora_target_modules", "lora_target_linear") and theirs.get(
            "lora_target_linear"
        ):
            alike = {*(ours.get("lora_target_modules") or ())} >= {*every}
        if key == "lora_target_modules" and isinstance(one, list) and isinstance(other, list):
            alike = {*one} == {*other} or alike
        if (
            one != other
            and not alike
            and not (one in (None, False, [], {}) and other in (None, False, [], {}))
        ):
            found.append(key)
    return found


def _plain(value: Any) -> Any:
    plain = json.loads(json.dumps(value, default=str))
    return (
        {key: one for key, one in plain.items() if key != "pad_token"}
        if isinstance(plain, dict)
        else plain
    )


def row(file: Path) -> dict[str, Any]:
    """The table's entry of an example."""
    text = file.read_text("utf-8")
    document = reading.read(file)
    refused, dropped = checking.faults(document)
    faults = [
        {"line": one.line, "key": one.source.split(":")[0].strip(), "message": one.message}
        for one in (*refused, *errors_of(list(dropped.values())))
    ]
    found: dict[str, Any] = {"faults": faults} if faults else {}
    if refused:
        return found | {"outcome": "refused by Axolotl"}
    made = importing.read(document)
    problems, changes = made.refused or commands.judged(made), list[Override]()
    if problems and not made.refused and not commands.judged(made, COMMIT):
        problems, changes = [], COMMIT
    if problems:
        keys = dict.fromkeys(
            one.source.split(":")[0].strip().removeprefix("- ") or one.message for one in problems
        )
        return found | {"outcome": "no recipe can say it", "settings": sorted(keys)}
    try:
        different = compared(text, made, changes)
    except Exception as error:
        return found | {"outcome": "not comparable here", "why": shortened(f"{error}", 300)}
    changed = {one.source.split(":")[0].strip().removeprefix("- ") for one in made.notes}
    if made.values.get(("data", "form"), "") == "text":
        changed = changed - {"type"} | {"text"}
    rows = {"rows": sorted(changed & {"type", "text", "chat_template", "val_set_size"})}
    alike = {"outcome": "the same, with a commit named" if changes else "the same"}
    found |= rows | {"own model": own_model(made, changes)}
    return found | ({"outcome": "differs", "settings": different} if different else alike)


def examined(folder: Path) -> dict[str, dict[str, Any]]:
    files = sorted(file for file in folder.rglob("*.y*ml") if batch.is_meant(file))
    return {str(file.relative_to(folder)): row(file) for file in files}


def as_page(files: Mapping[str, Mapping[str, Any]]) -> str:
    """The tables of docs/axolotl.md."""
    outcomes = [one["outcome"] for one in files.values()]
    lines = ["| outcome | files |", "|---|---|"]
    lines += [
        f"| {name} | {outcomes.count(name)} |"
        for name in sorted({*outcomes}, key=outcomes.count, reverse=True)
    ]
    differ = outcomes.count("differs")
    alike = [one for one in files.values() if one["outcome"].startswith("the same")]
    words = [one for one in files.values() if "processor_type" not in one.get("settings", ())]
    taken = [one for one in words if one["outcome"] != "refused by Axolotl"]
    other = {
        key: sum(key in one["rows"] for one in alike)
        for key in ("type", "text", "chat_template", "val_set_size")
    }
    lines += [
        "",
        f"{len(alike)} come back the same: {len(alike) / len(files):.1%} of all, {len(alike) / len(words):.0%} of the {len(words)} that need no images or sound, and "
        f"{len(alike) / len(taken):.0%} of the {len(taken)} of these that Axolotl takes. In {other['type']} of them, the rows are written in the chat template's words instead of the example's own.",
        f"In {other['text']}, texts fill blocks of equal length instead of being packed or streamed.",
        f"{other['chat_template']} use the tokenizer's own template. {other['val_set_size']} hold out one row of 1,000 for validation, where the example holds out none.",
        *(
            [
                f"{differ} differ: their model reads across packed rows, so the recipe pads rows instead."
            ]
            if differ
            else []
        ),
        *_own_models(files.values()),
        "",
        "| setting in the way | files | alone |",
        "|---|---|---|",
    ]
    stuck = [one["settings"] for one in files.values() if one["outcome"] == "no recipe can say it"]
    counted = {key: sum(key in one for one in stuck) for one in stuck for key in one}
    alone = {key: sum(one == [key] for one in stuck) for key in counted}
    for key in sorted(counted, key=lambda key: (-counted[key], key)):
        if counted[key] > 1:
            lines.append(f"| `{key}` | {counted[key]} | {alone[key]} |")
    faulty = [one for one in files.values() if "faults" in one]
    dropping = sum(any("drops " in fault["message"] for fault in one["faults"]) for one in faulty)
    refused = outcomes.count("refused by Axolotl")
    lines += [
        "",
        f"{len(faulty)} of the {len(files)} files have faults: Axolotl's validation refuses {refused} of them, and {dropping} have settings that it",
        "drops. Most of these are options of FSDP that it no longer has.",
        "",
        *("| file | line | setting | what is wrong |", "|---|---|---|---|"),
    ]
    for name, one in files.items():
        for fault in one.get("faults", ()):
            wrong = (
                "dropped" if "drops " in fault["message"] else fault["message"].replace("|", "\\|")
            )
            lines.append(f"| {name} | {fault['line']} | `{fault['key']}` | {wrong} |")
    return "\n".join(lines) + "\n"


def _own_models(files: Collection[Mapping[str, Any]]) -> Iterator[str]:
    """How far the recipes get with the examples' own models."""
    ends = [one["own model"] for one in files if "own model" in one]
    known = len(ends) - ends.count("not in the catalog")
    formulas, traced = ends.count("planned by formulas"), ends.count("planned by a trace")
    yield (
        f"{known} of these {len(ends)} name a model of the catalog. `recipe check` accepts {formulas + traced} of them as they are; "
        f"`recipe plan` estimates {formulas} by formulas, and {traced} need `--exact`. The others need `recipe models add NAME` first."
    )
    rehearsed = [one["rehearsed"] for one in files if "rehearsed" in one]
    if rehearsed:
        passed = rehearsed.count("passed")
        yield (
            f"{len(rehearsed)} of the {known} were rehearsed with a tiny twin of their model and a starter's rows, and {passed} passed: examples of Gemma 3 and 4, Ministral 3, Qwen3.5 and 3.8, and an older one."
        )


def rehearsed(file: Path) -> str:
    """What a rehearsal of an example's recipe says: `passed`, or its last line. The rows are those
    of a starter, because the example's are on the hub."""
    recipe = yaml.safe_load(importing.read(reading.read(file)).text)
    template = recipe["data"].get("chat_template", "auto")
    recipe["data"] = {
        "path": str(ROOT / "recipes" / "data" / "survival-sample.jsonl"),
        "question": "[question]",
        "answer": "[answer]",
        "chat_template": template,
    }
    with TemporaryDirectory() as folder:
        path = Path(folder) / "mine.yaml"
        path.write_text(yaml.safe_dump(recipe), "utf-8")
        command = [sys.executable, "-m", "runner", "rehearse", path.name]
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
    if done.returncode == 0:
        return "passed"
    print(done.stdout, done.stderr, file=sys.stderr)
    return shortened((done.stdout + done.stderr).strip().splitlines()[-1], 300)


def rehearse(folder: Path, names: Iterable[str]) -> None:
    """Rehearses these examples, and writes the results into the table."""
    for name in names:
        table = json.loads(TABLE.read_text("utf-8"))
        table["files"][name]["rehearsed"] = rehearsed(folder / name)
        TABLE.write_text(json.dumps(table, indent=1) + "\n", "utf-8")
        print(name, table["files"][name]["rehearsed"], flush=True)


def main() -> None:
    os.environ |= {"HF_HUB_OFFLINE": "1", "AXOLOTL_DO_NOT_TRACK": "1"}
    logging.disable(logging.CRITICAL)
    if len(sys.argv) > 2:
        rehearse(Path(sys.argv[1]), sys.argv[2:])
        return
    try:
        found = examined(Path(sys.argv[1]))
    except (IndexError, Stop) as stop:
        sys.exit(f"{__doc__}\n{stop}")
    earlier = json.loads(TABLE.read_text("utf-8"))["files"]
    for name, one in found.items():
        if "rehearsed" in earlier.get(name, {}):
            one["rehearsed"] = earlier[name]["rehearsed"]
    TABLE.write_text(
        json.dumps({"axolotl": catalog.AXOLOTL_VERSION, "files": found}, indent=1) + "\n", "utf-8"
    )
    for outcome in dict.fromkeys(one["outcome"] for one in found.values()):
        print(sum(one["outcome"] == outcome for one in found.values()), outcome)


if __name__ == "__main__":
    main()
