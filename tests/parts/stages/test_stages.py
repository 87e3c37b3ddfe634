"""A recipe of several stages: what is wrong is found at its line, and each stage becomes what it would be as a recipe of its own."""

from __future__ import annotations

import json

import pytest

from runner.check.by_schema import part
from runner.check.validate import examine, load
from runner.parts.planner.planned import Planned
from runner.parts.planner.recipe_offers import of as offers
from runner.plan import Place
from runner.recipe import reading
from runner.recipe.document import leaves
from runner.recipe.overrides import from_options
from runner.recipe.stages import TECHNIQUES
from runner.scenarios import translate
from runner.scenarios.targets import place
from tests.conftest import ROOT

RECIPE = ROOT / "recipes/sft-dpo.yaml"
ONE = "/shared/sft-dpo/sft-dpo/sft"
PLACE = Place("/run/config", "/run/data", "/run", "/run/scratch")


def plan(*options: str, file=RECIPE):
    recipe = load(file, from_options(options))[0]
    return translate(recipe, place(recipe))


WRONG = {
    "a typing mistake in a stage": ("      lora_rank: 32", "      lora_rang: 32"),
    "a value that the technique lacks": ("    technique: lora ", "    technique: full "),
    "a wrong value in a stage": ("      beta: 0.1 ", "      beta: -1 "),
    "a rule that looks at a stage": (
        "      epochs: 1                       # times through all rows",
        "      warmup_steps: 3\n      warmup_ratio: 0.1   #",
    ),
    "an unknown technique": ("    technique: lora ", "    technique: lorra "),
    "another scenario": ("    technique: lora ", "    technique: pipeline "),
    "a technique of another kind": ("    technique: lora ", "    technique: [lora] "),
    "a stage that is no section": ("  - name: dpo ", "  - dpo\n  - name: dpo "),
    "a name of another kind": ("  - name: dpo ", "  - name: 3 "),
    "a section of another kind": (
        "    train:                            # how it is trained\n      adapter: qlora                  # 4 bits",
        "    train: 3\n    demo:\n      max_new_tokens: 3                  # 4 bits",
    ),
    "a shared line": ("  base: Qwen/Qwen2.5-7B-Instruct ", "  base: Qwen/Qwen2.5-7B-Instrukt "),
    "a section that all stages share": (
        "    technique: lora ",
        "    machines: {gpu: NVIDIA-L40S}\n    technique: lora ",
    ),
    "a stage without data": ("  - name: dpo ", "  - {name: empty, technique: lora}\n  - name: dpo "),
    "two stages of one name": ("  - name: dpo ", "  - name: sft "),
    "a name that a folder has": ("  - name: dpo ", "  - name: data "),
    "a list of another name": ("stages:   ", "stagez:   "),
    "rows in the image": ("  namespace: ", "  data_from: image\n  namespace: "),
    "a gate that no stage measures": (
        "forgetting <= 0.3             # how much worse it became at general text\n\n  - name",
        "accuracy_of_nothing <= 0.3\n\n  - name",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_once_at_its_line(tmp_path, case, golden_message):
    old, new = WRONG[case]
    text = RECIPE.read_text("utf-8")
    assert old in text
    (tmp_path / "recipe.yaml").write_text(
        text.replace(old, new, 1).replace("sample: data/", f"sample: {ROOT}/recipes/data/"), encoding="utf-8"
    )
    problems = examine(tmp_path / "recipe.yaml")
    assert any(problem.severity == "error" and problem.line for problem in problems)
    assert len({str(problem) for problem in problems}) == len(problems)
    golden_message("\n".join(map(str, problems)))


def test_the_techniques_are_those_of_the_schema():
    assert tuple(part("stages", "stages.0.technique")["enum"]) == TECHNIQUES


def test_the_form_of_the_editor_has_a_section_for_each_stage():
    pytest.importorskip("nicegui", reason="the extra `edit` is not installed")
    from runner.parts.editor import form

    document = reading.read(RECIPE)
    shown = {section.name: {field.path[2:] for field in section.fields} for section in form.sections(document)}
    assert {("train", "lora_rank"), ("model", "sequence_len"), ("data", "hub")} <= shown["stages[1]"]
    assert not {("train", "last_layers"), ("model", "base")} & shown["stages[1]"]
    text = form.changed(document, ("stages", 1, "train", "epochs"), 2)
    assert reading.parse("again", text).lookup(("stages", 1, "train", "epochs")) == 2


def test_each_stage_starts_from_the_model_of_the_one_before():
    data, sft, dpo = plan().stages
    assert (data.name, sft.name, dpo.name) == ("data", "sft", "dpo")
    assert dpo.config["base_model"] == f"{ONE}/best_model" != sft.config["base_model"]
    assert set(dpo.reads) == {"data", "sft"} and set(sft.reads) == {"data"}
    assert [gate.metric for gate in dpo.gates] == [
        "preference_accuracy",
        "forgetting",
    ] and dpo.evaluation.before == "sft"
    assert sft.model["base"] == "Qwen/Qwen2.5-7B-Instruct" and dpo.model is None
    assert dpo.config["recipe_runner"]["time_limit_earlier"] == [ONE]


@pytest.mark.parametrize("technique", ["lora", "last-layers", "full"])
@pytest.mark.parametrize("rows", ["conversations", "text", "preferences"])
def test_a_stage_is_what_it_would_be_as_a_recipe_of_its_own(tmp_path, technique, rows):
    data = {
        "conversations": {"hub": "me/rows", "question": "[q]", "answer": "[a]"},
        "text": {"hub": "me/rows", "form": "text", "validation_share": 0.1},
        "preferences": {"hub": "me/rows", "form": "preferences"},
    }[rows]
    shared = {"model": {"base": "HuggingFaceTB/SmolLM3-3B"}, "machines": {"gpu": "NVIDIA-L40S"}}
    own = {"data": data, "train": {"epochs": 2}}
    alone, several = tmp_path / "alone.yaml", tmp_path / "several.yaml"
    alone.write_text(json.dumps({"scenario": technique, "name": "it-one"} | shared | own))
    stages = [{"name": "one", "technique": technique} | own]
    several.write_text(json.dumps({"scenario": "stages", "name": "it", "stages": stages} | shared))
    prepared, trained = translate(load(several)[0], PLACE).stages
    same, train = translate(
        load(alone)[0], Place("/run/config/one", "/run/data/one", "/run/one", "/run/scratch/one")
    ).stages
    differing = {
        path for path, value in leaves(trained.config, bool) if dict(leaves(train.config, bool)).get(path) != value
    }
    assert differing <= {("recipe_runner", "fingerprint")} and trained.config.keys() == train.config.keys()
    assert prepared.config["one"] == same.config["data"]


def test_other_rows_of_one_stage_do_not_train_the_other_again():
    before, after = (plan(*options) for options in ((), ("stages.1.data.validation_share=0.2",)))
    assert before.stage("sft").keys == after.stage("sft").keys
    assert before.stage("dpo").keys != after.stage("dpo").keys
    assert plan("stages.0.train.epochs=2").stage("dpo").keys != before.stage("dpo").keys  # another model to start from


def test_suggestions_name_lines_of_the_whole_recipe():
    recipe = load(RECIPE, from_options(["stages.1.train.micro_batch_size=32", "stages.0.train.micro_batch_size=64"]))[0]
    found = offers(Planned.of(recipe, None))
    lines = [line for offer in found for line in offer.lines]
    assert any(line.startswith("stages.1.train.") for line in lines), lines
    for offer in found:
        load(RECIPE, from_options([line.replace(": ", "=", 1) for line in offer.lines]))
