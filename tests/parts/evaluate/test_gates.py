"""Gates fail closed: whatever is not plainly good promotes nothing."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from pydantic import TypeAdapter

from runner.check.validate import load
from runner.parts.evaluate import commands, evaluate, gates, metrics, seal
from runner.parts.evaluate.gates import Measurement, Subject, judge, passed
from runner.plan import Gate
from runner.recipe.overrides import from_options
from runner.run import pipeline
from runner.run.run_folder import RunFolder, StageFolder
from runner.tools.problem import Stop
from runner.trainer import records
from tests.conftest import ROOT
from tests.stages import finish, measured, plan_in

SEVEN_B = ROOT / "recipes" / "seven-b.yaml"
HERE = Subject(run="r1", stage="sft", inputs="i1", model="m1", rows="h1", code="c1", settings="s1")
BELOW_15 = Gate("perplexity", "<", 15.0)


def record(**metrics) -> Measurement:
    return Measurement(**vars(HERE), metrics=metrics)


def test_a_metric_that_holds_promotes():
    verdicts = judge([BELOW_15], record(perplexity=14.9), HERE)
    assert passed(verdicts)
    assert gates.table(verdicts) == [
        "metric      required  measured  verdict",
        "perplexity  < 15      14.9      holds",
    ]


@pytest.mark.parametrize(
    ("asked", "options", "said"),
    [
        ([], (), "the stage has no gates"),
        ([BELOW_15], (), "all gates passed"),
        ([BELOW_15], ("--checkpoint", "."), "a checkpoint opens no gate"),
    ],
)
def test_an_evaluation_ends_with_what_it_means_for_the_gates(
    tmp_path, monkeypatch, asked, options, said
):
    run = RunFolder(tmp_path, "run")
    folder = SimpleNamespace(stage=SimpleNamespace(name="train", gates=asked), run=run)
    monkeypatch.setattr("runner.run.inference.folder_of", lambda *_: folder)
    monkeypatch.setattr(gates, "measure", lambda *_: None)
    monkeypatch.setattr(gates, "opened", lambda *_: (True, []))
    monkeypatch.setattr("runner.parts.evaluate.commands.shown", lambda *_: "")
    done = CliRunner().invoke(commands.evaluate, [str(ROOT / "recipes/survival.yaml"), *options])
    assert f" was evaluated: {said}.\nNext: recipe compare" in done.stderr, done.output


@pytest.mark.parametrize(
    ("gate", "value", "holds"),
    [
        (Gate("x", "<", 1.0), 1.0, False),
        (Gate("x", "<", 1.0), 0.999, True),
        (Gate("x", "<=", 1.0), 1.0, True),
        (Gate("x", "<=", 1.0), 1.001, False),
        (Gate("x", ">", 1.0), 1.0, False),
        (Gate("x", ">", 1.0), 1.001, True),
        (Gate("x", ">=", 1.0), 1.0, True),
        (Gate("x", ">=", 1.0), 0.999, False),
        (Gate("x", ">=", 1.0), 1, True),
    ],
)
def test_each_comparison_means_what_it_says(gate, value, holds):
    assert passed(judge([gate], record(x=value), HERE)) is holds


@pytest.mark.parametrize(
    "value",
    [None, math.nan, math.inf, -math.inf, "3", "", True, False, [3], {"value": 3}, 10**400],
    ids=lambda value: str(value)[:12],
)
def test_what_is_no_finite_number_never_promotes(value):
    for comparison in ("<", "<=", ">", ">="):
        for threshold in (-1e9, 0.0, 1e9):
            verdicts = judge(
                [Gate("perplexity", comparison, threshold)], record(perplexity=value), HERE
            )
            assert not passed(verdicts), (comparison, threshold)


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("perplexity", -5.0),
        ("perplexity", 0.999),
        ("text_perplexity", 0),
        ("lm_eval.wikitext.word_perplexity,none", 0.5),
        ("validation_loss", -0.1),
        ("preference_accuracy", 1.2),
        ("accuracy", -0.1),
        ("accuracy.genre", 87.0),
        ("improvement.perplexity", 1.5),
        ("generated_tokens", 10**9),
        ("lm_eval.hellaswag.acc_norm", 35.0),
    ],
)
def test_what_the_metric_can_never_be_never_promotes(metric, value):
    for gate in (Gate(metric, "<", 15.0), Gate(metric, ">", -10.0)):
        assert not passed(judge([gate], record(**{metric: value}), HERE))


@pytest.mark.parametrize(
    ("text", "senseless"),
    [
        ("perplexity < 15", False),
        ("perplexity < 1", True),
        ("perplexity <= 1", False),
        ("perplexity > 0.5", True),
        ("accuracy.genre >= 0", False),
        ("accuracy.genre > 1", True),
        ("accuracy >= 60", True),
        ("improvement.perplexity >= 10", True),
        ("improvement.perplexity >= -1", False),
        ("forgetting <= 0.05", False),
        ("generated_tokens >= 17", True),
        ("lm_eval.hellaswag.acc_norm >= 35", True),
        ("lm_eval.squadv2.f1 >= 35", False),
        ("preference_margin > -3", False),
    ],
)
def test_a_gate_beyond_what_its_metric_can_be_is_senseless(text, senseless):
    assert metrics.is_senseless(metrics.parse(text)) is senseless


def test_a_missing_metric_never_promotes():
    verdicts = judge([BELOW_15], record(validation_loss=1.0), HERE)
    assert not passed(verdicts)
    assert "MISSED: it was not measured" in gates.table(verdicts)[1]


def test_one_missed_gate_keeps_all_closed():
    assert not passed(judge([BELOW_15, Gate("missing", ">", 0.0)], record(perplexity=1.0), HERE))


def test_no_gate_at_all_never_promotes():
    verdicts = judge([], record(perplexity=1.0), HERE)
    assert verdicts and not passed(verdicts)
    assert not passed([])


NOTHING, ODD = (
    "no evaluation was recorded, or the record is unreadable",
    "the record is not that of an evaluation",
)
UNSEALED = "the record is not sealed, so its author is unknown"
CHANGED = "the record was edited, or sealed with another key than yours"


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (None, NOTHING),
        ("", NOTHING),
        ("perplexity: 1", NOTHING),
        ('{"metrics": {"perplex', NOTHING),
        ("[" * 100_000, NOTHING),
        ("null", NOTHING),
        ("3", ODD),
        ('"x"', ODD),
        ("[]", ODD),
        ("{}", ODD),
        ('{"metrics": null}', ODD),
        ('{"metrics": [1]}', ODD),
        ('{"metrics": {"perplexity": 1.0}}', UNSEALED),
        ('{"metrics": {"perplexity": 1.0}, "missing": 3, "run": ["r1"], "digest": 7}', UNSEALED),
        ('{"metrics": {"perplexity": 1.0}, "digest": "\\ud800"}', CHANGED),
    ],
    ids=lambda text: str(text)[:20],
)
def test_a_record_that_cannot_be_read_never_promotes(broken, why, tmp_path):
    plan = plan_in(tmp_path, "seven-b")
    folder = StageFolder(plan, plan.stage("sft"))
    folder.path.mkdir()
    if broken is not None:
        (folder.path / "evaluation.json").write_text(broken)
    (verdict,) = judge([BELOW_15], gates.record(folder), HERE)
    assert (verdict.holds, verdict.got, verdict.why) == (False, "nothing", why)
    assert gates.current(folder) is None


@pytest.mark.parametrize(
    "missing", [None, 3, [], {"perplexity": "the model did not load"}], ids=str
)
def test_why_a_metric_is_missing_is_told_where_the_record_says_it(missing):
    (verdict,) = judge(
        [BELOW_15], Measurement.of(vars(HERE) | {"metrics": {}, "missing": missing}), HERE
    )
    assert verdict.why == (
        "the model did not load" if isinstance(missing, dict) else "it was not measured"
    )


@pytest.mark.parametrize("part", ["run", "stage", "inputs", "model", "rows", "code", "settings"])
def test_a_stale_record_never_promotes(part):
    for other in ("another", None, ""):
        stale = Measurement.of(vars(record(perplexity=1.0)) | {part: other})
        assert not passed(judge([BELOW_15], stale, HERE))
    without = vars(record(perplexity=1.0)).copy()
    del without[part]
    assert not passed(judge([BELOW_15], Measurement.of(without), HERE))


def test_a_stage_without_a_result_never_promotes():
    assert not passed(judge([BELOW_15], record(perplexity=1.0), None))


def test_a_subject_without_a_model_never_matches_a_record_without_one():
    empty = replace(HERE, model="")
    assert not passed(judge([BELOW_15], replace(record(perplexity=1.0), model=""), empty))


@pytest.mark.parametrize("threshold", [math.nan, math.inf, -math.inf])
def test_a_threshold_that_is_no_number_never_promotes(threshold):
    for comparison in ("<", "<=", ">", ">="):
        assert not passed(
            judge([Gate("perplexity", comparison, threshold)], record(perplexity=1.0), HERE)
        )


def test_a_gate_reads_as_it_is_written():
    assert metrics.parse("perplexity < 15") == BELOW_15
    assert metrics.parse("loss_rise.3 <= -2e-2") == Gate("loss_rise.3", "<=", -0.02)
    assert (
        str(metrics.parse("lm_eval.hellaswag.acc_norm >= 0.35"))
        == "lm_eval.hellaswag.acc_norm >= 0.35"
    )


def problems(*options: str) -> list:
    with pytest.raises(Stop) as stop:
        load(SEVEN_B, from_options(options))
    return stop.value.problems


def gate_line(old: str, new: str, tmp_path) -> str:
    text = SEVEN_B.read_text("utf-8")
    assert text.count(old) >= 1
    file = tmp_path / "recipe.yaml"
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
    (tmp_path / "data").symlink_to(ROOT / "recipes" / "data")
    with pytest.raises(Stop) as stop:
        load(file)
    (problem,) = stop.value.problems
    assert problem.source.strip().startswith(f"- {new}")
    return f"{problem.message} {problem.hint}"


def test_check_finds_a_metric_that_the_stage_cannot_produce_at_its_line(tmp_path, golden_message):
    said = gate_line("preference_accuracy >= 0.6", "perplexity < 15", tmp_path)
    assert "This stage does not produce" in said and "preference_accuracy" in said
    golden_message(said)


def test_check_says_which_metric_was_meant(tmp_path):
    said = gate_line("preference_accuracy >= 0.6", "preference_acuracy >= 0.6", tmp_path)
    assert "Did you mean `preference_accuracy`?" in said


def test_check_knows_that_a_task_must_be_listed(golden_message):
    (problem,) = problems(
        "evaluation.tasks=[arc_easy]",
        "stages.1.gates=[perplexity < 15]",
        "stages.2.gates=[preference_accuracy >= 0.6]",
    )
    assert "`lm_eval.hellaswag.acc_norm`" in problem.message
    golden_message(problem)


def test_check_knows_that_the_first_gate_has_nothing_to_compare_with(golden_message):
    (problem,) = problems("stages.0.gates=[regression.text_loss <= 0.05]")
    assert "`regression.text_loss`" in problem.message
    golden_message(problem)


def test_check_knows_that_losses_on_other_rows_cannot_be_compared():
    (problem,) = problems("stages.1.gates=[regression.validation_loss <= 0.05]")
    assert "This stage does not produce" in problem.message


@pytest.mark.parametrize("stage", ["pretrain", "sft", "dpo"])
def test_after_a_pretraining_gates_are_obligatory_for_each_stage_but_the_last(stage):
    index = ["pretrain", "sft", "dpo"].index(stage)
    (problem,) = problems(f"stages.{index}.gates=")
    assert (
        "lacks `gates`" in problem.message
        or f"The stage `{stage}` has no `gates`" in problem.message
    )
    assert any(
        "`gates` is empty" in problem.message for problem in problems(f"stages.{index}.gates=[]")
    )
    load(SEVEN_B, from_options(["stages.3.gates="]))


@pytest.mark.parametrize(
    "text",
    [
        "perplexity",
        "perplexity <",
        "perplexity < fifteen",
        "perplexity<15",
        "perplexity == 15",
        "< 15",
        "x < 5%",
        "x < nan",
    ],
)
def test_a_gate_that_cannot_be_read_is_an_error(text):
    assert problems(f"stages.1.gates={json.dumps([text])}")


def test_a_threshold_beyond_all_bounds_is_an_error():
    (problem,) = problems('stages.1.gates=["perplexity < 1e999"]')
    assert "an infinite number," in problem.message


@pytest.mark.parametrize("window", ["loss_rise.1", "loss_rise.0", "loss_rise.x", "loss_rise."])
def test_a_rise_needs_at_least_two_evaluations(window):
    assert problems(f'stages.1.gates=["{window} <= 0"]')


@pytest.mark.parametrize(
    ("recipe", "gate", "known"),
    [
        ("lyrics", "accuracy.genre >= 0.6", True),
        ("lyrics", "accuracy.mood >= 0.6", False),
        ("survival", "improvement.perplexity >= 0.1", True),
        ("survival", "accuracy >= 0.5", True),
        ("survival", "accuracy.genre >= 0.6", False),
        ("survival", "text_loss < 3", False),
        ("survival", "lm_eval.hellaswag.acc >= 0.3", False),
        ("gemma", "forgetting <= 0.05", True),
        ("gemma", "loss_rise.3 <= 0.02", True),
        ("gemma", "accuracy >= 0.5", False),
        ("resnet", "accuracy.airplane >= 0.8", True),
        ("resnet", "perplexity < 3", False),
        ("resnet", "forgetting <= 0.05", False),
        ("seven-b", "forgetting <= 0.05", False),
    ],
)
def test_check_knows_what_each_recipe_can_measure(recipe, gate, known, golden_message):
    """A pipeline's gates stand in its stages, and nowhere else."""
    options = from_options([f"gates={json.dumps([gate])}"])
    if known:
        loaded = load(ROOT / "recipes" / f"{recipe}.yaml", options)[0]
        assert [f"{text}" for _, text in metrics.written_gates(loaded)] == [gate]
        return
    with pytest.raises(Stop) as stop:
        load(ROOT / "recipes" / f"{recipe}.yaml", options)
    golden_message(stop.value)


