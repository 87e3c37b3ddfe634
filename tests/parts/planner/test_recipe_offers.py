"""What a plan offers: that each offer holds when it is taken, what comes first, and how it is
written into a recipe."""

from __future__ import annotations

import os
import stat
from functools import cache
from pathlib import Path

import pytest

from runner import catalog
from runner.check import copying
from runner.check.validate import examine, load, override
from runner.commands import cli
from runner.parts.planner import formulas, recipe_offers
from runner.parts.planner.forecast import Loss
from runner.parts.planner.planned import Planned
from runner.parts.planner.recipe_offers import Offer, OfferScope
from runner.parts.planner.view import views
from runner.recipe.overrides import from_options
from runner.recipe.reading import read
from runner.tools.problem import Stop
from tests.catalog.axolotls_own import unknown_keys, validated
from tests.conftest import ROOT

SURVIVAL, LYRICS = "survival.yaml", "lyrics.yaml"
TOO_MUCH = ("train.micro_batch_size=96", "train.effective_batch_size=768")
# Recipes that hold, that are too large for their card, and that break a limit of their own.
CASES = {
    "survival": (SURVIVAL, ()),
    "lyrics": (LYRICS, ()),
    "gemma": ("gemma.yaml", ()),
    "seven-b": ("seven-b.yaml", ()),
    "resnet": ("resnet.yaml", ()),
    "minimal lora": ("minimal/lora.yaml", ()),
    "minimal last layers": ("minimal/last-layers.yaml", ()),
    "minimal from-scratch": ("minimal/from-scratch.yaml", ()),
    "pipeline, slow card": ("minimal/from-scratch.yaml", ("machines.gpu=NVIDIA-L4",)),
    "minimal causal": ("minimal/causal-lm.yaml", ()),
    "padded": (SURVIVAL, ("train.packing=none", "machines.nodes=1", "train.epochs=200", "limits.time=1 d")),
    "batch too large": (SURVIVAL, TOO_MUCH),
    "batch too large, fp32": (SURVIVAL, (*TOO_MUCH, "model.precision=fp32", "model.attention=sdpa")),
    "memory limit": (SURVIVAL, ("limits.gpu_memory=10 GB",)),
    "parts": (SURVIVAL, ('limits.gpu_memory_parts={"weights": "6 GB"}',)),
    "time limit": (SURVIVAL, ("limits.time=12 min",)),
    "cost limit": (SURVIVAL, ("limits.cost=0.1", "limits.price_per_gpu_hour=2")),
    "speed": (SURVIVAL, ("limits.samples_per_second=1000",)),
    "claim": (SURVIVAL, ("openshift.claims.0.size_gib=7",)),
    "card too small": (LYRICS, ("machines.gpu=NVIDIA-L4",)),
    "card far too small": (LYRICS, ("machines.gpu=NVIDIA-L4", "train.micro_batch_size=96", "train.eval_batch_size=48")),
    "evaluation": (LYRICS, ("train.eval_batch_size=24",)),
    "evaluation, plain machines": ("gemma.yaml", ("machines.gpu=NVIDIA-L4",)),
    "pipeline, time": ("seven-b.yaml", ("limits.time=2 d",)),
    "one GPU": ("seven-b.yaml", ("machines.gpus_per_node=1", "limits.gpu_memory=")),
    "one GPU, no preferences": ("seven-b.yaml", ("machines.gpus_per_node=1", "limits.gpu_memory=", "stages.2=")),
    "pipeline, card": ("seven-b.yaml", ("machines.gpu=NVIDIA-L4",)),
    "images": ("resnet.yaml", ("train.micro_batch_size=4096", "train.effective_batch_size=4096", "machines.gpu=NVIDIA-A10")),
}  # fmt: skip


@pytest.fixture
def own(tmp_path):
    """A copy of a starter with settings written into it: `own("survival.yaml", "train.epochs=2")`
    gives its path."""

    def make(name: str, *sets: str) -> Path:
        path = tmp_path / "recipes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not (tmp_path / "recipes" / "data").exists():
            (tmp_path / "recipes" / "data").symlink_to(ROOT / "recipes" / "data")
        document = read(ROOT / "recipes" / name)
        changes = override(document, from_options(sets))[1]
        path.write_text(copying.edit(document.text, changes), encoding="utf-8")
        return path

    return make


