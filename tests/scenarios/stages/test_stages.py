"""A recipe of several stages: what is wrong is found at its line, and each stage becomes what it
would be as a recipe of its own."""

from __future__ import annotations

import json

import pytest
import yaml

from runner.check.by_schema import part
from runner.check.validate import examine, load
from runner.parts.planner.planned import Planned
from runner.parts.planner.recipe_offers import of as offers
from runner.plan import Place, rows_key
from runner.recipe import reading
from runner.recipe.document import leaves
from runner.recipe.overrides import from_options
from runner.recipe.stages import TECHNIQUES
from runner.scenarios import place, translate
from runner.scenarios.render import emit
from runner.tools.problem import Stop
from tests.conftest import ROOT
from tests.parts.export.runs import base_of

RECIPE = ROOT / "recipes/sft-dpo.yaml"
CHATS = {"hub": "me/rows", "question": "[q]", "answer": "[a]"}
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
        "      epochs: 1                       # passes through all rows",
        "      warmup_steps: 3\n      warmup_ratio: 0.1   #",
    ),
    "an unknown technique": ("    technique: lora ", "    technique: lorra "),
    "another scenario": ("    technique: lora ", "    technique: image-classification "),
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
    "a stage without data": (
        "  - name: dpo ",
        "  - {name: empty, technique: lora}\n  - name: dpo ",
    ),
    "two stages of one name": ("  - name: dpo ", "  - name: sft "),
    "a name that a folder has": ("  - name: dpo ", "  - name: data "),
    "a list of another name": ("stages:   ", "stagez:   "),
    "rows in the image": ("  namespace: ", "  data_from: image\n  namespace: "),
    "pretraining in the middle": (
        "  - name: dpo ",
        """  - name: fresh
    technique: pretrain
    model: {hidden_size: 64, intermediate_size: 128, layers: 2, attention_heads: 2, key_value_heads: 1, vocabulary: 50304, context: 4096}
    data: {hub: me/texts}
    gates: [perplexity < 40]
  - name: dpo """,
    ),
    "rows of an earlier stage for preferences": (
        "  - name: dpo ",
        "  - earlier_rows: 0.3\n    name: dpo ",
    ),
    "a gate that compares the first stage with nothing": (
        "      - forgetting <= 0.3",
        "      - regression.text_loss <= 0.3",
    ),
    "a base model of a stage that is unknown": (
        "    technique: lora ",
        "    model: {base: Qwen/Qwen2.5-7B-Instrukt}\n    technique: lora ",
    ),
    "products in 8 bits beside weights in 32": (
        "    technique: lora ",
        "    model: {precision: fp32, attention: sdpa}\n    speed: {fp8: true}\n    technique: full ",
    ),
    "a section that no recipe has": ("machines:", "machine: {nodes: 1}\nmachines:"),
    "a setting of the stages": ("machines:", "report_to: none\nmachines:"),
    "a section of the stages": ("machines:", "train: {epochs: 2}\nmachines:"),
    "a shared setting that some techniques have": ("machines:", "speed: {fused: true}\nmachines:"),
    "a name that is too long for jobs": ("\nname: sft-dpo", f"\nname: {'long-' * 10}x"),
    "a name that is too long": ("\nname: sft-dpo", f"\nname: {'long-' * 20}x"),
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
        text.replace(old, new, 1).replace("sample: data/", f"sample: {ROOT}/recipes/data/"),
        encoding="utf-8",
    )
    problems = examine(tmp_path / "recipe.yaml")
    assert any(problem.severity == "error" and problem.line for problem in problems)
    assert len({str(problem) for problem in problems}) == len(problems)
    golden_message("\n".join(map(str, problems)))


@pytest.mark.parametrize("option", ["stages.9=", "stages.9.train.epochs=2", "stages.sft.name=x"])
def test_an_entry_that_the_list_lacks_is_named(option, golden_message):
    (problem,) = examine(RECIPE, from_options([option]))
    golden_message(problem)


def test_a_pretraining_has_no_plain_machines_and_nothing_says_that_it_could(golden_message):
    starter = ROOT / "recipes" / "minimal" / "from-scratch.yaml"
    machines = "nodes={machines: [{address: one, gpus: [0]}], output_dir: /shared/run}"
    (problem,) = examine(starter, from_options([machines]))
    golden_message(problem, "with plain machines")
    with pytest.raises(Stop) as stop:
        emit(load(starter)[0])
    golden_message(stop.value, "without any")