def test_without_held_out_rows_nothing_is_known_of_them():
    without = ["data.validation_split=", 'gates=["perplexity < 30"]']
    with pytest.raises(Stop, match="does not produce the metric `perplexity`"):
        load(ROOT / "recipes" / "gemma.yaml", from_options(without))


@pytest.mark.parametrize(
    "gate", ["accuracy >= 60", "perplexity < 0.5", "improvement.perplexity >= 10"]
)
def test_check_refuses_a_gate_beyond_what_its_metric_can_be(gate, golden_message):
    with pytest.raises(Stop) as stop:
        load(ROOT / "recipes" / "lyrics.yaml", from_options([f"gates={json.dumps([gate])}"]))
    golden_message(stop.value)


def test_gates_of_a_simple_recipe_hang_on_its_training_and_change_nothing_that_is_trained(tmp_path):
    bare, gated = (
        plan_in(tmp_path, "survival", *some) for some in ((), ('gates=["forgetting <= 0.05"]',))
    )
    assert [stage.gates for stage in gated.stages] == [(), (Gate("forgetting", "<=", 0.05),)]
    assert (bare.has_gates, gated.has_gates) == (False, True)
    assert bare.stage("train").evaluation.kind == "chat" and bare.fingerprint == gated.fingerprint
    assert [stage.keys for stage in bare.stages] == [stage.keys for stage in gated.stages]