def planned(path: Path) -> Planned:
    return Planned.of(load(path)[0])


@pytest.mark.parametrize("case", CASES)
def test_every_offer_holds_when_it_is_taken(own, case):
    name, sets = CASES[case]
    path = own(name, *sets)
    text, before = path.read_text("utf-8"), planned(path)
    found = recipe_offers.of(before)
    assert found or not before.problems, "nothing is offered to who needs it"
    for offer in found:
        copying.rewrite(before.recipe.document, offer.changes)
        assert [problem for problem in examine(path) if problem.severity == "error"] == [], (
            offer.lines
        )
        after = planned(path)
        assert after.problems == [], offer.lines
        assert after.together == offer.after.together
        assert [each.memory for each in after.forecasts] == [
            each.memory for each in offer.after.forecasts
        ]
        kept = [line for line in text.splitlines() if line.strip().startswith("#")]
        assert all(line in path.read_text("utf-8").splitlines() for line in kept), (
            "a comment is gone"
        )
        path.write_text(text, encoding="utf-8")


@cache
def offered(case: str) -> tuple[Planned, list[Offer]]:
    name, sets = CASES[case]
    before = Planned.of(load(ROOT / "recipes" / name, from_options(sets))[0])
    return before, recipe_offers.of(before)


@pytest.mark.parametrize("case", ["card too small", "batch too large", "pipeline, card"])
def test_what_loses_nothing_comes_first(case):
    _, found = offered(case)
    ranks = [(offer.loss, offer.scope) for offer in found]
    assert ranks == sorted(ranks)
    assert found[0].loss == Loss.NOTHING
    for offer in found:
        assert (offer.loss > Loss.NOTHING) <= bool(offer.loses)
        thrown = any("sequence_len" in line for line in offer.lines)
        assert not thrown or any("are left out" in words for words in offer.loses)


@pytest.mark.parametrize("case", ["minimal lora", "lyrics", "padded"])
def test_where_nothing_has_to_change_an_offer_brings_something_and_loses_nothing(case):
    before, found = offered(case)
    assert found
    for offer in found:
        faster = offer.after.seconds < before.seconds
        assert faster or offer.after.together.gpu_hours < before.together.gpu_hours
        assert offer.loss == Loss.NOTHING or offer.saves_less


@pytest.mark.parametrize(
    ("recipe", "sets", "wanted"),
    [
        ("survival", (), "train.eval_steps: 161"),
        ("survival", ("train.save_steps=10",), "train.save_steps: 161"),
        ("survival", ("openshift.claims.0.write_mb_s=2000",), ""),
        ("seven-b", (), "stages.0.train.save_steps: 8000"),
        ("seven-b", ("openshift.claims.0.write_mb_s=2000",), ""),
        ("lyrics", (), ""),
    ],
)
def test_fewer_checkpoints_are_offered_where_they_take_much_of_the_time(
    recipe, sets, wanted, golden_message
):
    before = Planned.of(load(ROOT / "recipes" / f"{recipe}.yaml", from_options(sets))[0])
    found = [offer for offer in recipe_offers.of(before) if offer.saves_less]
    assert [", ".join(offer.lines) for offer in found] == ([wanted] if wanted else [])
    for offer in found:
        times = [[stage.time for stage in each.forecasts] for each in (before, offer.after)]
        saving = [sum(time.checkpoints.seconds for time in each) for each in times]
        gained = before.seconds - offer.after.seconds
        assert (
            gained == pytest.approx(saving[0] - saving[1], rel=0.05)
            and gained > 0.05 * before.seconds
        )
        golden_message("; ".join(offer.loses))


@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        ("minimal lora", "train.micro_batch_size: 16, train.gradient_accumulation_steps: 1"),
        ("padded", "train.packing: auto"),
        ("evaluation", "train.eval_batch_size: "),
        ("card too small", "machines.gpu: NVIDIA-"),
        (
            "survival",
            "machines.nodes: 1, train.gradient_accumulation_steps: 8, train.learning_rate: 0.0002",
        ),
        ("time limit", "limits.time: 42 min"),
        ("time limit", "train.epochs: "),
        ("memory limit", "limits.gpu_memory: 21 GB"),
        ("claim", "openshift.claims.0.size_gib: 50"),
    ],
)
def test_each_kind_of_change_is_offered_where_it_helps(case, wanted):
    lines = [", ".join(offer.lines) for offer in offered(case)[1]]
    assert any(line.startswith(wanted) for line in lines), lines


