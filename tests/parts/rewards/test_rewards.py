"""Rewards: what an answer is worth, what a recipe may say of it, and what reaches the training
process."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import yaml

from runner import catalog, scenarios
from runner.check.validate import examine, load
from runner.parts.planner import duration, memory
from runner.parts.planner.workload import from_stage
from runner.parts.rewards import scoring
from runner.parts.rewards.rules import rewarded
from runner.recipe.overrides import from_options
from runner.recipe.recipe import PROMPTS
from runner.run.run_folder import RunFolder, StageFolder
from runner.scenarios import place
from runner.scenarios.render import emit
from runner.tools.files import read_record
from runner.tools.problem import Stop
from runner.tools.text import yaml_text
from tests.catalog.axolotls_own import unknown_keys, validated
from tests.conftest import ROOT
from tests.scenarios.test_combinations import written

RECIPE = ROOT / "recipes" / "arithmetic.yaml"
TAGGED = "<answer>(.*?)</answer>"


def score(
    name: str, answer: str, reference: str = "58", question: str = "How many?", **rule: object
) -> float:
    usual = {"weight": 1.0, "tolerance": 0, "of": "reference"}
    return scoring.scores({name: {**usual, **rule}})[name](question, answer, reference)


@pytest.mark.parametrize(
    ("worth", "name", "answer", "rule"),
    [
        (1, "exact", " 58 ", {}),
        (0, "exact", "It is 58", {}),
        (1, "exact", "It is <answer>58</answer>", {"within": TAGGED}),
        (0, "exact", "It is 58", {"within": TAGGED}),
        (1, "number", "21 + 37 = 58.", {}),
        (1, "number", "58.0", {}),
        (0, "number", "58 or 59", {}),
        (0, "number", "no idea", {}),
        (1, "number", "57.99", {"tolerance": 0.01}),
        (0, "number", "57.98", {"tolerance": 0.01}),
        (1, "number", "<answer>\n58\n</answer> not 7", {"within": TAGGED}),
        (0, "number", "58", {"within": TAGGED}),
        (1, "pattern", "so\n<answer>58</answer>\n", {"matches": "<answer>-?[0-9]+</answer>$"}),
        (0, "pattern", "<answer>58</answer>, I think", {"matches": "<answer>-?[0-9]+</answer>$"}),
        (1, "length", "one two", {"words": 2}),
        (0.5, "length", "one two three", {"words": 2}),
        (0, "length", "one two three four", {"words": 2}),
        (0, "length", "", {"words": 2}),
        (0.5, "overlap", "58 shells", {}),
        (1, "overlap", "many, MANY", {"of": "question"}),
        (0, "overlap", "", {}),
    ],
)
def test_an_answer_is_worth_what_the_rule_says(worth, name, answer, rule):
    assert score(name, answer, **rule) == worth


def test_numbers_are_read_as_people_write_them():
    written = {
        "1,234.5": 1234.5,
        "-3": -3,
        "about 1e3": 1000,
        ".5": 0.5,
        "1,2": 2,
        "7, or 8": 8,
        "#### 42": 42,
    }
    assert {text: scoring.number(text) for text in written} == written
    assert scoring.number("none") is None


def test_a_reference_is_put_where_a_rule_looks_for_it():
    assert scoring.placed("58", None) == "58"
    assert scoring.placed("58", TAGGED) == "<answer>58</answer>"
    assert scoring.placed("58", r"\\boxed\{([^}]*)\}") == r"\boxed{58}"


def test_the_reward_is_the_sum_of_scores_times_weights():
    rules = {"number": {"weight": 1.0}, "pattern": {"weight": -0.5}, "length": {"weight": 0}}
    assert scoring.total(rules, {"number": 1.0, "pattern": 1.0, "length": 1.0}) == 0.5


CODE = """
from pathlib import Path

Path(__file__).with_name("it-ran").touch()

def reward(question, answer, reference):
    return len(answer) / 10