@pytest.mark.parametrize(
    ("text", "in_rehearsals"),
    [
        ("accuracy.genre >= 0.6", "accuracy.genre >= 0"),
        ("perplexity < 15", "perplexity <= 10000"),
        ("forgetting <= 0.05", "forgetting <= 10000"),
        ("improvement.perplexity >= 0.5", "improvement.perplexity >= 0.1"),
        ("improvement.perplexity > 0.05", "improvement.perplexity > 0.05"),
        ("improvement.perplexity < 0.05", "improvement.perplexity <= 1"),
        ("loss_rise.5 <= 0.02", "loss_rise.2 <= 10000"),
        ("preference_margin > 0.3", "preference_margin >= -10000"),
        ("generated_tokens >= 1", "generated_tokens >= 1"),
    ],
)
def test_a_rehearsal_asks_what_a_tiny_model_can_meet(text, in_rehearsals):
    gate = metrics.rehearsed(metrics.parse(text))
    assert str(gate) == in_rehearsals and not metrics.is_senseless(gate)


class Letters:
    """A tokenizer whose tokens are letters, 0 a special one."""

    def decode(self, numbers, skip_special_tokens=False):
        return "".join(
            chr(number) if number else "" if skip_special_tokens else "<end>" for number in numbers
        )


@pytest.mark.parametrize(
    ("prompt", "answer", "asked"),
    [
        ("Which genre? la la", "jazz\0", ("genre",)),
        ("Who sings? la la", "A. Singer\0", ()),
        ("Which genre? la la", "one two three four five six seven\0", None),
        ("Which genre? la la", "two\nlines\0", None),
        ("", "jazz\0", None),
        ("Which genre? la la", "", None),
    ],
)
def test_a_short_answer_is_one_line_of_a_few_words_behind_a_question(prompt, answer, asked):
    numbers, labels = list(map(ord, prompt + answer)), [-100] * len(prompt) + list(map(ord, answer))
    found = evaluate.questions([(numbers, labels)], Letters(), {"genre": "Which genre?"}, 7)
    assert [question.asked for question in found] == ([] if asked is None else [asked])


