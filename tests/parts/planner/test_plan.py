"""`recipe plan`: what it prints, what it refuses, and that `check` says the same."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from runner.catalog import from_config
from runner.check.validate import examine, load
from runner.data import prepared
from runner.data.conversation_formats import ChatData
from runner.data.judged import Preferences
from runner.data.prepared import Lengths
from runner.parts.planner import forecast, memory, planned, recipe_offers, state, storage
from runner.parts.planner.planned import Planned
from runner.parts.planner.row_counts import Rows
from runner.parts.planner.view import views
from runner.plan import Place, rows_key
from runner.recipe import units
from runner.recipe.overrides import from_options
from runner.scenarios import place, translate
from runner.tools import packaged
from runner.tools.problem import errors_of
from tests.conftest import ROOT, STARTERS

HOPES = sorted((ROOT / "tests" / "fixtures" / "hopes").glob("*.yaml"))
TOO_MUCH = (
    ("micro_batch_size: 8", "micro_batch_size: 96"),
    ("effective_batch_size: 64", "effective_batch_size: 768"),
)


def broken(path, *sets, price=None, rows=None):
    """The limits of a recipe that do not hold: setting of the recipe, message, hint."""
    recipe, _, _ = load(path, from_options(sets))
    plan = translate(recipe, place(recipe))
    found = planned.broken(recipe, forecast.of(recipe, plan, price, rows))
    return [
        (problem.source.strip().partition(" ")[0], problem.message, problem.hint)
        for problem in found
    ]


@pytest.mark.parametrize("path", STARTERS, ids=lambda path: path.stem)
def test_every_starter_recipe_holds_its_own_limits(path, recipe_command):
    assert broken(path) == []
    done = recipe_command("plan", path)
    assert done.returncode == 0, done.stdout


def test_the_survival_recipe_states_limits():
    recipe, _, _ = load(ROOT / "recipes" / "survival.yaml")
    assert (recipe.limits.time, recipe.limits.gpu_memory) == ("75 min", "45 GB")


def test_a_plan_shows_what_people_ask_for(recipe_command):
    done = recipe_command(
        "plan",
        ROOT / "recipes" / "survival.yaml",
        "--price",
        "2",
        "--machines",
        "1,2,4",
        "--details",
    )
    assert done.returncode == 0, done.stdout
    for wanted in (
        "3,075,098,624, 418,914,304 of them trained (13.62%)",
        "64 rows: 8 × 2 × 4 GPUs",
        "161, ",
        "4 steps (2.5%)",
        "claim trained-models-pvc, 50 GiB",
        "trained-models-pvc: 41.1 GiB will be written; claim size: 50 GiB",
        "at 2 a GPU hour",
        "speed-up  of ideal",
        "fake-tensor runs and published",
    ):
        assert wanted in done.stdout
    assert "note:" not in done.stderr


def test_json_and_table_are_one_plan(recipe_command):
    done = recipe_command(
        "plan", ROOT / "recipes" / "survival.yaml", "--format", "json", "--machines", "1,4"
    )
    found = json.loads(done.stdout)
    (stage,) = found["stages"]
    assert stage["trainable_parameters"] == 418_914_304
    assert sum(stage["gpu_memory_bytes"]["parts"].values()) == stage["gpu_memory_bytes"]["total"]
    assert stage["fits"] is True and found["problems"] == []
    assert [other["gpus"] for other in stage["machines"]] == [1, 4]
    shown = f"{stage['gpu_memory_bytes']['total'] / 2**30:.1f} GiB"
    assert shown in recipe_command("plan", ROOT / "recipes" / "survival.yaml").stdout


def test_a_recipe_that_does_not_fit_exits_1_with_offers(edited, recipe_command, golden_message):
    path = edited(*TOO_MUCH)
    done = recipe_command("plan", path)
    assert done.returncode == 1
    assert "\n1. train.micro_batch_size: 48, " in done.stdout and "\n3. " in done.stdout
    golden_message(done.stdout)


def test_check_refuses_what_plan_refuses_in_the_same_figures(edited):
    path = edited(*TOO_MUCH)
    (found,) = errors_of(examine(path))
    recipe, _, _ = load(path)
    (stage,) = forecast.of(recipe, translate(recipe, place(recipe)))
    refused = forecast.too_large(recipe, stage)
    assert (found.message, found.line, found.severity) == (refused.message, refused.line, "error")


def test_a_recipe_that_fits_gets_no_note():
    assert examine(ROOT / "recipes" / "survival.yaml") == []


def test_a_limit_on_memory_names_what_breaks_it_and_what_would_hold(edited, golden_message):
    path = edited(("gpu_memory: 45 GB", "gpu_memory: 10 GB"))
    ((at, message, hint),) = broken(path)
    assert at == "gpu_memory:"
    assert "10 GB" in message and "`gpu_memory: 21 GB`" in hint
    golden_message(f"{message}\n{hint}")


def test_a_limit_on_time_names_the_speed_and_what_would_hold(edited, golden_message):
    path = edited(("time: 75 min", "time: 3 min"))
    ((at, message, hint),) = broken(path)
    assert at == "time:"
    assert "3 min" in message and "`time: 42 min`" in hint
    golden_message(f"{message}\n{hint}")


def offered(path, *sets) -> list[list[str]]:
    """The lines of each offer."""
    return [
        offer.lines for offer in recipe_offers.of(Planned.of(load(path, from_options(sets))[0]))
    ]


def test_what_keeps_a_time_limit_of_a_pipeline_is_a_line_of_it():
    seven_b = ROOT / "recipes" / "seven-b.yaml"
    (fewer,) = [
        lines
        for lines in offered(seven_b, "limits.time=2 d")
        if lines[0].startswith("stages.0.train.steps: ")
    ]
    assert len(fewer) == 1
    steps = int(fewer[0].partition(": ")[2])
    assert steps < 100_000
    assert (
        broken(
            seven_b,
            "limits.time=2 d",
            f"stages.0.train.steps={steps}",
            "stages.0.train.warmup_steps=100",
        )
        == []
    )


GEMMA = ROOT / "recipes" / "gemma.yaml"


def only(path, *sets):
    recipe, _, _ = load(path, from_options(sets))
    (found,) = forecast.of(recipe, translate(recipe, place(recipe)))
    return recipe, found


def test_plain_machines_are_shown_as_they_are(recipe_command):
    machines = (
        '[{"address": "10.0.0.1", "gpus": [0, 1]}, {"address": "10.0.0.2", "gpus": [0, 1, 2, 3]}]'
    )
    sets = (
        f"nodes.machines={machines}",
        "machines.gpus_per_node=4",
        "train.effective_batch_size=192",
    )
    shown = recipe_command(
        "plan", GEMMA, *(part for change in sets for part in ("--set", change)), "--details"
    ).stdout
    (line,) = [line for line in shown.splitlines() if line.strip().startswith("nodes.machines: ")]
    assert '"gpus": [2, 3]}, {"address":… → ' in line, (
        "what was there is cut, and shown all the same"
    )
    rows = dict(re.findall(r"│ (\S.*?) +│ +(.*?) +│", shown))
    assert rows["on"] == "2 + 4 NVIDIA A40 48 GB"
    assert "main memory, each machine" in rows and "main memory, each pod" not in rows
    download, data = (
        rows[f"disk: {what}"].partition("   ") for what in ("model download", "prepared data")
    )
    assert (download[0], data[0], data[2]) == ("0.54 GB", "0.06 GB", "/shared/models/gemma/data")
    assert download[2] == "~/.cache/huggingface of each machine"


def test_where_evaluation_takes_most_the_plan_says_so_and_offers_its_own_batch(
    recipe_command, golden_message
):
    small = ("machines.gpu=NVIDIA-L4",)
    _, found = only(GEMMA, *small)
    assert found.memory.moment == "evaluation" and found.fits is False
    assert offered(GEMMA, *small)[0] == ["train.eval_batch_size: 2"]
    shown = recipe_command("plan", GEMMA, "--details").stdout
    assert (
        "(28.8 GB) needed; the peak is in evaluation" in shown and "in the backward pass" in shown
    )
    ((_, message, _),) = broken(GEMMA, "limits.gpu_memory=10 GB")
    assert "evaluation 24.5 GiB" in message
    golden_message(message)


def test_the_largest_micro_batch_leaves_a_stated_batch_of_evaluation_alone():
    _, found = only(GEMMA)
    assert found.largest_micro_batch > 100
    for rows, fits in ((found.largest_micro_batch, True), (found.largest_micro_batch + 1, False)):
        agreeing = (f"train.micro_batch_size={rows}", f"train.effective_batch_size={rows * 8 * 4}")
        assert only(GEMMA, *agreeing)[1].fits is fits


def test_a_limit_on_cost_needs_a_price(edited, golden_message):
    path = edited(("gpu_memory: 45 GB ", "cost: 0.1 "))
    ((at, message, hint),) = broken(path)
    assert (at, "`--price`" in hint) == ("cost:", True)
    golden_message(f"{message}\n{hint}")
    ((at, message, _),) = broken(path, price=2.0)
    assert (at, "0.1" in message) == ("cost:", True)
    golden_message(message, "too dear")
    assert broken(path, "limits.cost=100", price=2.0) == []
    assert broken(path, "limits.cost=100", "limits.price_per_gpu_hour=2") == []


def test_a_limit_that_cannot_be_judged_is_not_taken_for_kept(edited, golden_message):
    path = edited(("hub: cahlen/offline-practical-skills-qa-synthetic", "hub: someone/else"))
    ((at, message, _),) = broken(path)
    assert (at, "`--rows N`" in message) == ("time:", True)
    golden_message(message)
    assert broken(path, rows=2845) == []


def test_limits_of_a_recipe_for_images_are_judged_too(recipe_command, golden_message):
    done = recipe_command("plan", ROOT / "recipes" / "resnet.yaml", "--set", "limits.time=70 s")
    assert done.returncode == 0
    assert "--set limits.time=70 s: note: " in done.stdout
    ((_, message, hint),) = broken(
        ROOT / "recipes" / "resnet.yaml", "limits.gpu_memory=4 GB", "train.micro_batch_size=2048",
        "train.effective_batch_size=2048",
    )  # fmt: skip
    assert "activations" in message and "`gpu_memory: 12 GB`" in hint
    golden_message(f"{message}\n{hint}")


def test_a_larger_card_for_images_knows_their_precision(recipe_command):
    """A V100 has room for them and no bf16."""
    sets = (
        "machines.gpu=NVIDIA-A10", "model.precision=bf16", "model.image_size=56",
        "train.micro_batch_size=4096", "train.effective_batch_size=4096",
    )  # fmt: skip
    cards = [
        lines[0]
        for lines in offered(ROOT / "recipes" / "resnet.yaml", *sets)
        if "gpu: " in lines[0]
    ]
    assert cards == ["machines.gpu: NVIDIA-GeForce-RTX-5090"]


def test_a_plan_for_plain_machines_speaks_of_machines_and_one_for_a_cluster_of_pods(
    recipe_command, golden_message
):
    shown = recipe_command("plan", GEMMA, "--details").stdout
    assert "main memory, each machine" in shown and "pod" not in shown and "no claim" not in shown
    assert (
        "main memory, each pod"
        in recipe_command("plan", ROOT / "recipes" / "survival.yaml", "--details").stdout
    )
    (note,) = [
        note
        for note in examine(GEMMA, from_options(["machines.memory=8 GiB"]))
        if "8.0 GiB" in note.message
    ]
    golden_message(note.message)


def test_the_image_trainer_s_parameters_and_images_are_planned(recipe_command):
    found = json.loads(
        recipe_command("plan", ROOT / "recipes" / "resnet.yaml", "--format", "json").stdout
    )
    (stage,) = found["stages"]
    assert stage["parameters"] == stage["trainable_parameters"] == 11_173_962
    assert (stage["rows"]["training"], stage["time"]["steps"]) == (45_000, 14_070)
    assert stage["gpu_hours"] and found["without_formulas"] == ["data"]


def test_every_stage_of_a_pipeline_has_steps_and_time(recipe_command):
    done = recipe_command(
        "plan", ROOT / "recipes" / "seven-b.yaml", "--format", "json", "--price", "2"
    )
    whole = json.loads(done.stdout)
    stages = {stage["stage"]: stage for stage in whole["stages"]}
    prepared = sum(each["total_seconds"] for each in whole["preparations"])
    trained = sum(stage["time"]["total_seconds"] for stage in stages.values())
    assert whole["all_stages"]["total_seconds"] == pytest.approx(trained + prepared)
    assert whole["all_stages"]["cost"] == sum(stage["cost"] for stage in stages.values())
    assert [entry["what"] for entry in whole["before_training_bytes"]][-1] == "first weights"
    assert list(stages) == ["pretrain-512", "pretrain-1024", "pretrain-2048", "sft", "dpo", "lora"]
    for stage in stages.values():
        low, high = stage["time"]["range_seconds"]
        assert 0 < low < stage["time"]["total_seconds"] < high
        assert stage["time"]["tokens"] > 0 and stage["cost"] > 0
    assert [stages[name]["warmup_steps"] for name in list(stages)[:3]] == [5000, 0, 0]
    # 11,573 pairs in steps of 256; 2,561 rows of the domain and 1,097 of SFT's, five times, in
    # steps of 64.
    assert stages["dpo"]["time"]["steps"] == 46
    assert stages["lora"]["time"]["steps"] == -(-5 * (2561 + 1097) // 64)


def test_a_warmup_longer_than_the_run_is_noted_by_plan_and_check(recipe_command, tmp_path):
    gemma = ROOT / "recipes" / "gemma.yaml"
    long = ["train.warmup_steps=500", "train.eval_steps=500", "train.save_steps=500"]
    done = recipe_command("plan", gemma, *(part for option in long for part in ("--set", option)))
    assert done.returncode == 0
    early, warmup = examine(gemma, from_options(long))
    assert [(note.file, note.severity) for note in (early, warmup)] == [
        ("--set train.eval_steps=500", "note"),
        ("--set train.warmup_steps=500", "note"),
    ]
    assert all(f"note: {note.message}" in done.stdout for note in (early, warmup))
    assert [note.message for note in examine(gemma, from_options(long[1:]))] == [early.message]
    assert examine(gemma) == []


def test_whoever_orders_machines_is_told_the_sum_of_them(recipe_command, golden_message):
    for starter, more in (
        ("survival", ()),
        ("resnet", ()),
        ("gemma", ("machines.gpu=NVIDIA-B9000",)),
    ):
        recipe, _, _ = load(ROOT / "recipes" / f"{starter}.yaml", from_options(more))
        plan = translate(recipe, place(recipe))
        found = views.hardware(Planned(recipe, plan, forecast.of(recipe, plan, look=False)))
        golden_message(views._filled("in_total", found), starter)
        assert found["main_memory"] == recipe.machines.nodes * units.size(recipe.machines.memory)
    shown, told = (
        recipe_command(
            "plan", ROOT / "recipes" / "survival.yaml", "--details", "--format", style
        ).stdout
        for style in ("text", "json")
    )
    assert "In total, 4 machines and 4 × NVIDIA L40S" in shown
    sums = json.loads(told)["all_machines"]
    assert (sums["gpus"], sums["gpu_memory"], sums["tflops"]) == (
        4,
        4 * 48 * 2**30,
        pytest.approx(4 * 362.05),
    )


def test_a_deadline_that_training_would_not_live_to_see_is_noted(recipe_command, golden_message):
    survival = ROOT / "recipes" / "survival.yaml"
    (note,) = examine(survival, from_options(["openshift.deadline_hours=0.7"]))
    assert "0.7 hours" in note.message and "75 min" in note.message
    golden_message(note.message)
    done = recipe_command(
        "plan", survival, "--set", "openshift.deadline_hours=0.01", "--set", "limits.time="
    )
    assert done.returncode == 0
    (line,) = [line for line in done.stdout.splitlines() if "note: Stage" in line]
    assert "0.01 hours" in line
    golden_message(line, "without a limit")
    assert examine(ROOT / "recipes" / "lyrics.yaml") == []


@pytest.mark.parametrize("path", STARTERS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_time_limit_of_a_starter_cuts_a_run_that_its_plan_lets_through(path):
    """Taking as long as the plan thinks likely, on its own rows, or on 10,000 where nobody has
    counted them."""
    recipe, _, _ = load(path)
    plan = translate(recipe, place(recipe))
    found = forecast.of(recipe, plan)
    if not all(each.time for each in found):
        found = forecast.of(recipe, plan, given_rows=10_000)
    assert found and all(each.time for each in found)
    assert not list(planned.late(recipe, found, storage.preparations(recipe, plan)))
    assert not planned.broken(recipe, found)


def test_a_run_that_may_take_longer_than_its_limit_or_its_deadline_is_noted(golden_message):
    path = ROOT / "recipes" / "survival.yaml"
    recipe, _, _ = load(path)
    found = forecast.of(recipe, translate(recipe, place(recipe)), look=False)
    (usual,), (_, longest) = [one.time.total_seconds for one in found], found[0].time.range_seconds
    between = f"{(usual + longest) / 2:.0f} s"
    for options in (
        (f"limits.time={between}",),
        ("limits.time=", f"openshift.deadline_hours={(usual + longest) / 7200:.3f}"),
    ):
        recipe, _, _ = load(path, from_options(options))
        (note,) = planned.late(recipe, found)
        assert note.severity == "note" and not planned.broken(recipe, found)
        golden_message(note, options[0].partition("=")[0] + str(len(options)))
    # Taken, it is noted no more.
    recipe, _, _ = load(path, from_options([f"limits.time={units.at_least(longest)}"]))
    assert not list(planned.late(recipe, found))
    # A limit before the deadline ends training itself.
    recipe, _, _ = load(path, from_options(["limits.time=3 min", "openshift.deadline_hours=0.06"]))
    assert not [note for note in planned.late(recipe, found) if "deadline" in note.message]


def test_fsdp_keeps_its_weights_twice_in_a_checkpoint():
    recipe, _, _ = load(ROOT / "recipes" / "seven-b.yaml")
    plan = translate(recipe, place(recipe))
    first = next(
        one for one in forecast.of(recipe, plan, look=False) if one.stage.name == "pretrain-512"
    )
    # fp32 weights for loading and for going on, and Adam's two moments.
    assert state.checkpoint(first.workload) == pytest.approx((4 + 4 + 8) * 6_083_055_616, rel=1e-6)


@pytest.mark.parametrize("text", ["time: 5 minutes", "time: 5", "gpu_memory: 45 gb"])
def test_an_amount_without_its_unit_is_refused(edited, text, golden_message):
    path = edited(
        ("  time: 75 min", f"  {text}"), ("  gpu_memory: 45 GB ", "  samples_per_second: 1 ")
    )
    (problem,) = [problem for problem in examine(path) if problem.source.strip().startswith(text)]
    assert problem.severity == "error"
    golden_message(problem)


def test_a_model_of_the_hub_s_cache_is_planned_and_counts_as_the_hub_s(
    tmp_path, monkeypatch, golden_message
):
    path, changed = ROOT / "recipes" / "gemma.yaml", from_options(["model.base=someone/small"])
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (problem,) = examine(path, changed)
    assert (
        "`someone/small`" in problem.message
        and "`recipe models add someone/small --recipe " in problem.hint
    )
    golden_message(problem)
    snapshot = tmp_path / "hub" / "models--someone--small" / "snapshots" / "0a1b"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(
        (ROOT / "tests/fixtures/hopes/seven-b/config.json").read_text()
    )
    # Of another revision it may be another model.
    assert [problem.message for problem in examine(path, changed)] == [problem.message]
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0a1b")
    # Only that it is too large for the starter's card is left to say.
    (note,) = examine(path, changed, allowed=("too-large",))
    assert note.severity == "note" and "needs 135.6 GiB" in note.message
    assert examine(path, [*changed, *from_options(["model.revision=v2"])])[0].severity == "error"
    recipe, _, _ = load(path, [*changed, *from_options(["model.revision=0a1b"])])
    (stage,) = forecast.of(recipe, translate(recipe, place(recipe)))
    assert stage.counts.total == 6_083_055_616
    # It lies on the hub, and so would its code.
    assert not recipe.model_facts.source.endswith("/config.json")


def strange(edited, **config):
    """A recipe on a folder with a model of another architecture."""
    path = edited(("base: HuggingFaceTB/SmolLM3-3B ", "base: strange "))
    (path.parent / "strange").mkdir()
    config |= {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    }
    config |= {
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 512,
        "max_position_embeddings": 2048,
    }
    (path.parent / "strange" / "config.json").write_text(json.dumps(config | {"pad_token_id": 0}))
    return path


@pytest.mark.long
@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize("kind", ["cohere2", "qwen3_moe", "falcon_h1"])
def test_an_architecture_without_formulas_is_planned_by_its_trace(
    tmp_path, edited, recipe_command, kind, style
):
    """One with a sliding window, a mixture of experts, and a hybrid; from another folder than the
    recipe's."""
    from transformers import AutoConfig, AutoModelForCausalLM

    path = strange(edited, model_type=kind)
    small = (
        "model.sequence_len=128",
        "train.micro_batch_size=1",
        "train.gradient_accumulation_steps=8",
    )
    done = recipe_command(
        "plan", path, "--exact", "--format", style, *(f"--set={one}" for one in small), timeout=900
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    built = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(str(path.parent / "strange"))
    )
    count = sum(part.numel() for part in built.parameters())
    if style == "text":
        assert f"{count:,}, " in done.stdout
        assert (
            "by trace alone" in done.stdout
            and "fits" in done.stdout
            and "operations" in done.stdout
        )
        return
    said = json.loads(done.stdout)
    (stage,) = said["stages"]
    assert (stage["stage"], stage["model_type"], stage["parameters"]) == ("train", kind, count)
    assert (
        stage["exact"]["peak"]
        < stage["gpu_memory_bytes"]["total"]
        < stage["gpu_memory_bytes"]["usable"]
    )
    assert stage["fits"] is True and stage["time"] is None and stage["flops"] > 6 * 128 * 64 * 512
    assert said["without_formulas"] == [] and "fake tensors" in said["basis"]