def test_the_techniques_are_those_of_the_schema():
    assert part("stages", "stages.0.technique")["enum"] == TECHNIQUES


def test_the_form_of_the_editor_has_a_section_for_each_stage():
    pytest.importorskip("nicegui", reason="the extra `edit` is not installed")
    from runner.parts.editor import form

    document = reading.read(RECIPE)
    shown = {
        section.name: {field.path[2:] for field in section.fields}
        for section in form.sections(document)
    }
    assert {("train", "lora_rank"), ("model", "sequence_len"), ("data", "hub")} <= shown[
        "stages[1]"
    ]
    assert (
        not {
            ("train", "last_layers"),
            ("train", "steps"),
            ("model", "layers"),
            ("tokenizer", "base"),
        }
        & shown["stages[1]"]
    )
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
        path
        for path, value in leaves(trained.config, bool)
        if dict(leaves(train.config, bool)).get(path) != value
    }
    assert (
        differing <= {("recipe_runner", "fingerprint")}
        and trained.config.keys() == train.config.keys()
    )
    assert prepared.config[rows_key("one")] == same.config["data"]


def of(tmp_path, *stages, **shared):
    """The plan of a recipe with these stages on a cluster."""
    site = {"namespace": "mine", "claims": [{"name": "models", "mount": "/shared"}]}
    whole = {
        "scenario": "stages",
        "name": "it",
        "machines": {"gpu": "NVIDIA-L40S"},
        "openshift": site,
    } | shared
    file = tmp_path / "recipe.yaml"
    file.write_text(json.dumps(whole | {"stages": list(stages)}))
    return plan(file=file)


def stage(name, technique="lora", data=CHATS, **own):
    return {"name": name, "technique": technique, "data": data} | own


def test_a_stage_may_start_from_a_model_of_its_own(tmp_path):
    first, second, third = (
        stage("one"),
        stage("two", model={"base": "Qwen/Qwen3-0.6B"}),
        stage("three"),
    )
    data, one, two, three = of(
        tmp_path, first, second, third, model={"base": "HuggingFaceTB/SmolLM3-3B"}
    ).stages
    assert set(two.reads) == {"data"} and set(three.reads) == {"data", "two"}
    assert (
        two.config["base_model"] == "/shared/it/two-base" and two.model["base"] == "Qwen/Qwen3-0.6B"
    )
    assert three.config["base_model"] == "/shared/it/two/best_model" and three.model is None
    fetched = {
        name: (model["base"], model["folder"]) for name, model in data.config["models"].items()
    }
    assert fetched == {
        "one": ("HuggingFaceTB/SmolLM3-3B", one.config["base_model"]),
        "two": ("Qwen/Qwen3-0.6B", "/shared/it/two-base"),
    }
    stages = ("one", "two", "three")
    assert {name: data.config[rows_key(name)]["tokenizer"]["base"] for name in stages} == {
        "one": "HuggingFaceTB/SmolLM3-3B",
        "two": "Qwen/Qwen3-0.6B",
        "three": "Qwen/Qwen3-0.6B",
    }
    assert [data.config["proofs"][name]["model"]["id"] for name in ("two", "three")] == [
        "Qwen/Qwen3-0.6B"
    ] * 2


