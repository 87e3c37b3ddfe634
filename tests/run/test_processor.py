"""`recipe run` on a machine without a GPU: what it replaces, how long it says it takes, and when it
asks. No test here trains."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from unittest.mock import Mock

import pytest

from runner.catalog.hardware import MEASURED, PROCESSOR, Gpu, gpu
from runner.check.validate import changed, load
from runner.commands import cli
from runner.parts.planner import processor
from runner.plan import Prediction
from runner.recipe.overrides import from_options
from runner.recipe.recipe import Override
from runner.run import pipeline, this_machine
from runner.run import run as running
from runner.run.run_folder import StageFolder, folder
from runner.scenarios.shared import rehearsal
from runner.tools import process
from runner.tools.files import cache_folder, write_json
from runner.tools.process import threads
from tests.conftest import ROOT, STARTERS

pytestmark = pytest.mark.heavy


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A machine without a GPU whose processor is as another one was measured, and where training
    only begins."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    card = Gpu(
        PROCESSOR,
        "Some Processor with 4 threads",
        16,
        15.6,
        "0.0",
        12.0,
        "host",
        1.0,
        "torch 2",
        fp32_tflops=0.2,
    )
    cache_folder().mkdir(parents=True)
    monkeypatch.setattr(
        processor, "measure", lambda: write_json(cache_folder() / MEASURED, asdict(card))
    )
    monkeypatch.setattr(this_machine, "gpus_here", lambda recipe: ([], ""))
    begun: list[str] = []

    def carry_out(plan, stages, tell, watch, made_with, keep):
        run = StageFolder(plan, plan.stages[0]).run
        run.mark("running", **made_with)
        keep()
        for stage in stages:
            at = StageFolder(plan, stage)
            pipeline.begin(at, pipeline.decide(plan, [stage])[0], tell)
            begun.append(stage.name)
            if not stage.trains:
                Path(plan.place.data_dir).mkdir(exist_ok=True)
                Path(plan.place.data_dir, "train.parquet").write_text("rows")
                at.mark("finished", outputs=at.outputs())
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "carry_out", carry_out)
    return begun


def recipe(*options: str, name: str = "resnet") -> int:
    # A test has the terminal of nobody.
    return cli._code(["run", str(ROOT / f"recipes/{name}.yaml"), *options])


SMALL = """scenario: lora
name: small
model: {base: google/gemma-3-270m-it, precision: bf16, attention: flash_attention_2, sequence_len: 256}
train: {adapter: qlora, optimizer: adamw_bnb_8bit, packing: flatten, cross_entropy: fused, epochs: 1}
data: {path: rows.jsonl, question: "[question]", answer: "[answer]"}
machines: {gpu: NVIDIA-L40S, nodes: 2}
"""


def test_what_needs_a_gpu_is_replaced_and_named_and_a_short_run_starts_unasked(
    here, capsys, golden_message
):
    Path("small.yaml").write_text(SMALL)
    rows = [
        {"question": f"What is {n}?", "answer": f"It is {n}, and {n} again."} for n in range(300)
    ]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert cli._code(["run", "small.yaml"]) == 130 and here == ["data", "train"]
    golden_message("".join(capsys.readouterr()))


def test_brief_says_how_long_it_takes_and_no_more(here, capsys, golden_message):
    Path("small.yaml").write_text(SMALL)
    rows = [
        {"question": f"What is {n}?", "answer": f"It is {n}, and {n} again."} for n in range(300)
    ]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert cli._code(["run", "small.yaml", "--brief"]) == 130 and here == ["data", "train"]
    golden_message("".join(capsys.readouterr()))


def test_plan_doctor_and_run_print_the_same_figures(here, capsys, golden_message):
    """`gpu: none` also leaves a GPU alone that is here."""
    Path("none.yaml").write_text(SMALL.replace("{gpu: NVIDIA-L40S, nodes: 2}", "{gpu: none}"))
    rows = [
        {"question": f"What is {n}?", "answer": f"It is {n}, and {n} again."} for n in range(300)
    ]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert cli._code(["plan", "none.yaml"]) == 0
    planned = capsys.readouterr().out
    figures, download = planned.splitlines()
    assert figures.startswith("`train` takes about") and download.startswith(
        "The model google/gemma-3-270m-it is downloaded"
    )
    cli._code(["doctor", "none.yaml"])
    examined = capsys.readouterr().out
    # The doctor reads the memory of this machine itself.
    assert (
        figures.partition(" of its ")[0] in examined
        and download in examined
        and "recipe plans" not in examined
    )
    assert cli._code(["run", "none.yaml"]) == 130
    run = capsys.readouterr().out
    assert figures in run and download in run
    golden_message(planned)
    assert cli._code(["plan", "none.yaml", "--details"]) == 1
    golden_message(capsys.readouterr().err, "an option about GPUs")
    assert cli._code(["plan", "none.yaml", "--apply", "1"]) == 1
    assert "There are none." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("base", "length"), [("Qwen/Qwen2.5-7B-Instruct", 256), ("google/gemma-3-270m-it", 8192)]
)
def test_plan_suggests_what_fits_where_main_memory_is_too_small(
    here, base, length, capsys, golden_message
):
    """A smaller model, a smaller micro batch, or shorter rows; nothing that only a GPU can do."""
    text = SMALL.replace("{gpu: NVIDIA-L40S, nodes: 2}", "{gpu: none}")
    text = text.replace("google/gemma-3-270m-it", base).replace("256", str(length))
    text = text.replace("packing: flatten", "packing: none, micro_batch_size: 32")
    Path("none.yaml").write_text(text)
    rows = [{"question": f"What is {n}?", "answer": f"{n} " * (length // 4)} for n in range(300)]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert cli._code(["plan", "none.yaml"]) == 1
    printed = capsys.readouterr()
    suggestions = printed.out.partition("\n1. ")[2]
    golden_message("\n".join([f"1. {suggestions.strip()}", *printed.err.splitlines()[-2:]]))
    assert suggestions
    for number in range(1, 1 + sum(line[:1].isdigit() for line in f"1{suggestions}".splitlines())):
        Path("none.yaml").write_text(text)
        assert cli._code(["plan", "none.yaml", "--apply", str(number)]) == 0
        assert cli._code(["plan", "none.yaml"]) == 0


def test_a_recipe_without_a_gpu_uses_none_that_is_here(monkeypatch):
    known = load(
        ROOT / "recipes/minimal/lora.yaml", from_options(["machines.gpu=none"]), look=False
    )[0]
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert this_machine.gpus_here(known) == ([], "")


def test_above_an_hour_nothing_starts_unasked_without_a_terminal(
    here, capsys, golden_message, monkeypatch
):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert recipe() == 1 and here == []
    golden_message(capsys.readouterr().err)
    assert not folder("resnet", "run").path.exists(), "nothing was done in it"
    assert recipe("--yes") == 130 and here == ["data", "train"]


@pytest.mark.parametrize("answer", ["n\n", "y\n"])
def test_above_an_hour_a_terminal_is_asked(here, capsys, golden_message, monkeypatch, answer):
    monkeypatch.setattr("click.confirm", lambda question: print(question) or answer == "y\n")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert recipe() == (130 if answer == "y\n" else 1)
    assert here == (["data", "train"] if answer == "y\n" else [])
    if answer == "n\n":
        golden_message("".join(capsys.readouterr()))


def test_a_run_that_goes_on_is_not_asked_about_again(here, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert recipe("--yes") == 130 and recipe() == 130
    assert (
        folder("resnet", "run").state.processor and not folder("resnet", "run").place().accelerator
    )


def test_what_the_memory_cannot_hold_is_refused_whatever_is_answered(here, capsys, golden_message):
    assert recipe("--yes", name="seven-b") == 1 and here == []
    golden_message(capsys.readouterr().err)


def test_how_long_unknown_rows_take_is_asked_about(here, capsys, golden_message, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert (
        recipe("--set", "data.hub=somebody/images", "--set", "data.test_split=") == 1 and here == []
    )
    golden_message(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("flags", "most", "multiplies"),
    [
        ("fpu avx512f avx512_bf16", None, True),
        ("fpu amx_bf16 amx_tile", "DEFAULT", True),
        ("fpu avx512f avx512_bf16", "AVX512_CORE_BF16", True),
        ("fpu avx512f avx512_bf16", "avx512_core", False),
        ("fpu avx2", None, False),
        ("", None, False),
    ],
)
def test_a_processor_multiplies_bf16_where_it_says_so_and_onednn_may(
    flags, most, multiplies, monkeypatch
):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    if most:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", most)
    lines = ["processor\t: 0", f"flags\t\t: {flags}", "bugs\t\t: spectre_v1"]
    monkeypatch.setattr(process, "processor_lines", lambda: lines if flags else [])
    assert process.multiplies_bf16() is multiplies


@pytest.mark.parametrize(
    ("starter", "precision", "on_bf16", "on_fp32"),
    [
        ("lyrics", "bf16", "bf16", "fp32"),
        ("lyrics", "fp16", "bf16", "fp32"),
        ("museum", "fp32", "fp32", "fp32"),
        ("resnet", "bf16", "fp32", "fp32"),
        ("survival", "bf16", "fp32", "fp32"),
    ],
)
def test_a_model_is_trained_in_bf16_where_the_processor_multiplies_it(
    starter, precision, on_bf16, on_fp32, monkeypatch
):
    recipe = load(
        ROOT / "recipes" / f"{starter}.yaml", from_options([f"model.precision={precision}"])
    )[0]
    multiplies = Mock()
    monkeypatch.setattr(rehearsal, "multiplies_bf16", multiplies)

    def trained_in() -> str:
        return changed(recipe, list(rehearsal.without_gpu(recipe, "test")))[0].model.precision

    multiplies.return_value = True
    assert trained_in() == on_bf16
    multiplies.return_value = False
    assert trained_in() == on_fp32


def test_a_run_in_bf16_is_read_where_the_processor_does_not_multiply_it(here, monkeypatch):
    """Its folder may come from another machine; what it was trained in stays true."""
    processor.measure()
    monkeypatch.setattr(rehearsal, "multiplies_bf16", lambda: False)
    recipe = load(ROOT / "recipes" / "museum.yaml")[0]
    trained_on = Override("machines.gpu", None, PROCESSOR, "this machine", "it has no GPU")
    assert gpu(PROCESSOR)
    assert changed(recipe, [trained_on])[0].model.precision == "bf16"


@pytest.mark.parametrize("path", STARTERS, ids=lambda path: path.stem)
def test_no_starter_keeps_a_setting_that_needs_a_gpu(path):
    """Whatever a scenario calls it: half precision, FlashAttention, compiled code, 8-bit
    optimizers, sharding. PyTorch's fused AdamW also runs on processors."""
    known = load(path)[0]
    made = changed(known, list(rehearsal.without_gpu(known, "test")))[0].settings.plain()
    text = str({name: made.get(name) for name in ("model", "train", "speed", "stages")})
    for word in (
        "bf16",
        "fp16",
        "'fp8'",
        "flash_attention",
        "bnb",
        "8bit",
        "'liger'",
        "zero",
        "fsdp",
        "qlora",
    ):
        assert word not in text, (path.name, word)


