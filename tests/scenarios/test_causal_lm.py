"""Scenario causal-lm: what the Gemma recipe says reaches Axolotl, and its rehearsal learns."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from runner import catalog
from runner.check.validate import examine, load
from runner.plan import Place
from runner.recipe.overrides import from_options
from runner.run.launch import WITHOUT_GPU
from runner.scenarios import translate
from runner.scenarios.render import emit
from runner.scenarios.shared import twin
from runner.tools.problem import Stop
from tests import taught
from tests.conftest import ROOT, setting_of

pytestmark = pytest.mark.heavy

GEMMA = ROOT / "recipes" / "gemma.yaml"


def config(*options: str) -> dict:
    """The emitted Axolotl config, as Axolotl will read it."""
    recipe, _, _ = load(GEMMA, from_options(options))
    files = {artifact.path: artifact.text for artifact in emit(recipe)}
    return yaml.safe_load(files["nodes/axolotl.yaml"])


def test_the_facts_of_the_gemma_recipe_reach_axolotl():
    found = config()
    facts = {
        "base_model": "google/gemma-3-270m",
        "sequence_len": 2048,
        "num_epochs": 3,
        "micro_batch_size": 4,
        "eval_batch_size": 4,
        "gradient_accumulation_steps": 8,
        "learning_rate": 2e-5,
        "weight_decay": 0.01,
        "warmup_steps": 3,
        "bf16": True,
        "fp16": False,
        "attn_implementation": "flash_attention_2",
        "gradient_checkpointing": True,
        "logging_steps": 10,
        "save_strategy": "steps",
        "save_steps": 10,
        "eval_strategy": "steps",
        "eval_steps": 10,
        "save_total_limit": 3,
        "load_best_model_at_end": True,
        "seed": 42,
        "use_tensorboard": True,
        "auto_resume_from_checkpoints": True,
        "liger_fused_linear_cross_entropy": True,
        "output_dir": "/shared/models/gemma/checkpoints",
    }
    assert {key: found[key] for key in facts} == facts
    assert "warmup_ratio" not in found
    assert found["recipe_runner"]["effective_batch_size"] == 128
    for name in ("datasets", "test_datasets"):
        (dataset,) = found[name]
        assert dataset["type"] == ""
        assert dataset["ds_type"] == "parquet"


def test_warmup_is_a_share_unless_the_recipe_counts_steps():
    short = load(ROOT / "recipes" / "minimal" / "causal-lm.yaml")[0]
    assert (short.train.warmup_ratio, short.train.warmup_steps) == (0.03, None)
    assert (load(GEMMA)[0].train.warmup_ratio, load(GEMMA)[0].train.warmup_steps) == (None, 3)
    found = config("train.warmup_steps=", "train.warmup_ratio=0.1")
    assert found["warmup_ratio"] == 0.1 and "warmup_steps" not in found


def test_a_share_and_a_count_of_warmup_contradict_each_other(golden_message):
    with pytest.raises(Stop) as stop:
        config("train.warmup_ratio=0.1")
    (problem,) = stop.value.problems
    assert setting_of(problem) == "warmup_steps"
    golden_message(problem)


def test_the_facts_of_the_gemma_recipe_reach_the_scripts():
    recipe, _, _ = load(GEMMA)
    files = {artifact.path: artifact.text for artifact in emit(recipe)}
    for rank in (0, 1):
        script = files[f"nodes/run_node{rank}.sh"]
        assert 'GPUS="${GPUS:-2,3}"' in script
        assert "MAIN_NODE_PORT=29500" in script
        assert 'TOTAL_GPUS="${TOTAL_GPUS:-4}"' in script
        assert "OUTPUT_DIR=/shared/models/gemma" in script


def test_one_machine_is_the_recipe_with_the_other_taken_away():
    found = config(
        "machines.nodes=1",
        'nodes.machines=[{"address": "10.0.0.1", "gpus": [2, 3]}]',
        "train.effective_batch_size=64",
    )
    assert found["recipe_runner"]["world_size"] == 2


@pytest.mark.parametrize(
    ("option", "facts"),
    [
        ("model.precision=fp16", {"bf16": False, "fp16": True}),
        ("model.attention=sdpa", {"attn_implementation": "sdpa"}),
        ("model.gradient_checkpointing=false", {"gradient_checkpointing": False}),
        ("train.report_to=wandb", {"use_wandb": True, "wandb_project": "gemma"}),
        ("train.report_to=mlflow", {"use_mlflow": True, "mlflow_experiment_name": "gemma"}),
        ("train.cross_entropy=chunked", {"chunked_cross_entropy": True}),
        (
            "resume_from=checkpoint-500",
            {
                "resume_from_checkpoint": "/shared/models/gemma/checkpoints/checkpoint-500",
                "auto_resume_from_checkpoints": False,
            },
        ),
        ("resume_from=/old/checkpoint-9", {"resume_from_checkpoint": "/old/checkpoint-9"}),
    ],
)
def test_each_choice_reaches_axolotl(option, facts):
    found = config(option)
    assert {key: found[key] for key in facts} == facts


def test_report_to_none_names_no_tool():
    assert not [key for key in config("train.report_to=none") if key.startswith("use_")]


@pytest.mark.parametrize("choice", ["chunked", "plain"])
def test_another_cross_entropy_leaves_the_fused_one_out(choice):
    found = config(f"train.cross_entropy={choice}")
    assert found["liger_fused_linear_cross_entropy"] is False
    found = config(f"train.cross_entropy={choice}", "train.kernels=none")
    assert found["plugins"] == ["runner.trainer.plugin.RecipePlugin"]
    assert not [key for key in found if key.startswith("liger")]


def test_without_validation_data_nothing_is_evaluated():
    found = config("data.validation_split=")
    assert found["eval_strategy"] == "no"
    assert found["load_best_model_at_end"] is False
    assert not {"test_datasets", "eval_steps", "metric_for_best_model", "eval_batch_size"} & set(
        found
    )


@pytest.mark.parametrize("named", ["text.txt", "./text.txt", "../mine/text.txt"])
def test_validation_on_the_text_that_is_trained_is_refused(named, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "text.txt").write_text("One.\n\nTwo.\n")
    recipe = folder / "own.yaml"
    recipe.write_text((ROOT / "recipes" / "gemma.yaml").read_text("utf-8"), "utf-8")
    own = from_options(
        [
            "data.hub=",
            "data.split=",
            "data.subset=",
            "data.sample=",
            "data.validation_split=",
            "data.path=text.txt",
            f"data.validation_path={named}",
        ]
    )
    errors = [problem for problem in examine(recipe, own) if problem.severity == "error"]
    assert [setting_of(problem) for problem in errors] == ["data.validation_path"]


@pytest.mark.parametrize(
    "options",
    [
        ("data.validation_split=",),
        ("train.cross_entropy=chunked",),
        ("train.cross_entropy=plain", "train.report_to=mlflow", "model.precision=fp16"),
        ("resume_from=checkpoint-500", "distribution=zero2"),
    ],
)
def test_each_choice_passes_axolotls_own_validation(options):
    from axolotl.cli.config import plugin_set_cfg, prepare_plugins
    from axolotl.utils.config import validate_config
    from axolotl.utils.dict import DictDefault

    from tests.catalog.test_axolotl_settings import unknown_keys

    found = config(*options)
    cfg = DictDefault(found)
    prepare_plugins(cfg)
    capabilities = {
        "bf16": True,
        "fp8": False,
        "tf32": True,
        "n_gpu": 4,
        "compute_capability": "sm_86",
    }
    checked = validate_config(
        cfg, capabilities=capabilities, env_capabilities={"torch_version": "2.13.0"}
    )
    plugin_set_cfg(checked)
    assert unknown_keys(found) == []


def test_the_models_with_a_fused_loss_are_liger_kernels_own():
    import inspect
    from importlib.metadata import version

    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN as known

    assert version("liger_kernel") == "0.8.1"
    have = {
        name
        for name, patch in known.items()
        if "fused_linear_cross_entropy" in inspect.signature(patch).parameters
    }
    assert catalog.fused_loss_models() == have


def test_gemma_has_268_098_176_parameters():
    """On the meta device, from the catalog's geometry."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    facts = catalog.model("google/gemma-3-270m")
    names = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
    )
    sizes = {
        name: getattr(facts, name)
        for name in (*names, "head_dim", "vocab_size", "max_position_embeddings")
    }
    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(facts.model_type, **sizes, tie_word_embeddings=facts.tied)
        )
    parameters = dict(made.named_parameters())
    assert (
        sum(parameter.numel() for parameter in parameters.values())
        == facts.parameters
        == 268_098_176
    )
    assert parameters[facts.embedding].shape == (262_144, 640)
    assert type(made.model.layers[0]).__name__ == facts.layer_class
    for name in facts.linear:
        assert any(key.endswith(f".{name}.weight") for key in parameters)


