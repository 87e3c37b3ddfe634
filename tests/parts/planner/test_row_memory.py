"""Memory by the rows that are there: two figures, one verdict for every command, and what pods
compare."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from runner.catalog import gpu
from runner.check.validate import load
from runner.commands import cli
from runner.data import prepared
from runner.data.prepared import ROOM, Lengths
from runner.parts.planner import recipe_offers
from runner.parts.planner.planned import Planned
from runner.recipe.overrides import from_options
from runner.scenarios import planned as emitted
from tests.conftest import ROOT

SURVIVAL, LYRICS = (ROOT / "recipes" / f"{name}.yaml" for name in ("survival", "lyrics"))
# As many rows at once as were seen to run on two L40S.
ROWS_FIT = ("train.micro_batch_size=28", "train.gradient_accumulation_steps=4", "train.epochs=8")
NEVER = ("train.micro_batch_size=96",)
UNKNOWN = ("data.hub=someone/else", "limits.time=")


def found(path: Path, *sets: str) -> Planned:
    return Planned.of(load(path, from_options(sets))[0])


def options(sets: tuple[str, ...]) -> list[str]:
    return [part for one in sets for part in ("--set", one)]


@pytest.fixture
def said(capsys, tmp_path, monkeypatch):
    """A command's exit code, and what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(
        verb: str, path: Path, *sets: str, json_too: bool = False, also: tuple[str, ...] = ()
    ) -> tuple[int, str]:
        code = cli._code(
            [verb, str(path), *options(sets), *(["--format", "json"] if json_too else []), *also]
        )
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return run


def test_rows_that_fit_pass_with_a_note_and_the_first_offer_cuts_none(
    said, tmp_path, monkeypatch, golden_message
):
    code, screen = said("plan", SURVIVAL, *ROWS_FIT)
    assert (
        code == 0 and "survival fits: it needs 27.9 (at most 66.3) of each GPU's 44.4 GiB" in screen
    )
    golden_message(screen, "plan")
    code, shown = said("check", SURVIVAL, *ROWS_FIT)
    assert code == 0 and "note: Stage `train` fits for rows of 256 tokens" in shown
    golden_message(shown, "check")
    # Before anything is written or sent; here there is no cluster to send it to.
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for verb, code in (("render", 0), ("submit", 1)):
        done, shown = said(verb, SURVIVAL, *ROWS_FIT)
        assert (
            done == code and shown.count("note: Stage `train` fits for rows of 256 tokens") == 1
        ), shown
        assert "Stage `train`" not in said(verb, SURVIVAL)[1]
    first = recipe_offers.of(found(SURVIVAL, *ROWS_FIT))[0]
    assert first.lines == ["model.sequence_len: 512"] and first.after.forecasts[0].full.fits
    assert not any(note.message.startswith("Stage `train` fits for") for note in first.after.notes)


def test_what_never_fits_names_prepare(said, golden_message):
    code, shown = said("check", SURVIVAL, *NEVER)
    assert code == 1 and "recipe prepare" in shown
    golden_message(shown)


def test_the_plan_of_songs_is_that_of_their_length(said):
    (stage,) = found(LYRICS).forecasts
    assert (
        stage.memory.total
        < 0.6 * gpu("NVIDIA-L40S").usable_gib * 2**30
        < 0.7 * stage.full.memory.total
    )
    _, screen = said("plan", LYRICS)
    assert "25.9 (at most" in screen.splitlines()[0] and "at most 43.0" in screen.splitlines()[0]
    for shown in (screen, said("plan", LYRICS, also=("--details",))[1]):
        assert "1,472 tokens" in shown and "99th percentile" in shown
    (entry,) = json.loads(said("plan", LYRICS, json_too=True)[1])["stages"]
    assert entry["gpu_memory_bytes"]["total"] == stage.memory.total
    assert entry["gpu_memory_bytes"]["at_full_length"] == stage.full.memory.total
    assert entry["rows"]["longest"] == 1467 and "catalog" in entry["rows"]["longest_source"]