def test_the_processor_is_measured_quickly_and_the_best_pace_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert gpu(PROCESSOR) is None
    processor.measure()
    first = gpu(PROCESSOR)
    assert first.fp32_tflops > 0.001 and first.memory_gb_s > 0.1 and first.usable_gib > 0.5
    assert f"with {threads()} thread" in first.title
    write_json(tmp_path / "recipe-runner" / MEASURED, asdict(first) | {"fp32_tflops": 1000.0})
    processor.measure()
    assert gpu(PROCESSOR).fp32_tflops == 1000.0
    write_json(tmp_path / "recipe-runner" / MEASURED, {"of": "another version"})
    assert gpu(PROCESSOR) is None
    processor.measure()
    assert gpu(PROCESSOR).fp32_tflops < 1000.0


def test_a_container_has_as_many_processors_as_it_may_use(monkeypatch):
    from runner.tools import process

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(process.os, "sched_getaffinity", lambda _: set(range(64)))
    for quota, count in (("200000 100000", 2), ("max 100000", 64), ("50000 100000", 1), ("", 64)):
        monkeypatch.setattr(process, "_line", lambda file, quota=quota: quota)
        assert process.cores() == process.threads() == count
    monkeypatch.setenv("OMP_NUM_THREADS", "3,1")
    assert process.threads() == 3


def test_stages_that_take_an_hour_together_are_asked_about_once(here, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    monkeypatch.setattr(
        running.forecasting(),
        "on_processor",
        lambda recipe, plan: [Prediction(stage.name, seconds=1000.0) for stage in plan.stages],
    )
    assert recipe(name="minimal/from-scratch") == 1 and here == []
    assert "Training takes about 83.3 min on this machine's CPU." in capsys.readouterr().err
    assert recipe("--until", "pretrain-2048", name="minimal/from-scratch") == 130, "50 minutes"
    assert here[-1] == "pretrain-2048"