def test_of_many_held_out_rows_some_evenly_apart_are_kept(tmp_path):
    rows = [{"input_ids": [number, 1], "labels": [-100, 1], "length": 2} for number in range(2000)]
    records.keep_held_out(rows, tmp_path)
    kept = records.read_held_out(tmp_path / "held_out.parquet")
    assert (len(kept.rows), kept.in_all) == (512, 2000)
    assert [ids[0] for ids, _ in kept.rows][:4] == [0, 3, 7, 11] and kept.rows[-1][0][0] > 1990
    for nothing in (None, [], [{"chosen_input_ids": [1]}]):
        records.keep_held_out(nothing, tmp_path)
        assert records.read_held_out(tmp_path / "held_out.parquet") is None


@pytest.mark.parametrize(
    ("lengths", "least"),
    [
        ([8192] * 4000, 120),  # more tokens than are kept
        (
            [8192] * 2000 + [16] * 2000,
            200,
        ),  # long rows of one data set before short ones of another
        ([16] * 2000 + [8192] * 2000, 200),
        ([20_000, 4_000] * 300, 60),
        ([2_000_000, 3_000_000], 1),  # each alone is too long, and one is kept all the same
    ],
)
def test_held_out_rows_are_evenly_apart_where_tokens_are_the_limit(tmp_path, lengths, least):
    class Rows(list):
        def __getitem__(self, number):
            return {"input_ids": [number] * lengths[number], "labels": [1] * lengths[number]}

    records.keep_held_out(Rows(lengths), tmp_path)
    kept = [ids[0] for ids, _ in records.read_held_out(tmp_path / "held_out.parquet").rows]
    assert least <= len(kept) <= 512 and sum(lengths[number] for number in kept) <= max(
        1_000_000, lengths[0]
    )
    apart = [after - before for before, after in itertools.pairwise(kept)]
    even = len(lengths) / len(kept)
    assert all(even - 8 < gap < even + 8 for gap in apart) and kept[-1] >= len(lengths) - even - 8