"""


@pytest.fixture
def own(tmp_path):
    """A recipe with a function of its own, in a folder, and the file of the function."""
    shutil.copytree(ROOT / "recipes" / "data", tmp_path / "data")
    recipe = yaml.safe_load(RECIPE.read_text("utf-8"))
    (code := tmp_path / "mine.py").write_text(CODE, "utf-8")
    recipe["rewards"] = {
        "python": {"path": "mine.py", "sha256": hashlib.sha256(CODE.encode()).hexdigest()}
    }
    (path := tmp_path / "own.yaml").write_text(yaml_text(recipe), "utf-8")
    return path, code


def test_own_code_is_pinned_shown_and_never_run_by_a_check(own, tmp_path):
    path, _ = own
    assert [problem for problem in examine(path) if problem.severity == "error"] == []
    recipe = load(path)[0]
    plan = scenarios.translate(recipe, RunFolder(tmp_path / "run").place())
    told: list[str] = []
    for stage in plan.stages:
        scoring.RewardHooks().before_stage(StageFolder(plan, stage), told.append, "")
    assert told[0].startswith("`mine.py` runs in training") and told[1:] == [
        f"  | {line}" for line in CODE.split("\n")[:-1]
    ]
    assert not (tmp_path / "it-ran").exists()
    (rule,) = rewarded(recipe)["recipe_runner"]["rewards"].values()
    assert (rule["code"], rule["named"], rule["weight"]) == (CODE, "mine.py", 1.0)
    # What is written into a generated file is read again as it was.
    again = yaml.safe_load(
        str(next(file.text for file in plan.stages[-1].files if file.path == "axolotl.yaml"))
    )
    assert again["recipe_runner"]["rewards"]["python"]["code"] == CODE
    with pytest.raises(scoring.BadReward, match="not the code that the recipe pins"):
        scoring.scores({"python": {**rule, "code": CODE + "\n"}})


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def reward(a, b, c): return 'much'", "`reward` of `mine.py` failed with ValueError"),
        ("def reward(a, b, c): return float('nan')", "gave nan, which is no score"),
        ("import nothing_at_all", "`mine.py` cannot be loaded: ModuleNotFoundError"),
        ("def reward(a, b, c): return {'58': 0.25}[b]", None),
    ],
)
def test_a_function_that_fails_says_so(code, said):
    rule = {
        "code": code,
        "named": "mine.py",
        "function": "reward",
        "sha256": hashlib.sha256(code.encode()).hexdigest(),
    }
    if said is None:
        assert scoring.scores({"python": rule})["python"]("q", "58", "58") == 0.25
        return
    with pytest.raises(scoring.BadReward, match=said):
        scoring.scores({"python": rule})["python"]("q", "58", "58")


def found(path, *options: str) -> list:
    return [
        problem for problem in examine(path, from_options(options)) if problem.severity == "error"
    ]


def test_own_code_that_is_not_as_pinned_is_refused(own, golden_message):
    path, code = own
    code.write_text("def other(a, b, c):\n    return 1\n", "utf-8")
    golden_message(found(path), "another file")
    with pytest.raises(Stop):
        scenarios.translate(load(path)[0], place(load(path)[0]))
    code.write_text("def reward(:", "utf-8")
    golden_message(found(path), "no Python")
    code.unlink()
    golden_message(found(path), "no file")


@pytest.mark.parametrize(
    "options",
    [
        ["rewards.number.within='[0-9]+'"],
        ["rewards.number.within=(a)(b)"],
        ["rewards.pattern.matches=(oops"],
        ["rewards.number.weight=0", "rewards.pattern.weight=0"],
        ["rewards="],
        ["train.generations=5"],
        ["train.answer_tokens=512"],
        ["train.objective=dpo"],
        ["gates=[reward.exact > 0.5]"],
    ],
    ids=lambda options: options[0],
)
def test_what_cannot_be_learned_from_is_refused(options, golden_message):
    golden_message(found(RECIPE, *options))


def test_rewards_of_rows_that_are_no_prompts_are_refused(tmp_path, golden_message):
    recipe = yaml.safe_load(RECIPE.read_text("utf-8"))
    recipe["data"] = {
        "path": str(ROOT / "recipes/data/survival-sample.jsonl"),
        "question": "[question]",
        "answer": "[answer]",
    }
    (path := tmp_path / "r.yaml").write_text(
        yaml_text({**recipe, "gates": ["perplexity < 20"]}), "utf-8"
    )
    golden_message(found(path))


@pytest.mark.parametrize("generator", ["transformers", "vllm"])
def test_axolotl_accepts_what_it_gets(generator):
    recipe = load(RECIPE, from_options([f"train.generator={generator}"]))[0]
    (stage,) = [
        stage for stage in scenarios.translate(recipe, place(recipe)).stages if stage.trains
    ]
    config = dict(stage.config)
    checked = validated(config, catalog.gpu("NVIDIA-L40S"), 1)
    assert unknown_keys(config) == []
    trl = checked["trl"]
    assert (trl["num_generations"], trl["generation_batch_size"], trl["max_completion_length"]) == (
        8,
        32,
        256,
    )
    assert trl["reward_funcs"] == [
        f"runner.parts.rewards.functions.{name}" for name in ("number", "pattern")
    ]
    assert trl["reward_weights"] == [1.0, 0.2]
    assert bool(trl["use_vllm"]) == ("vllm" in config) == (generator == "vllm")
    assert (checked["metric_for_best_model"], checked["greater_is_better"]) == ("eval_reward", True)


@pytest.mark.parametrize(("version", "kind"), [("3.2", "PyTorchJob"), ("3.6", "TrainJob")])
def test_it_renders_as_either_job(version, kind):
    recipe = load(RECIPE, from_options([f"openshift.version={version}"]))[0]
    texts = [str(file.text) for file in emit(recipe)]
    assert any(f"kind: {kind}" in text for text in texts)
    assert any('"rewards"' in text and "<answer>" in text for text in texts)


def test_prompts_are_prepared_with_their_reference_answers(tmp_path):
    from pyarrow import parquet

    recipe = load(RECIPE)[0]
    plan = scenarios.translate(recipe, RunFolder(tmp_path).place())
    report = scenarios.prepare(plan.stages[0].config["data"], tmp_path / "data")
    rows = [
        row
        for side in ("train", "validation")
        for row in parquet.read_table(tmp_path / f"data/{side}.parquet").to_pylist()
    ]
    assert len(rows) == report.train_rows + report.validation_rows == 400
    known = {
        row["problem"]: str(row["answer"])
        for row in map(json.loads, (ROOT / "recipes/data/arithmetic.jsonl").open())
    }
    for row in rows:
        system, asked = row["prompt"]
        assert (
            system["content"] == recipe.data.system_prompt
            and asked["content"] == row["full-question"]
        )
        assert row["messages"] == row["prompt"] and row["answer"] == known[asked["content"]]


def test_the_plan_counts_answers_and_the_time_to_write_them():
    recipe = load(RECIPE)[0]
    plan = scenarios.translate(recipe, place(recipe))
    (stage,) = [stage for stage in plan.stages if stage.trains]
    work = of_stage(stage)
    # 360 prompts with 8 answers each, twice, in steps of 32.
    assert work.steps == 180 and work.answers == 1 and work.generated == 256
    gpu = catalog.gpu("NVIDIA-L40S")
    writing = duration.writing(work, gpu, 32)
    assert (
        duration.computing(work, gpu)
        > writing
        > duration.computing(replace(work, generated=0), gpu)
    )
    assert duration.writing(replace(work, by_vllm=0.3), gpu, 32) < writing / 3
    assert memory.writing(work, 32) > 32 * 2 * 2 * 28 * 256 * 2 * 128
    assert memory.estimate(replace(work, by_vllm=0.9)).total > 0.9 * memory.usable(gpu)
    # Only the answers have logits.
    assert memory.loss(work, 1000) == 4 * 4 * work.compared(1000) * work.model.vocab_size
    assert work.compared(1000) < 1000


def of_stage(stage):
    from runner.parts.planner.row_counts import Rows

    return from_stage(
        stage, catalog.model("Qwen/Qwen2.5-1.5B-Instruct"), Rows(360, 40, longest=120)
    )


@pytest.mark.long
@pytest.mark.parametrize("technique", ["full", "last-layers"])
def test_each_step_of_a_rehearsal_has_the_rewards_of_trls_own_trainer(
    technique, tmp_path, recipe_command
):
    path, run = written(tmp_path, technique, PROMPTS), tmp_path / "run"
    path.write_text(path.read_text("utf-8") + "train: {eval_steps: 20}\n", encoding="utf-8")
    done = recipe_command("rehearse", path, "--out", run, env={"HF_HUB_OFFLINE": "1"}, timeout=1800)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    proof, samples = (
        read_record(run / "proof.json"),
        json.loads((run / "samples.json").read_text("utf-8")),
    )
    assert (
        proof["kind"] == "prompts"
        and proof["judged"] == proof["rows"] > 100
        and len(proof["rewards"]) == 3
    )
    assert {row["step"] for row in samples} >= {0} and all(
        row["scores"].keys() == {"number", "overlap"} for row in samples
    )
    assert "Answers to held-out prompts after step 0, with their rewards" in done.stdout
    if technique != "full":
        return
    command = [sys.executable, "-m", "tests.parts.rewards.plain_answers", str(run)]
    env = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    plain = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1800)
    assert plain.returncode == 0, plain.stderr[-3000:]
    found = json.loads(plain.stdout.splitlines()[-1])
    for name in ("loss", "reward"):
        assert len(found["plain"][name]) >= 20
        assert found["plain"][name][0] == pytest.approx(found["rehearsed"][name][0], abs=1e-5)
        assert found["plain"][name][:20] == pytest.approx(found["rehearsed"][name][:20], abs=1e-4)
    assert found["plain"]["eval_reward"][:2] == pytest.approx(
        found["rehearsed"]["eval_reward"][:2], abs=1e-4
    )