def test_an_architecture_that_cannot_be_built_is_said(edited, recipe_command):
    path = strange(edited, model_type="made_up")
    done = recipe_command("plan", path, "--exact")
    assert done.returncode == 1 and "made_up" in done.stderr and "Traceback" not in done.stderr
    (note,) = examine(path)
    assert note.severity == "note" and "`made_up`" in note.message


def test_an_architecture_without_formulas_is_named(
    tmp_path, edited, recipe_command, golden_message
):
    path = edited(("base: HuggingFaceTB/SmolLM3-3B ", "base: strange "))
    (path.parent / "strange").mkdir()
    config = {
        "model_type": "mamba",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 36,
    }
    config |= {"num_attention_heads": 4, "vocab_size": 512, "max_position_embeddings": 2048}
    (path.parent / "strange" / "config.json").write_text(json.dumps(config))
    done = recipe_command("plan", path)
    assert done.returncode == 1
    assert "mamba" in done.stderr
    golden_message(done.stderr)
    (note,) = examine(path)
    assert note.severity == "note" and "`mamba`" in note.message


def test_a_plan_takes_well_under_a_second():
    """Measured beside the bare interpreter, so that a busy machine slows both."""
    code = "from runner.commands.cli import main; main(['plan', 'recipes/survival.yaml', '--format', 'json'])"
    took = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
        took.append(time.perf_counter() - began)
    assert min(took) < 2.0