def scored(**metrics):
    """What an evaluation has found, with lm-eval's scores of two tasks."""
    found = evaluate.Measures()
    found.metrics |= evaluate.scores(
        {
            "results": {
                "wikitext": {
                    "alias": "wikitext",
                    "word_perplexity,none": 12.0,
                    "word_perplexity_stderr,none": 0.1,
                },
                "gsm8k": {
                    "exact_match,strict-match": 0.1,
                    "exact_match,flexible-extract": 0.4,
                    "odd,none": 1.0,
                },
            },
            "higher_is_better": {
                "wikitext": {"word_perplexity": False},
                "gsm8k": {"exact_match": True},
            },
        },
        found,
    )
    return found


def test_a_score_counted_in_several_ways_must_name_one():
    found = scored()
    assert "lm_eval.gsm8k.exact_match" not in found.metrics, (
        "the lenient way would stand for the strict one"
    )
    assert "`exact_match,strict-match`" in found.missing["lm_eval.gsm8k.exact_match"]
    assert found.metrics["lm_eval.gsm8k.exact_match,strict-match"] == 0.1
    assert found.metrics["lm_eval.wikitext.word_perplexity"] == 12.0


def test_a_regression_knows_whether_more_is_better():
    def worse(name, before):
        return evaluate.regression({name: before}, scored(), name)

    assert worse("lm_eval.wikitext.word_perplexity", 10.0) == pytest.approx(0.2)
    assert worse("lm_eval.gsm8k.exact_match,strict-match", 0.2) == pytest.approx(0.5)
    with pytest.raises(evaluate.Cannot, match="does not say whether higher values"):
        worse("lm_eval.gsm8k.odd", 2.0)