OFFLOADED = "distribution: zero2, sharding.offload_optimizer: cpu"
EIGHT_BITS = "stages.0.train.optimizer: adamw_bnb_8bit"
HALF = "model.master_weights: bf16"  # of a stage, the one that needs most first


@pytest.mark.parametrize("gpu", ["NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB"])
@pytest.mark.parametrize(
    ("case", "ways"),
    [
        ("one GPU", (OFFLOADED, f"stages.2.{HALF}")),
        ("one GPU, no preferences", (OFFLOADED, EIGHT_BITS, f"stages.0.{HALF}")),
    ],
)
def test_a_7b_model_on_one_gpu_is_offered_each_way_to_fit_and_axolotl_takes_it(
    own, case, ways, gpu
):
    """DPO's reference model leaves no room for an optimizer of 8 bits beside weights in fp32."""
    name, sets = CASES[case]
    path = own(name, *sets, f"machines.gpu={gpu}")
    text, before = path.read_text("utf-8"), planned(path)
    assert before.fits is False
    offers = recipe_offers.of(before)
    assert [offer.loss for offer in offers] == sorted(offer.loss for offer in offers)
    for way in ways:
        (offer,) = [one for one in offers if ", ".join(one.lines).startswith(way)]
        assert offer.loses and offer.after.fits
        copying.rewrite(before.recipe.document, offer.changes)
        for stage in planned(path).plan.stages:
            if stage.engine == "axolotl":
                config = dict(stage.config)
                assert validated(config, catalog.gpu(gpu), 1)
                assert unknown_keys(config) == []
        path.write_text(text, encoding="utf-8")


def test_fp8_counts_on_a_card_that_has_it():
    cards = [
        offer for offer in offered("pipeline, slow card")[1] if offer.scope == OfferScope.MACHINES
    ]
    assert any("in FP8" in words for offer in cards for words in offer.loses)
    assert all(offer.cost is None for offer in cards), "the price of one card is not another's"


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        # 110 minutes instead of 4.8 hours. A B200 would need 77, less than half an hour saved.
        ("lyrics", ["machines.gpu: NVIDIA-H100-NVL"]),
        # A B200 would leave 54 % of the time,
        ("minimal from-scratch", []),
        # and here it would save minutes.
        ("minimal causal", []),
    ],
)
def test_a_dearer_card_is_offered_only_if_it_saves_much_of_the_time(case, expected):
    before, offers = offered(case)
    dearer = [offer for offer in offers if offer.needs_dearer_card]
    assert before.fits and [", ".join(offer.lines) for offer in dearer] == expected
    for offer in dearer:
        assert offer.after.seconds <= before.seconds / 2
        assert before.seconds - offer.after.seconds >= 1800


def test_a_dearer_card_is_offered_wherever_the_recipe_needs_its_memory(golden_message):
    before, offers = offered("card too small")
    assert not before.fits
    (offer,) = [offer for offer in offers if offer.needs_dearer_card]
    assert offer.after.fits
    golden_message(views._filled("offer", offer, offer.after), "to fit")
    (faster,) = [offer for offer in offered("lyrics")[1] if offer.needs_dearer_card]
    golden_message(views._filled("offer", faster, faster.after), "to be faster")


def test_a_smaller_model_with_a_stricter_licence_is_offered_last():
    """Of those that fit: SmolLM3 is a little smaller than Llama 3.2 3B, and free."""
    before = Planned.of(load(ROOT / "recipes" / LYRICS)[0])
    (stage,) = before.forecasts
    lines, work = formulas.Lines(before.recipe, stage.stage), stage.workload
    found = [next(formulas._smaller_model(lines, work, budget * 2**30)) for budget in (30, 26)]
    named = [advice.changes["model.base"] for advice in found]
    assert named == ["microsoft/Phi-3-mini-4k-instruct", "HuggingFaceTB/SmolLM3-3B"]


def test_a_card_that_nobody_knows_gets_no_offers(own):
    assert recipe_offers.of(planned(own(SURVIVAL, "machines.gpu=NVIDIA-OWN"))) == []