def test_a_missing_padding_token_is_end_of_text_and_outgrown_embeddings_grow(tmp_path, monkeypatch):
    """Through Axolotl's own loaders, on the emitted config."""
    from axolotl.integrations.base import PluginManager
    from axolotl.loaders import ModelLoader, load_tokenizer
    from axolotl.utils.config import normalize_config, validate_config
    from axolotl.utils.dict import DictDefault
    from transformers import AutoTokenizer

    recipe, _, _ = load(GEMMA)
    documents = (ROOT / "recipes" / "data" / "gemma-sample.txt").read_text("utf-8").split("\n\n")
    marks = catalog.chat_template("chatml")
    tiny = twin.wanted(recipe.model_facts, marks, layers=2, seed=1, folder=tmp_path)
    # Its lengths and its template are no reason to refuse rows.
    assert hasattr(twin.tokenizer_for(tiny)(documents), "said_as")
    twin.build(tiny)
    words = AutoTokenizer.from_pretrained(str(tmp_path))
    known = len(words)
    words.add_tokens(["<new>"])
    words.save_pretrained(str(tmp_path))
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del settings["pad_token"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert AutoTokenizer.from_pretrained(str(tmp_path)).pad_token is None
    found = config(
        f"model.base={tmp_path}",
        "model.precision=fp32",
        "model.attention=sdpa",
        "train.cross_entropy=plain",
    )
    cfg = DictDefault(
        {
            key: value
            for key, value in found.items()
            if key not in ("plugins", "recipe_runner", "ddp")
        }
    )
    # Axolotl keeps the plugins of every config that this process has looked at; this one names
    # none.
    monkeypatch.setattr(PluginManager.get_instance(), "plugins", {})
    cfg = validate_config(cfg)
    normalize_config(cfg)
    loaded = load_tokenizer(cfg)
    model, _ = ModelLoader(cfg, loaded).load()
    assert loaded.pad_token == loaded.eos_token == recipe.model_facts.eos_token
    assert (
        model.get_input_embeddings().num_embeddings
        == model.get_output_embeddings().out_features
        == known + 1
    )


CLUSTER = 'openshift={"namespace": "a", "claims": [{"name": "c", "mount": "/m"}]}'
# Changes of the Gemma recipe, and the setting that the problem points at.
CONTRADICTIONS = {
    "two sources of validation": (["data.validation_share=0.1"], "data.validation_share"),
    "a file beside the hub": (
        ["data.validation_split=", "data.validation_path=data/gemma-sample.txt"],
        "data.validation_path",
    ),
    "unevaluated checkpoints": (["train.save_steps=750"], "train.save_steps"),
    "a column": (["data.sample=data/survival-sample.jsonl"], "text"),
    "too few machines": (["machines.nodes=3", "train.effective_batch_size="], "machines"),
    "too few GPUs": (["machines.gpus_per_node=4", "train.effective_batch_size="], "machines"),
    "uneven machines": (
        ["nodes.machines.1.gpus=[1]", "train.effective_batch_size=96", CLUSTER],
        "machines",
    ),
    "a GPU twice": (["nodes.machines.0.gpus=[1, 1]"], "nodes.machines.0.gpus"),
    "an address": (["nodes.machines.0.address=a; rm"], "nodes.machines.0.address"),
    "a checkpoint": (["resume_from=latest"], "resume_from"),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_contradictions_are_named(case, golden_message):
    options, setting = CONTRADICTIONS[case]
    with pytest.raises(Stop) as stop:
        load(GEMMA, from_options(options))
    assert [setting_of(problem) for problem in stop.value.problems] == [setting]
    golden_message(stop.value)


def test_uneven_machines_are_another_run_and_other_addresses_are_not():
    def fingerprint(*options: str) -> str:
        recipe, _, _ = load(GEMMA, from_options(options))
        return recipe.fingerprint

    assert (
        fingerprint("nodes.machines.0.address=10.0.0.1", "nodes.machines.0.gpus=[0, 1]")
        == fingerprint()
    )
    assert fingerprint("nodes.machines.0.gpus=[0]", "train.effective_batch_size=96") != fingerprint(
        "train.effective_batch_size="
    )


def test_places_are_only_folders():
    recipe, _, _ = load(GEMMA)
    here = translate(recipe, Place("/c", "/d", "/r", "/s")).stages[-1]
    there = translate(recipe, Place("/x/c", "/x/d", "/x/r", "/x/s")).stages[-1]
    assert json.loads(json.dumps(there.config).replace("/x/", "/")) == json.loads(
        json.dumps(here.config)
    )


def test_the_gemma_rehearsal_learns_and_leaves_its_results(recipe_command, tmp_path):
    out = tmp_path / "run"
    done = recipe_command("rehearse", GEMMA, "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((out / "training_summary.json").read_text())
    assert summary["steps"] >= 30
    assert summary["world_size"] == 1
    assert summary["best_validation_loss"] < 0.9 * summary["first_validation_loss"]
    replaced = {
        made["setting"]: (made["before"], made["after"]) for made in summary["substitutions"]
    }
    assert replaced["model.sequence_len"] == (2048, 64) and replaced["train.cross_entropy"] == (
        "auto",
        "plain",
    )
    kept = sorted(
        (out / "checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1])
    )
    assert 1 < len(kept) <= 3
    assert any((out / "tensorboard").rglob("events.out.tfevents.*"))
    for name in (
        "best_model/model.safetensors",
        "demo_outputs/answers.json",
        "training_history.json",
    ):
        assert (out / name).is_file()
    steps = [
        entry["step"] for entry in json.loads((out / "training_history.json").read_text())["steps"]
    ]
    assert steps == list(range(1, summary["steps"] + 1))
    assert re.search(r"train documents +\d+\n", done.stdout)
    assert any(
        "it first learns general English, but none of your texts" in made["why"]
        for made in summary["substitutions"]
    )
    taught.speaks(out)


@pytest.mark.long
def test_training_goes_on_from_a_named_checkpoint(recipe_command, tmp_path):
    """From the first checkpoint, though a later one lies beside it; the steps before it are not
    made again."""
    out, again = tmp_path / "run", tmp_path / "again"
    assert recipe_command("rehearse", GEMMA, "--out", out).returncode == 0
    checkpoints = sorted(
        (out / "checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1])
    )
    settings = yaml.safe_load((out / "config" / "axolotl.yaml").read_text())
    settings |= {
        "resume_from_checkpoint": str(checkpoints[0]),
        "auto_resume_from_checkpoints": False,
    }
    settings["recipe_runner"] |= {"run_dir": str(again)}
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(settings))
    command = [
        sys.executable,
        "-m",
        "axolotl.cli.main",
        "train",
        str(tmp_path / "again.yaml"),
        "--launcher",
        "python",
    ]
    path = {
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        command,
        env=os.environ | WITHOUT_GPU | path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    first = int(checkpoints[0].name.split("-")[1])
    steps = [
        entry["step"]
        for entry in json.loads((again / "training_history.json").read_text())["steps"]
    ]
    before = json.loads((out / "training_summary.json").read_text())["steps"]
    assert steps == list(range(first + 1, before + 1))