def test_a_gate_and_a_promotion_are_about_the_weights_that_lie_there(tmp_path):
    RunFolder(tmp_path).mark("running")
    plan = plan_in(tmp_path, "seven-b")
    finish(plan)
    folder = StageFolder(plan, plan.stage("sft"))
    metrics = {
        "perplexity": 20.0,
        "generated_tokens": 16,
        "regression.lm_eval.hellaswag.acc_norm": 0.0,
    }
    measured(folder, metrics=metrics)
    promotion = gates.promote(folder, "Ada Lovelace", "the demo is tomorrow")
    assert gates.promotion(folder, look=True) == promotion
    whole = json.loads((folder.path / "promotion.json").read_text())
    assert list(whole) == [
        "by",
        "reason",
        "at",
        "missed",
        "run",
        "stage",
        "inputs",
        "model",
        "gates",
    ]
    for part in whole:
        for broken in (None, 3, "", [], "x", [1], [{}], {}, [*whole["missed"], {}]):
            (folder.path / "promotion.json").write_text(json.dumps(whole | {part: broken}))
            lenient = part in ("by", "reason", "at") and broken == "x"
            assert (gates.promotion(folder) is not None) == lenient, (
                f"{part}: {broken} makes it no promotion"
            )
        (folder.path / "promotion.json").write_text(
            json.dumps({name: whole[name] for name in whole if name != part})
        )
        assert gates.promotion(folder) is None
    # As older versions have written them.
    figures = [
        {"metric": of["metric"], "wanted": of["threshold"], "got": of["got"]}
        for of in whole["missed"]
    ]
    (folder.path / "promotion.json").write_text(
        json.dumps(whole | {"missed": figures, "of": "tomorrow"})
    )
    assert gates.promotion(folder).lines == promotion.lines
    promotion.write(folder.path)
    (folder.model / "model.safetensors").write_text("something else")
    assert gates.promotion(folder, look=True) is None
    assert {verdict.why for verdict in gates.verdicts(folder, look=True)} == {
        "measured on another model"
    }
    with pytest.raises(Stop, match="no finished result"):
        gates.promote(folder, "Ada Lovelace", "the demo is tomorrow")
    for broken in (
        "[]",
        '"x"',
        '{"outputs": [1], "inputs": 3, "status": "finished"}',
        "[" * 100_000,
    ):
        (folder.path / "stage.json").write_text(broken)
        assert gates.subject(folder) is None and pipeline.decision_on(folder).action != "keep"


@pytest.fixture
def sft(tmp_path) -> StageFolder:
    """A stage whose gate is open by what is on record."""
    RunFolder(tmp_path).mark("running")
    plan = plan_in(tmp_path, "seven-b")
    finish(plan)
    folder = StageFolder(plan, plan.stage("sft"))
    metrics = {
        "perplexity": 3.0,
        "generated_tokens": 16,
        "regression.lm_eval.hellaswag.acc_norm": 0.0,
    }
    (folder.model / "config.json").write_text('{"rope_theta": 1e4}')
    folder.mark("finished", outputs=folder.outputs())
    measured(folder, metrics=metrics)
    assert gates.opened(folder, look=True)[0]
    return folder


def test_a_number_that_was_edited_by_hand_is_found_out(sft):
    record = json.loads((sft.path / "evaluation.json").read_text())
    for edited in (
        record | {"metrics": record["metrics"] | {"perplexity": 2.0}},
        record | {"missing": {"perplexity": "x"}},
        record | {"model": "0" * 32},
        record | {"more": 1},
    ):
        (sft.path / "evaluation.json").write_text(json.dumps(edited))
        assert {verdict.why for verdict in gates.verdicts(sft)} == {CHANGED}
    (sft.path / "evaluation.json").write_text(json.dumps(record))
    assert gates.opened(sft)[0]


def test_a_file_beside_the_weights_that_was_changed_or_added_closes_the_gate(sft):
    for name in ("config.json", "generation_config.json"):
        (sft.model / name).write_text('{"rope_theta": 1e6}')
        assert {verdict.why for verdict in gates.verdicts(sft, look=True)} == {
            "measured on another model"
        }
        assert not gates.opened(sft, look=True)[0]


def test_the_key_is_made_once_and_lies_in_the_persons_own_folder(
    sft, tmp_path_factory, monkeypatch
):
    record = json.loads((sft.path / "evaluation.json").read_text())
    monkeypatch.delenv("RECIPE_RUNNER_KEY")
    settings = tmp_path_factory.mktemp("settings")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(settings))
    assert "There is no key" in seal.broken(record)
    (sft.path / "evaluation.json").write_text(json.dumps(seal.sealed(record, make=True)))
    file = settings / "recipe-runner" / "key"
    assert file.stat().st_mode & 0o777 == 0o600 and seal.key(make=True) == file.read_text().strip()
    assert gates.opened(sft)[0]
    assert file.read_text().strip() not in "".join(
        path.read_text(errors="replace") for path in sft.run.path.rglob("*") if path.is_file()
    )
    file.write_text("short\n")
    assert seal.broken(record) == "The key that seals measurements has 5 characters, but needs 32."
    file.write_bytes(b"\xff\xfe")
    assert "cannot be used" in seal.broken(record)


