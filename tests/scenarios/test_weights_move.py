"""A step of the optimizer moves the weights that it trains: in bf16, at the starter's own rate,
through Axolotl itself."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from runner import catalog, scenarios
from runner.check.validate import load
from runner.plan import Place
from runner.recipe.overrides import from_options
from runner.run.launch import WITHOUT_GPU
from runner.scenarios import translate
from runner.scenarios.shared import twin
from tests import moving
from tests.conftest import ROOT

pytestmark = [pytest.mark.heavy, pytest.mark.long]

DATA = ROOT / "recipes" / "data"
# One process, short rows, and no code that is compiled for a GPU.
ALIKE = (
    *(
        "machines.nodes=1",
        "machines.gpus_per_node=1",
        "train.effective_batch_size=",
        "distribution=ddp",
    ),
    *(
        "model.attention=sdpa",
        "train.kernels=none",
        "data.hub=",
        "data.validation_share=0.1",
        "nodes=",
        "openshift=",
    ),
)
SMALL = {
    "gemma": (
        f"data.path={DATA / 'gemma-sample.txt'}",
        "data.subset=",
        "data.validation_split=",
        "model.sequence_len=64",
    ),
    "survival": (f"data.path={DATA / 'survival-sample.jsonl'}", "model.sequence_len=768"),
}
PLAIN_LOSS = {"gemma": ("train.cross_entropy=plain",), "survival": ()}
BF16 = "model.master_weights=bf16"


def first_step(forked, name: str, folder: Path, *options: str) -> dict[str, object]:
    """The first step of a starter's training, on a twin whose weights are drawn as those of a real
    model and stored in bf16, as on the hub."""
    file, base = ROOT / "recipes" / f"{name}.yaml", folder / "base"
    options = (*ALIKE, *SMALL[name], *PLAIN_LOSS[name], *options)
    recipe, _, _ = load(file, from_options(options))
    wanted = twin.wanted(
        recipe.model_facts, catalog.chat_template("chatml"), layers=4, seed=1, folder=base
    )
    twin.tokenizer_for(wanted)((DATA / "gemma-sample.txt").read_text("utf-8").split("\n\n"))
    twin.build(wanted)
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(base)
    recipe, _, _ = load(file, from_options([*options, f"model.base={base}", "model.revision="]))
    place = Place(
        *(str(folder / part) for part in ("config", "data", "run", "scratch")), accelerator=False
    )
    stage = translate(recipe, place).stage("train")
    scenarios.prepare(
        stage.data, folder / "data", tokenizer_for=lambda texts: AutoTokenizer.from_pretrained(base)
    )
    config = yaml.safe_load(
        next(file.text for file in stage.files if file.path == stage.config_file)
    )
    assert config["bf16"] is True
    replaced = ("warmup_ratio", "eval_steps", "save_steps")
    config = {key: value for key, value in config.items() if key not in replaced} | {
        "max_steps": 1,
        "warmup_steps": 0,
        # The first step of Adam moves each weight by the rate, whatever the batch; a processor
        # computes bf16 slowly.
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 1,
        **dict.fromkeys(("eval_strategy", "save_strategy"), "no"),
        "load_best_model_at_end": False,
    }
    config["plugins"].append("tests.moving.Counting")
    config["recipe_runner"] |= {"demo": None, "effective_batch_size": 1}
    config.pop("test_datasets", None)
    (folder / "config").mkdir(exist_ok=True)
    (folder / "config" / "recipe.json").write_text("{}", encoding="utf-8")
    engine, counts = folder / "config" / stage.config_file, folder / "moved.json"
    engine.write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "axolotl.cli.main",
        "train",
        str(engine),
        "--launcher",
        "python",
    ]
    env = (
        os.environ
        | WITHOUT_GPU
        | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", moving.COUNTS: str(counts)}
    )
    done = forked(command, folder, env)
    assert done.returncode == 0, done.stdout[-3000:]
    (step,) = json.loads(counts.read_text("utf-8"))
    return step


@pytest.mark.parametrize(("name", "rate"), [("gemma", 2e-5), ("survival", 5e-5)])
def test_a_step_at_the_starters_own_rate_moves_its_weights(name, rate, tmp_path, forked):
    step = first_step(forked, name, tmp_path)
    assert step["rate"] == pytest.approx(rate) and step["with_gradient"] > 100_000
    assert step["moved"] >= 0.99 * step["with_gradient"], step
    # What is frozen takes no more memory than before.
    assert step["trained"] == ["torch.float32"] and ("torch.bfloat16" in step["frozen"]) == (
        name == "survival"
    )


@pytest.mark.parametrize("name", ["gemma", "survival"])
def test_weights_in_bf16_do_not_move(name, tmp_path, forked):
    """What the setting is for, and what `recipe explain` says of it."""
    step = first_step(forked, name, tmp_path, BF16)
    assert "torch.bfloat16" in step["trained"]
    assert step["moved"] < 0.8 * step["with_gradient"], step