def test_planning_loads_nothing_heavy():
    code = (
        "import sys, contextlib\nfrom runner.commands.cli import main\n"
        "with contextlib.suppress(SystemExit):\n    main(['plan', 'recipes/survival.yaml'])\n"
        "print([name for name in ('torch', 'transformers', 'datasets', 'numpy', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("[]\n")


def test_an_exact_plan_without_the_packages_for_it_names_them():
    code = (
        "import sys\nfor name in ('torch', 'transformers'):\n    sys.modules[name] = None\n"
        "from runner.commands.cli import main; main(['plan', 'recipes/resnet.yaml', '--exact'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert packaged.install("train") in done.stderr


@pytest.mark.parametrize("price", ["nan", "inf"])
def test_a_price_is_a_finite_number(recipe_command, price, golden_message):
    done = recipe_command("plan", ROOT / "recipes" / "survival.yaml", "--price", price)
    assert (done.returncode, f"`--price {price}`" in done.stderr) == (2, True)
    golden_message(done.stderr)


def test_counts_of_machines_are_checked(recipe_command, golden_message):
    done = recipe_command("plan", ROOT / "recipes" / "survival.yaml", "--machines", "1,x")
    assert (done.returncode, "`--machines 1,x`" in done.stderr) == (2, True)
    golden_message(done.stderr)


def test_there_are_fixtures_of_hopes():
    assert len(HOPES) == 2


def test_what_was_hoped_of_one_l40s_is_answered_line_by_line(golden_message):
    messages = {at: message for at, message, _ in broken(HOPES[0], rows=90_000)}
    stated = {
        "weights:": "6 GB",
        "adapter:": "0.5 GB",
        "optimizer:": "1 GB",
        "time:": "90 s",
        "samples_per_second:": "1000",
    }
    assert messages.keys() == stated.keys()
    assert all(amount in messages[at] for at, amount in stated.items())
    golden_message("\n".join(messages.values()))


@pytest.mark.parametrize(
    ("gpu", "hours"), [("NVIDIA-A100-SXM4-80GB", 50), ("NVIDIA-H100-80GB-HBM3", 40)]
)
def test_pretraining_on_one_gpu_takes_days_and_not_hours(gpu, hours, golden_message):
    ((at, message, _),) = broken(HOPES[1], f"machines.gpu={gpu}", f"limits.time={hours} h")
    assert at in ("time:", "")
    assert f" {hours} h" in message and "100,000 steps" in message
    golden_message(message)


def test_the_7b_on_one_gpu_by_arithmetic_alone():
    """What no efficiency can beat: 100,000 steps of 32 rows of 1,024 tokens, six operations a
    weight and token."""
    from runner.catalog import gpu
    from runner.parts.planner import duration
    from runner.parts.planner.workload import Workload
    from runner.plan import Machines

    config = json.loads((ROOT / "tests/fixtures/hopes/seven-b/config.json").read_text())
    model = from_config("seven-b", config)
    for name, hoped, fp8 in (
        ("NVIDIA-A100-SXM4-80GB", 50, False),
        ("NVIDIA-H100-80GB-HBM3", 40, False),
        ("NVIDIA-H100-80GB-HBM3", 30, True),
    ):
        job = Workload(
            model,
            machines=Machines(1, 1, name, 128, 8),
            micro_batch_size=8,
            accumulation=4,
            max_steps=100_000,
            packing=True,
            fp8=fp8,
        )
        least = 6 * 6.08e9 * 32 * 1024 * 100_000 / job.rate(gpu(name)) / 3600
        found = duration.estimate(job, gpu(name)).total_seconds / 3600
        assert found > least
        assert found > 1.5 * hoped
    assert memory.estimate(job).total > 0


def test_advice_for_a_stage_names_the_stage_s_own_lines(recipe_command, golden_message):
    done = recipe_command(
        "plan", ROOT / "recipes" / "seven-b.yaml", "--set", "machines.gpu=NVIDIA-L4"
    )
    assert done.returncode == 1
    assert "`pretrain-2048`" in done.stdout and "stages.0.train.micro_batch_size: " in done.stdout
    golden_message(done.stdout)
    assert " train." not in done.stdout


def asked(*sets) -> dict[str, str]:
    """The size that each claim of the survival recipe is asked for with, in its manifest."""
    import yaml

    from runner.scenarios.render import emit

    recipe, _, _ = load(ROOT / "recipes" / "survival.yaml", from_options(sets))
    (file,) = [file for file in emit(recipe) if file.path == "claims.yaml"]
    return {
        claim["metadata"]["name"]: claim["spec"]["resources"]["requests"]["storage"]
        for claim in yaml.safe_load_all(file.text)
    }


def test_a_claim_without_a_size_asks_for_what_the_plan_says_and_a_stated_size_stays(recipe_command):
    found = json.loads(
        recipe_command("plan", ROOT / "recipes" / "survival.yaml", "--format", "json").stdout
    )
    assert asked() == {name: f"{size}Gi" for name, size in found["claims_gib"].items()}
    assert asked()["trained-models-pvc"] == "50Gi"
    assert asked("train.keep_checkpoints=20")["trained-models-pvc"] == "260Gi"
    assert asked("openshift.claims.0.size_gib=7")["trained-models-pvc"] == "7Gi"


def test_a_stated_size_that_is_too_small_is_noted_by_check_and_by_plan(
    recipe_command, golden_message
):
    small = from_options(["openshift.claims.0.size_gib=7"])
    (note,) = examine(ROOT / "recipes" / "survival.yaml", small)
    assert "7 GiB" in note.message and "`size_gib: 50`" in note.hint
    golden_message(note)
    done = recipe_command(
        "plan", ROOT / "recipes" / "survival.yaml", "--set", "openshift.claims.0.size_gib=7"
    )
    assert done.returncode == 0 and f"note: {note.message}" in done.stdout


def test_what_is_rendered_does_not_depend_on_what_lies_prepared_here(tmp_path, monkeypatch):
    before = asked()
    lies_prepared("survival", 10**9, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert asked() == before


def lies_prepared(name: str, rows: int, folder: Path, *options: str) -> None:
    """As if the data of a recipe with these changes had been prepared below a folder, as its config
    says it."""
    known = load(ROOT / "recipes" / f"{name}.yaml", from_options(options))[0]
    plan = translate(known, Place(*[str(folder)] * 4))
    config = json.loads(json.dumps(plan.stage("data").config))
    several = [part for part in ("sft", "dpo", "lora") if rows_key(part) in config]
    parts = {part: config[rows_key(part)] for part in several} or {"": config["data"]}
    for part, data in parts.items():
        made = prepared.PreparedRows(
            rows, 1, asked=prepared.asked(data), lengths=Lengths(900, 100, 1200)
        )
        (folder / "runs" / name / "data" / part).mkdir(parents=True, exist_ok=True)
        made.write(folder / "runs" / name / "data" / part)


@pytest.mark.parametrize(
    ("name", "stage", "option"),
    [("survival", "train", "data.seed=7"), ("seven-b", "dpo", "stages.2.data.seed=7")],
)
def test_only_data_prepared_for_these_very_settings_is_counted(
    tmp_path, monkeypatch, name, stage, option
):
    def counted(*options: str) -> Rows:
        known = load(ROOT / "recipes" / f"{name}.yaml", from_options(options))[0]
        plan = translate(known, Place(*[str(tmp_path)] * 4))
        return next(one.rows for one in forecast.of(known, plan) if one.stage.name == stage)

    monkeypatch.chdir(tmp_path)
    before = counted()
    lies_prepared(name, 12_345, tmp_path)
    assert (counted().training, counted().validation, counted().tokens) == (12_345, 1, 900)
    lies_prepared(name, 12_345, tmp_path, option)
    assert counted() == before and counted(option).training == 12_345


def test_what_the_parts_of_a_pipeline_are_made_for_reads_the_same_in_its_plan_and_in_its_work():
    known = load(ROOT / "recipes" / "seven-b.yaml")[0]
    config = translate(known, Place(*["/there"] * 4)).stage("data").config
    for part, kind in (("sft", ChatData), ("dpo", Preferences), ("lora", ChatData)):
        rows = config[rows_key(part)]
        read_back = TypeAdapter(kind).validate_json(json.dumps(rows))
        assert prepared.asked(asdict(read_back)) == prepared.asked(rows)