def test_a_namespace_has_a_key_of_its_own_and_seals_of_before_are_still_read(monkeypatch):
    """Pods seal with the namespace's key, made from that of whoever sent first; that person reads
    both, nobody else does."""
    record = {"metrics": {"perplexity": 7.5}, "run": "r1"}
    mine, theirs = "ab" * 32, "cd" * 32

    def of(key: str, space: str) -> str:
        monkeypatch.setenv("RECIPE_RUNNER_KEY", key)
        return seal.key(make=False, namespace=space)

    one, another = of(mine, "team-a"), of(mine, "team-b")
    assert (
        one.startswith("team-a:")
        and mine not in one
        and len({one, another, of(theirs, "team-a")}) == 3
    )
    assert one.partition(":")[2] != another.partition(":")[2]

    def sealed(key: str) -> dict:
        monkeypatch.setenv("RECIPE_RUNNER_KEY", key)
        return seal.sealed(record, make=False)

    def read(facts: dict, key: str) -> str:
        monkeypatch.setenv("RECIPE_RUNNER_KEY", key)
        return seal.broken(facts)

    in_pod, before = sealed(one), sealed(mine)
    assert in_pod["digest"].startswith("team-a:") and ":" not in before["digest"]
    # Fetched results are read on the desk of whoever made the Secret, by the key of no other person
    # and in no other namespace.
    assert read(in_pod, mine) == "" and read(in_pod, one) == ""
    assert read(in_pod, theirs) == read(in_pod, another) == CHANGED
    # The key of a namespace opens nothing of its owner's own.
    assert read(before, one) == CHANGED and read(sealed(another), one) == CHANGED
    # A Secret of an earlier release has a person's own key; what was sealed with it is still read,
    # there and at home.
    assert read(before, mine) == ""
    for spoilt in (
        before | {"run": "r2"},
        in_pod | {"run": "r2"},
        in_pod | {"digest": in_pod["digest"].replace("-a:", "-b:")},
    ):
        assert read(spoilt, mine) == CHANGED


def test_how_a_stage_is_measured_decides_whether_a_record_still_holds(tmp_path):
    """Where the files of a measurement lie changes nothing; what is asked for does."""
    RunFolder(tmp_path).mark("running")
    finish(plan_in(tmp_path, "seven-b"))

    def settings(*options: str, **place) -> str:
        plan = plan_in(tmp_path, "seven-b", *options, **place)
        return gates.subject(StageFolder(plan, plan.stage("sft"))).settings

    first = settings()
    assert settings("stages.1.gates.0=perplexity < 14") == first, (
        "a threshold is judged, and not measured"
    )
    assert settings(data_dir=f"{tmp_path}/data/../data") == first
    assert settings("evaluation.prompt=The recipe") != first
    assert settings("evaluation.limit=7") != first
    assert settings("stages.1.gates.0=text_loss < 14") != first


def test_a_stage_without_weights_or_without_a_run_has_nothing_to_measure(tmp_path):
    plan = plan_in(tmp_path, "seven-b")
    finish(plan)
    sft, data = (StageFolder(plan, plan.stage(name)) for name in ("sft", "data"))
    assert gates.subject(sft) is None, "the folder is no run yet"
    RunFolder(tmp_path).mark("running")
    assert gates.subject(sft) is not None and gates.subject(data) is None
    with pytest.raises(Stop, match="no finished result"):
        gates.measure(data)
    (sft.model / "model.safetensors").unlink()
    sft.mark("finished", outputs=sft.outputs())
    assert gates.subject(sft) is None, "there are no weights"


def test_what_a_process_is_told_to_measure_comes_over_whole(tmp_path, monkeypatch):
    RunFolder(tmp_path).mark("running")
    plan = plan_in(tmp_path, "seven-b")
    finish(plan)
    told = []

    def follow(command, *_) -> None:
        told.append(TypeAdapter(gates.Task).validate_json(Path(command[-1]).read_bytes()))
        (tmp_path / told[-1].stage_dir / ".measured.json").write_text(
            '{"metrics": {"x": Infinity}, "missing": {"y": "z"}, "counts": {"held_out_rows": 7}}'
        )

    monkeypatch.setattr(gates, "follow", follow)
    for stage in (plan.stage("pretrain-2048"), plan.stage("sft")):
        folder = StageFolder(plan, stage)
        known = gates.measure(folder)
        asked = asdict(stage.evaluation) | {"rows": f"{tmp_path}/{stage.name}/held_out.parquet"}
        assert asked.items() <= asdict(told[-1]).items()
        assert told[-1].base == stage.config["base_model"] and told[-1].model.endswith(
            f"{stage.name}/best_model"
        )
        assert known == gates.record(folder) == gates.current(folder)
    assert [task.metrics_before for task in told] == [None, {"x": math.inf}]
    assert gates.measure(folder, folder.model) == known, (
        "it is the stage's own, however it is named"
    )
    written = json.loads((tmp_path / "sft" / "evaluation.json").read_text())
    found = [
        "metrics",
        "before",
        "missing",
        "counts",
        "confusion",
        "checkpoint",
        "seed",
        "versions",
        "digest",
    ]
    assert (
        list(written) == [*vars(HERE), *found]
        and written["seed"] == 42
        and written["versions"]["torch"]
    )