def test_the_first_stage_may_make_the_model(tmp_path):
    shape = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "layers": 2,
        "attention_heads": 2,
        "key_value_heads": 1,
    }
    fresh = stage(
        "fresh",
        "pretrain",
        {"hub": "me/texts"},
        model=shape | {"vocabulary": 600, "context": 256},
        tokenizer={"vocabulary": 600},
        train={
            "steps": 30,
            "curriculum": [{"sequence_len": 64, "until": 0.5}, {"sequence_len": 128, "until": 1}],
        },
        gates=["perplexity < 90"],
    )
    chats = stage(
        "chats", "full", model={"sequence_len": 128}, gates=["regression.text_loss <= 0.05"]
    )
    field = stage("field", earlier_rows=0.25, model={"sequence_len": 128})
    made = of(tmp_path, fresh, chats, field)
    assert [one.name for one in made.stages] == [
        "data",
        "init",
        "pretrain-64",
        "pretrain-128",
        "chats",
        "field",
    ]
    data, *_, last, chats, field = made.stages
    assert [str(gate) for gate in last.gates] == ["perplexity < 90"]
    assert (
        chats.config["base_model"] == "/shared/it/pretrain-128/best_model" and chats.model is None
    )
    assert chats.config["chat_template"] == "chatml" and chats.evaluation.before == "pretrain-128"
    assert (
        chats.evaluation.text_blocks
        == last.evaluation.text_blocks
        == "/shared/it/data/blocks/validation-128.npy"
    )
    assert data.config[rows_key("chats")]["tokenizer"]["base"] == "/shared/it/data/tokenizer"
    assert data.config["earlier_rows"] == {"field": {"of": "chats", "share": 0.25, "seed": 42}}
    assert data.parts["field"] == (
        rows_key("field"),
        rows_key("chats"),
        "earlier_rows",
        "text",
        "tokenizer",
    )
    assert made.facts["tokens"] == {"pretrain-64": 15 * 64 * 64, "pretrain-128": 15 * 64 * 128}


def test_speed_is_for_every_technique(tmp_path):
    faster = {
        "compile": "default",
        "tf32": True,
        "data_workers": 2,
        "persistent_workers": True,
        "fp8": True,
    }
    made = of(
        tmp_path,
        stage("one", "full", speed=faster, train={"packing": "auto", "micro_batch_size": 4}),
        model={"base": "HuggingFaceTB/SmolLM3-3B", "attention": "flash_attention_2"},
        machines={"gpu": "NVIDIA-H100-80GB-HBM3", "gpus_per_node": 2},
        distribution="fsdp",
    )
    config = made.stage("one").config
    assert {
        name: config[name]
        for name in ("torch_compile_mode", "tf32", "dataloader_num_workers", "fp8")
    } == {
        "torch_compile_mode": "default",
        "tf32": True,
        "dataloader_num_workers": 2,
        "fp8": True,
    }
    assert (
        config["fp8_enable_fsdp_float8_all_gather"]
        and config["recipe_runner"]["persistent_workers"]
    )
    assert not config["batch_flattening"], (
        "joined rows vary in length, and each length would compile the code again"
    )


def test_other_rows_of_one_stage_do_not_train_the_other_again():
    before, after = (plan(*options) for options in ((), ("stages.1.data.validation_share=0.2",)))
    assert before.stage("sft").keys == after.stage("sft").keys
    assert before.stage("dpo").keys != after.stage("dpo").keys
    assert (
        plan("stages.0.train.epochs=2").stage("dpo").keys != before.stage("dpo").keys
    )  # another model to start from


def test_suggestions_name_lines_of_the_whole_recipe():
    recipe = load(
        RECIPE,
        from_options(["stages.1.train.micro_batch_size=32", "stages.0.train.micro_batch_size=64"]),
    )[0]
    found = offers(Planned.of(recipe, None))
    lines = [line for offer in found for line in offer.lines]
    assert any(line.startswith("stages.1.train.") for line in lines), lines
    for offer in found:
        load(RECIPE, from_options([line.replace(": ", "=", 1) for line in offer.lines]))


def test_a_stage_may_have_the_name_of_any_other_setting(tmp_path, recipe_command):
    """`recipe prepare` took the rows of a stage called `questions` for questions of a demo."""
    base = base_of("survival", tmp_path / "base")
    samples = ROOT / "recipes" / "data"
    asked = {"path": str(samples / "museum.csv"), "question": "[question]", "answer": "[answer]"}
    text = {"path": str(samples / "gemma-sample.txt"), "form": "text"}
    names = ("text", "questions", "twin", "work", "out", "models")
    stages = [
        {"name": name, "technique": "lora", "data": text if name == "text" else asked}
        for name in names
    ]
    recipe = {
        "scenario": "stages",
        "name": "field",
        "model": {"base": str(base), "sequence_len": 128},
        "stages": stages,
        "machines": {"gpu": "NVIDIA-L40S"},
    }
    (tmp_path / "field.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    done = recipe_command("prepare", "field.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "No row supports" not in done.stdout
    for name in names:
        assert f"{name}:" in done.stdout
        assert list((tmp_path / "runs/field").rglob(f"{name}/train.parquet"))