def test_the_longest_row_comes_from_the_catalog_the_file_or_the_sample_and_at_last_from_a_count(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (of_catalog,) = found(SURVIVAL).forecasts
    assert (of_catalog.workload.most_tokens, of_catalog.full.workload.most_tokens) == (256, 1024)
    (of_sample,) = found(SURVIVAL, *UNKNOWN).forecasts
    assert (
        of_sample.rows.training is None and "survival-sample.jsonl" in of_sample.rows.longest_source
    )
    assert (
        128 <= of_sample.workload.most_tokens <= 256
        and of_sample.full.memory.total > of_sample.memory.total
    )
    file = tmp_path / "mine.jsonl"
    rows = [
        {"topic": "t", "question": "q?", "answer": "word " * (700 if n == 3 else 20)}
        for n in range(200)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    mine = ("data.hub=", "data.revision=", "data.split=", f"data.path={file}")
    (of_file,) = found(SURVIVAL, *mine).forecasts
    assert of_file.workload.most_tokens > 900 and "mine.jsonl" in of_file.rows.longest_source
    (none,) = found(SURVIVAL, *UNKNOWN, "data.sample=").forecasts
    assert none.workload.most_tokens == 1024 and none.full is none
    plan = found(SURVIVAL).plan
    data = plan.stage("train").data
    made = prepared.PreparedRows(
        2561, 284, None, prepared.asked(data), Lengths(160.0, 12.0, 188.0), longest=192
    )
    (tmp_path / "runs" / "survival" / "data").mkdir(parents=True)
    made.write(tmp_path / "runs" / "survival" / "data")
    (counted,) = found(SURVIVAL, *ROWS_FIT).forecasts
    assert counted.workload.most_tokens == 192 and counted.full is counted and counted.fits


VERDICTS = {
    "as it is": ((), 0),
    "rows fit": (ROWS_FIT, 0),
    "may fit": (("train.micro_batch_size=65",), 0),
    "never fits": (NEVER, 1),
    "never fits by its sample": ((*UNKNOWN, "train.micro_batch_size=256"), 1),
    "too little main memory": (("machines.memory=16 GB",), 0),
    "a claim that is too small": (("openshift.claims.0.size_gib=7",), 0),
    "a limit of memory": (("limits.gpu_memory=10 GB",), 0),
    "a limit of time": (("limits.time=3 min",), 0),
    "a limit of cost": (("limits.cost=0.1", "limits.price_per_gpu_hour=2"), 0),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_plan_check_and_render_have_one_verdict(case, said):
    sets, code = VERDICTS[case]
    assert {
        verb: said(verb, SURVIVAL, *sets)[0] for verb in ("plan", "check", "render")
    } == dict.fromkeys(("plan", "check", "render"), code)


@pytest.mark.parametrize("longest", [192, 1000])
def test_prepared_rows_decide_in_every_command(longest, said, tmp_path):
    data = found(SURVIVAL).plan.stage("train").data
    made = prepared.PreparedRows(
        2561, 284, None, prepared.asked(data), Lengths(160.0, 12.0, 188.0), longest=longest
    )
    (tmp_path / "runs" / "survival" / "data").mkdir(parents=True)
    made.write(tmp_path / "runs" / "survival" / "data")
    code = int(longest == 1000)
    assert {said(verb, SURVIVAL, *ROWS_FIT)[0] for verb in ("plan", "check", "render")} == {code}


def test_what_own_runs_took_changes_no_verdict(said, tmp_path, monkeypatch):
    from runner.parts.planner import calibration, constants

    slack = {"NVIDIA-L40S": replace(constants.ASSUMED, slack=0.5, source="own runs")}
    monkeypatch.setattr(calibration, "learned", lambda: slack)
    code, shown = said("plan", SURVIVAL, "train.micro_batch_size=63")
    assert (
        "does not fit" in shown
        and code == said("check", SURVIVAL, "train.micro_batch_size=63")[0] == 0
    )


def test_a_limit_above_the_card_is_noted_by_plan_and_check(said, golden_message):
    for verb in ("check", "plan"):
        code, shown = said(verb, SURVIVAL, "limits.gpu_memory=80 GB")
        assert code == 0 and shown.count("note: ") == 1, shown
    golden_message(said("check", SURVIVAL, "limits.gpu_memory=80 GB")[1])


def test_pods_get_the_room_for_rows_only_where_not_every_row_has_room(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def rooms(path: Path, *sets: str) -> dict[str, list]:
        plan = emitted(load(path, from_options(sets))[0], "pytorchjob")
        return {
            stage.name: json.loads(stage.env[ROOM]) for stage in plan.stages if ROOM in stage.env
        }

    assert rooms(SURVIVAL) == rooms(LYRICS) == rooms(SURVIVAL, *NEVER) == {}
    assert list(rooms(SURVIVAL, *ROWS_FIT)) == ["train"]
    told = rooms(LYRICS, "train.micro_batch_size=36")
    assert list(told) == ["data", "train"] and told["data"] == told["train"]
    ((folders, most, why, remedy),) = told["data"]
    assert (
        folders == [""]
        and 1472 <= most < 3072
        and "36 rows at once" in why
        and f"`sequence_len: {most}`" in remedy
    )
    # The longest that has room, and not one more.
    (stage,) = found(LYRICS, "train.micro_batch_size=36").forecasts
    assert not stage.changed(longest=most).never_fits and stage.changed(longest=most + 1).never_fits
    told = rooms(ROOT / "recipes" / "seven-b.yaml", "stages.3.train.micro_batch_size=100")
    assert [entry[0] for entry in told["data"]] == [["lora", "sft"]]