def test_a_raised_limit_raises_a_deadline_that_would_come_before_it(own):
    name, sets = CASES["card too small"]
    path = own(name, *sets)
    before = planned(path)
    copying.rewrite(before.recipe.document, recipe_offers.of(before)[0].changes)
    assert not [note for note in examine(path) if "job is ended" in note.message]
    assert not [note for note in planned(path).notes if "job is ended" in note.message]


def test_taking_an_offer_writes_it_and_shows_the_difference(own, capsys, golden_message):
    path = own(SURVIVAL, *TOO_MUCH)
    path.chmod(0o640)
    before = path.read_text("utf-8").splitlines()
    assert cli._code(["plan", str(path)]) == 1
    capsys.readouterr()
    assert cli._code(["plan", str(path), "--apply", "1"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    golden_message(said.out)
    after = path.read_text("utf-8").splitlines()
    lines = list(zip(before, after, strict=True))
    changed = [
        (old, new)
        for old, new in lines
        if old.partition(" #")[0].rstrip() != new.partition(" #")[0].rstrip()
    ]
    assert [new.split()[:2] for _, new in changed] == [
        ["micro_batch_size:", "48"],
        ["gradient_accumulation_steps:", "4"],
    ]
    assert all(old.partition("#")[2] == new.partition("#")[2] for old, new in changed)
    # Beside other lines figures go that were reckoned for the recipe as it was.
    assert "about 10 GB each" not in path.read_text("utf-8")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert cli._code(["plan", str(path)]) == 0


def test_what_cannot_be_taken_is_said(own, capsys, golden_message):
    path = own(SURVIVAL)
    for case, options, code in (
        ("no such number", ("--apply", "9"), 1),
        ("beside --set", ("--apply", "1", "--set", "train.epochs=2"), 2),
        ("beside JSON", ("--apply", "1", "--format", "json"), 2),
    ):
        assert cli._code(["plan", str(path), *options]) == code, case
        said = capsys.readouterr()
        assert said.out == ""
        golden_message(said.err, case)
    assert path.read_text("utf-8") == (ROOT / "recipes" / SURVIVAL).read_text("utf-8")
    assert cli._code(["plan", str(own("resnet.yaml")), "--apply", "1"]) == 1
    assert "There are none." in capsys.readouterr().err


def test_a_file_that_cannot_be_written_stays_and_its_lines_are_said(
    own, monkeypatch, golden_message
):
    path = own(SURVIVAL)
    before = planned(path)
    changes = recipe_offers.of(before)[0].changes
    text = path.read_text("utf-8")
    with monkeypatch.context() as patched, pytest.raises(Stop) as stop:
        patched.setattr(os, "access", lambda file, mode: False)
        copying.rewrite(before.recipe.document, changes)
    golden_message(stop.value, "read-only")
    assert path.read_text("utf-8") == text
    path.write_text(text + "\n# by somebody else\n", encoding="utf-8")
    with pytest.raises(Stop) as stop:
        copying.rewrite(before.recipe.document, changes)
    golden_message(stop.value, "changed")
    assert "# by somebody else" in path.read_text("utf-8")


def test_the_form_of_a_file_stays(own):
    """A byte order mark, line ends of Windows, a link, sections in brackets, and items behind a
    dash."""
    path = own(SURVIVAL, "openshift.claims.0.size_gib=7", "distribution=ddp")
    short = 'machines: {nodes: 4, gpus_per_node: 1, gpu: "NVIDIA-L40S", memory: 32 GB}   # in brackets\n'
    text = path.read_text("utf-8")
    start, end = text.index("machines:   "), text.index("openshift:   ")
    path.write_bytes(
        b"\xef\xbb\xbf" + (text[:start] + short + text[end:]).replace("\n", "\r\n").encode()
    )
    link = path.with_name("link.yaml")
    link.symlink_to(path)
    before = planned(link)
    changes = from_options(
        ["machines.cpus=9", "openshift.claims.0.size_gib=40", "model.sequence_len=512"]
    )
    copying.rewrite(before.recipe.document, changes)
    raw = path.read_bytes()
    assert link.is_symlink() and raw.startswith(b"\xef\xbb\xbf")
    assert b"machines: {cpus: 9, nodes: 4, gpus_per_node: 1" in raw and b"# in brackets\r\n" in raw
    assert load(path)[0].machines.cpus == 9