@pytest.mark.parametrize(
    "recorded", [None, {"lm_eval.sample.acc": 0.25}], ids=["the first stage", "after another"]
)
def test_tasks_are_scored_before_training_too_unless_the_stage_before_has_them_on_record(
    tmp_path, monkeypatch, recorded
):
    monkeypatch.setattr(evaluate, "load", lambda folder, *given: (folder, "tokenizer"))
    monkeypatch.setattr(evaluate, "generated", lambda *given: 16)
    scores = {"trained": {"lm_eval.sample.acc": 0.5}, "base": {"lm_eval.sample.acc": 0.3}}
    monkeypatch.setattr(evaluate, "lm_eval_scores", lambda model, *given: scores[model])
    task = gates.Task(
        kind="text", metrics=("lm_eval.sample.acc",), tasks=("sample",), rows=str(tmp_path / "none"), model="trained",
        base="base", revision=None, trust_remote_code=False, turn_end=None, stage_dir=str(tmp_path), metrics_before=recorded,
    )  # fmt: skip
    measures = evaluate.Measures()
    evaluate.read(task, measures)
    assert measures.metrics["lm_eval.sample.acc"] == 0.5
    assert measures.before.get("lm_eval.sample.acc") == (None if recorded else 0.3)


def test_a_score_that_lm_eval_does_not_give_is_not_put_down_to_training(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "load", lambda *given: ("model", "tokenizer"))
    monkeypatch.setattr(evaluate, "generated", lambda *given: 16)
    monkeypatch.setattr(evaluate, "lm_eval_scores", lambda *given: {"lm_eval.sample.acc": 0.5})
    asked = (
        "perplexity",
        "improvement.perplexity",
        "loss_rise.2",
        "accuracy.genre",
        "lm_eval.sample.akk",
    )
    task = gates.Task(
        kind="chat", metrics=asked, tasks=("sample",), rows=str(tmp_path / "none"), model=str(tmp_path), base="",
        revision=None, trust_remote_code=False, turn_end=None, stage_dir=str(tmp_path), metrics_before=None,
    )  # fmt: skip
    (tmp_path / "task.json").write_text(json.dumps(asdict(task)))
    assert evaluate.main(str(tmp_path / "task.json")) == 0
    found = json.loads((tmp_path / ".measured.json").read_text())
    assert found["metrics"] == {"generated_tokens": 16, "lm_eval.sample.acc": 0.5}
    missing = found["missing"]
    assert (
        missing["perplexity"]
        == missing["improvement.perplexity"]
        == "training saved no held-out rows"
    )
    assert (
        "no history" in missing["loss_rise.2"]
        and missing["lm_eval.sample.akk"] == "it was not measured"
    )
    assert (
        missing["accuracy.genre"]
        == missing["accuracy"]
        == "no held-out row has an answer of at most 6 words"
    )


def test_the_record_of_a_model_that_cannot_be_loaded_has_the_reason_alone(tmp_path):
    (broken := tmp_path / "broken").mkdir()
    (broken / "config.json").write_text("{}")
    reasons = []
    for folder in (tmp_path / "none", broken):
        measures, task = evaluate.Measures(), SimpleNamespace(tasks=(), text_blocks="", metrics=())
        vars(task).update(model=str(folder), base="", revision=None, trust_remote_code=False)
        evaluate.of_one_model(task, measures, str(folder), before=False)
        assert not measures.metrics and len(set(measures.missing.values())) == 1
        reasons.append(measures.missing["validation_loss"])
    assert reasons[0] == f"The model `{tmp_path / 'none'}` is not here."
    assert "cannot be loaded" not in reasons[1], "transformers' words alone"
