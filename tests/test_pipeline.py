"""The staged pipeline: what it says to Axolotl, and all of it through the real engine with a tiny twin."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from runner import catalog
from runner.execute import order, rehearse_pipeline, stages
from runner.execute.order import Selection
from runner.plan import Place
from runner.problem import Stop
from runner.recipe.changes import from_options
from runner.recipe.check import load
from runner.scenarios import translate
from runner.targets import kubernetes
from runner.targets import render as render_plan
from tests.cluster.pods import once, operate, pods
from tests.conftest import ROOT
from tests.test_axolotl_settings import axolotl as judged_by_axolotl
from tests.test_axolotl_settings import unknown_keys

axolotl = judged_by_axolotl  # the fixture

SEVEN_B = ROOT / "recipes" / "seven-b.yaml"
TRAINED = ("pretrain-512", "pretrain-1024", "pretrain-2048", "sft", "dpo", "lora")


def plan_of(*options: str):
    recipe, _, _ = load(SEVEN_B, from_options(options))
    return translate(recipe, kubernetes.place(recipe))


def configs(*options: str) -> dict[str, dict]:
    return {
        stage.name: yaml.safe_load(next(file.text for file in stage.files if file.path == stage.config_file))
        for stage in plan_of(*options).stages
        if stage.engine == "axolotl"
    }


def problems(*options: str) -> list[str]:
    with pytest.raises(Stop) as stop:
        load(SEVEN_B, from_options(options))
    return [f"{problem.message} {problem.hint}" for problem in stop.value.problems]


# What the stages say


def test_the_model_has_6_083_055_616_parameters():
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    plan = plan_of()
    init = next(stage for stage in plan.stages if stage.name == "init")
    config = AutoConfig.for_model(**init.config["architecture"])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == 6_083_055_616
    assert plan.facts["parameters"] == init.config["parameters"] == 6_083_055_616


def test_every_stage_has_a_folder_with_config_and_job():
    files = {file.path for file in render_plan(plan_of())}
    for stage in TRAINED:
        assert {f"{stage}/axolotl.yaml", f"{stage}/pytorchjob.yaml", f"{stage}/kustomization.yaml"} <= files
    jobs = [yaml.safe_load(file.text) for file in render_plan(plan_of()) if file.path.endswith("pytorchjob.yaml")]
    assert len({job["metadata"]["name"] for job in jobs}) == len(jobs) == 8


def test_each_pod_finds_its_config_where_its_command_says():
    for stage in plan_of().stages:
        files = {file.path: file for file in render_plan(plan_of())}
        job = yaml.safe_load(files[f"{stage.name}/pytorchjob.yaml"].text)
        pod = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
        (container,) = pod["containers"]
        mount = next(mount for mount in container["volumeMounts"] if mount["name"] == "config")["mountPath"]
        config = next(word for word in container["command"] if word.startswith("/etc/"))
        assert Path(config).parent == Path(mount)
        assert f"{stage.name}/{Path(config).name}" in files


def test_the_lengths_share_one_schedule():
    lengths = [configs()[name] for name in TRAINED[:3]]
    for config in lengths:
        assert config["max_steps"] == 100_000 and config["warmup_steps"] == 5_000
        assert config["learning_rate"] == 3e-4 and config["cosine_min_lr_ratio"] == 0.1
        assert config["lr_scheduler"] == "cosine"
        assert (config["micro_batch_size"], config["gradient_accumulation_steps"]) == (8, 4)
        assert (config["weight_decay"], config["adam_beta1"], config["adam_beta2"]) == (0.1, 0.9, 0.95)
        assert config["eval_steps"] == 1_000 and config["optimizer"] == "adamw_torch_fused"
    blocks = [config["recipe_runner"]["blocks"] for config in lengths]
    assert [block["sequence_len"] for block in blocks] == [512, 1024, 2048]
    assert [(block["first_step"], block["last_step"]) for block in blocks] == [
        (0, 40_000),
        (40_000, 70_000),
        (70_000, 100_000),
    ]
    assert blocks[0]["continue_from"] is None
    assert blocks[1]["continue_from"] == lengths[0]["output_dir"]
    assert blocks[2]["continue_from"] == lengths[1]["output_dir"]


def test_tokens_are_counted_over_all_lengths():
    facts = plan_of().facts
    assert facts["tokens"] == {
        "pretrain-512": 40_000 * 256 * 512,
        "pretrain-1024": 30_000 * 256 * 1024,
        "pretrain-2048": 30_000 * 256 * 2048,
    }
    assert facts["tokens_in_all"] == 28_835_840_000


def test_sft_dpo_and_lora_say_what_the_recipe_says():
    sft, dpo, lora = (configs()[name] for name in ("sft", "dpo", "lora"))
    assert sft["sample_packing"] is True and sft["sequence_len"] == 2048 and sft["num_epochs"] == 3
    assert (sft["learning_rate"], sft["warmup_ratio"]) == (2e-5, 0.03)
    assert (sft["micro_batch_size"], sft["gradient_accumulation_steps"]) == (2, 16)
    assert dpo["rl"] == "dpo" and dpo["rl_beta"] == 0.1 and dpo["dpo_loss_type"] == ["sigmoid"]
    assert (dpo["learning_rate"], dpo["num_epochs"]) == (5e-7, 1)
    assert (dpo["micro_batch_size"], dpo["gradient_accumulation_steps"]) == (1, 32)
    assert (lora["lora_r"], lora["lora_alpha"], lora["lora_dropout"]) == (64, 128, 0.05)
    assert (lora["num_epochs"], lora["learning_rate"]) == (5, 1e-4)
    assert set(lora["lora_target_modules"]) == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    }  # fmt: skip
    for config in configs().values():
        assert config["gradient_checkpointing_kwargs"] == {"use_reentrant": False}
        assert config["recipe_runner"]["persistent_workers"] is True
        assert config["attn_implementation"] == "flash_attention_2"
        assert config["bf16"] is True and config["tf32"] is True


@pytest.mark.parametrize(
    ("options", "fp8", "modes"),
    [
        ((), {"pretrain", "sft"}, {"pretrain": "default", "dpo": "max-autotune"}),
        (("machines.gpu=NVIDIA-H200",), {"pretrain", "sft"}, {"pretrain": "default", "lora": "max-autotune"}),
        (("machines.gpu=NVIDIA-A100-SXM4-80GB",), set(), {"pretrain": "default", "dpo": "default"}),
        (("model.precision=bf16",), set(), {"pretrain": "max-autotune", "dpo": "max-autotune"}),
        (("speed.compile=off",), {"pretrain", "sft"}, {"pretrain": None, "dpo": None}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_precision_and_compiling_follow_the_gpu(options, fp8, modes):
    for name, config in configs(*options).items():
        kind = name.split("-")[0]
        assert bool(config.get("fp8")) == (kind in fp8), name
        if kind in modes:
            assert config.get("torch_compile_mode") == modes[kind], name


def test_fp8_on_a_gpu_that_has_none_is_an_error():
    (said,) = problems("model.precision=fp8", "machines.gpu=NVIDIA-A100-SXM4-80GB")
    assert "cannot do `fp8`" in said and "precision: bf16" in said


@pytest.mark.parametrize("text", [".nan", "1e400"])
def test_a_share_that_is_no_number_is_said_once(text):
    (said,) = problems(f"pretrain.curriculum.0.until={text}")
    assert "until" in said or "not a finite number" in said


def test_several_gpus_share_everything():
    for config in configs().values():
        assert config["fsdp_version"] == 2 and config["fsdp_config"]["reshard_after_forward"] is True
        assert config["fsdp_config"]["transformer_layer_cls_to_wrap"] == "LlamaDecoderLayer"


@pytest.mark.parametrize("options", [(), ("machines.gpu=NVIDIA-H200",)])
def test_one_gpu_uses_neither_fsdp_nor_deepspeed(options):
    for name, config in configs("machines.gpus_per_node=1", *options).items():
        assert not [key for key in config if "fsdp" in key or "deepspeed" in key], name


@pytest.mark.parametrize(
    "options",
    [
        ("machines.gpu=NVIDIA-A100-SXM4-80GB",),
        ("machines.gpu=NVIDIA-H200", "machines.gpus_per_node=1"),
        ("machines.nodes=4",),
        ("distribution=zero2",),
        ("distribution=zero3", "model.precision=bf16"),
        ("pretrain.optimizer=adamw_bnb_8bit", "speed.fused_kernels=false", "speed.compile=off"),
        ("lora.dropout=0", "sft.packing=false", "dpo.loss=ipo"),
    ],
    ids=" ".join,
)
def test_every_variant_passes_axolotls_own_validation(options, axolotl):
    from axolotl.integrations.config import merge_input_args

    recipe, _, _ = load(SEVEN_B, from_options(options))
    for stage in translate(recipe, kubernetes.place(recipe)).stages:
        if stage.engine == "axolotl":
            config = yaml.safe_load(next(file.text for file in stage.files if file.path == stage.config_file))
            axolotl(config, catalog.gpu(recipe.machines.gpu), stage.machines.world_size)
            assert unknown_keys(config, [merge_input_args()[1]]) == []


def test_zero_is_a_change_of_a_line():
    stage = next(stage for stage in plan_of("distribution=zero3").stages if stage.name == "sft")
    assert "deepspeed.json" in {file.path for file in stage.files}
    assert stage.config["deepspeed"] == "/etc/recipe-runner/sft/deepspeed.json"


def test_a_recipe_without_lora_ends_after_dpo(tmp_path):
    import re

    (tmp_path / "data").symlink_to(ROOT / "recipes" / "data")
    file = tmp_path / "short.yaml"
    file.write_text(re.sub(r"(?ms)^lora:.*?(?=^evaluation:)", "", SEVEN_B.read_text("utf-8")), encoding="utf-8")
    recipe, _, _ = load(file)
    assert [stage.name for stage in translate(recipe, kubernetes.place(recipe)).stages][-1] == "dpo"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("tokenizer.vocabulary=60000",), "the embedding has rows for 50,304"),
        (("model.attention_heads=30",), "cannot be shared by 30 heads"),
        (("model.key_value_heads=7",), "cannot share 7 key and value heads"),
        (("pretrain.curriculum.2.until=0.9",), "would not be trained"),
        (("pretrain.curriculum.1.until=0.4",), "both must rise"),
        (("pretrain.curriculum.1.sequence_len=512",), "both must rise"),
        (("pretrain.curriculum.2.sequence_len=8192",), "longer than the model's context"),
        (("pretrain.min_learning_rate=0.1",), "is above `learning_rate`"),
        (("pretrain.warmup_steps=100000",), "leaves nothing"),
        (("sft.sequence_len=8192",), "reads at most 4,096 tokens"),
        (("data.path=data/seven-b-text.jsonl",), "only one can be read"),
        (("data.hub=", "data.packed=nowhere"), "Name the tokenizer they were made with"),
        (("sft.data.question=Q: [instruct]",), "names the column `instruct`"),
        (('advanced.sft={"sample_pakking": true}',), "has no setting `sample_pakking`"),
        (("name=" + "a" * 45,), "the cluster allows 53"),
    ],
    ids=lambda value: value[0][:40] if isinstance(value, tuple) else "",
)
def test_contradictions_are_found(options, words):
    assert any(words in said for said in problems(*options)), problems(*options)


# Data


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The data stage's work on the sample, as the rehearsal has it."""
    from runner.execute.rehearse_pipeline import substituted
    from runner.execute.work import data

    folder = tmp_path_factory.mktemp("data")
    recipe, _, _ = load(SEVEN_B)
    recipe, _ = substituted(recipe, None)
    place = Place(f"{folder}/config", f"{folder}/data", str(folder), f"{folder}/scratch", accelerator=False)
    stage = translate(recipe, place).stages[0]
    data(stage.config)
    return folder / "data", stage.config


def test_kept_documents_are_byte_for_byte_what_came(prepared):
    folder, _ = prepared
    source = [json.loads(line)["text"] for line in (ROOT / "recipes/data/seven-b-text.jsonl").open(encoding="utf-8")]
    kept = [json.loads(line)["text"] for file in folder.glob("text/*.jsonl") for line in file.open(encoding="utf-8")]
    assert len(kept) == len(set(kept)) == 420
    assert set(kept) <= set(source)


def test_the_report_says_what_was_dropped_and_why(prepared):
    folder, _ = prepared
    report = json.loads((folder / "cleaning.json").read_text("utf-8"))
    assert report["documents_in"] == 469 and report["kept"] == 420
    assert report["dropped"]["exact duplicate of a kept document"] == 18
    assert report["dropped"]["near duplicate of a kept document"] == 16
    assert report["dropped"]["too few words"] == 9
    assert sum(report["dropped"].values()) == 469 - 420
    kinds = {file.parent.name for file in folder.glob("dropped/*/*.jsonl")}
    assert {"exact", "near", "filters", "repetition"} <= kinds


def test_blocks_hold_the_documents_one_after_the_other(prepared):
    from transformers import AutoTokenizer

    folder, _ = prepared
    words = AutoTokenizer.from_pretrained(str(folder / "tokenizer"))
    seen: set[str] = set()
    for length in (512, 1024, 2048):
        blocks = np.load(folder / "blocks" / f"train-{length}.npy")
        assert blocks.shape[1] == length and blocks.dtype == np.uint16
        texts = words.decode(blocks.reshape(-1)).split("<|endoftext|>")[:-1]
        kept = {
            json.loads(line)["text"] for file in folder.glob("text/*.jsonl") for line in file.open(encoding="utf-8")
        }
        assert set(texts) <= kept and len(texts) > 10
        assert not seen & set(texts), "two lengths learn the same document"
        seen |= set(texts)
        assert not seen & set(
            words.decode(np.load(folder / "blocks" / f"validation-{length}.npy").reshape(-1)).split("<|endoftext|>")[
                :-1
            ]
        )


def test_lora_mixes_seventy_to_thirty(prepared):
    from datasets import Dataset

    folder, _ = prepared
    mixed = len(Dataset.from_parquet(str(folder / "lora" / "train.parquet")))
    domain = len(Dataset.from_parquet(str(folder / "lora" / "domain" / "train.parquet")))
    assert domain / mixed == pytest.approx(0.7, abs=0.01)


def test_a_tokenizer_that_is_larger_than_the_embedding_is_an_error(prepared):
    from runner.execute.data import packing

    folder, config = prepared
    wanted = config["tokenizer"] | {"base": str(folder / "tokenizer"), "most": 1000}
    with pytest.raises(Stop, match="1,024 entries, and the embedding has rows for 1,000"):
        packing.tokenizer(wanted, lambda: (), folder / "other")


def test_packed_files_are_taken_as_they_are(prepared, tmp_path):
    from transformers import AutoTokenizer

    from runner.execute.data import packing

    folder, _ = prepared
    words = AutoTokenizer.from_pretrained(str(folder / "tokenizer"))
    counts = packing.take_packed(folder / "blocks", [512, 1024], words, tmp_path / "out")
    assert counts["train-512"]["blocks"] == len(np.load(folder / "blocks" / "train-512.npy"))
    assert (tmp_path / "out" / "train-512.npy").read_bytes() == (folder / "blocks" / "train-512.npy").read_bytes()


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((3, 100), np.uint16), "must hold whole numbers"),
        (np.zeros((3, 512), np.float32), "must hold whole numbers"),
        (np.zeros((0, 512), np.uint16), "must hold whole numbers"),
        (np.full((3, 512), 2000, np.uint16), "holds the token 2,000"),
    ],
    ids=["length", "kind", "empty", "vocabulary"],
)
def test_packed_files_that_do_not_fit_are_refused(prepared, tmp_path, array, words):
    from transformers import AutoTokenizer

    from runner.execute.data import packing

    tokenizer = AutoTokenizer.from_pretrained(str(prepared[0] / "tokenizer"))
    for side in ("train", "validation"):
        np.save(tmp_path / f"{side}-512.npy", array)
    with pytest.raises(Stop, match=words):
        packing.take_packed(tmp_path, [512], tokenizer, tmp_path / "out")


def packed_recipe(prepared, folder: Path) -> list[str]:
    """What makes of seven-b a recipe that takes the blocks in `folder`."""
    settings = {
        "data.hub": "",
        "data.packed": folder,
        "tokenizer.base": prepared[0] / "tokenizer",
        "sft.data.hub": "",
        "sft.data.path": "data/seven-b-questions.jsonl",
        "dpo.data.hub": "",
        "dpo.data.path": "data/seven-b-preferences.jsonl",
        "lora.data.hub": "",
        "lora.data.path": "data/seven-b-domain.jsonl",
    }
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


def test_a_recipe_with_packed_files_is_checked_planned_and_its_data_stage_takes_them(
    prepared, recipe_command, tmp_path
):
    packed = tmp_path / "packed"
    shutil.copytree(prepared[0] / "blocks", packed)
    sets = packed_recipe(prepared, packed)
    for command in (("check", SEVEN_B, *sets), ("render", SEVEN_B, *sets, "--out", tmp_path / "rendered")):
        done = recipe_command(*command)
        assert done.returncode == 0, done.stdout + done.stderr
    planned = recipe_command("plan", SEVEN_B, *sets)
    assert "stage pretrain-2048" in planned.stdout, planned.stdout + planned.stderr
    out = tmp_path / "run"
    done = recipe_command("run", SEVEN_B, *sets, "--until", "data", "--out", out, env={"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    for file in packed.glob("*.npy"):
        assert (out / "data" / "blocks" / file.name).read_bytes() == file.read_bytes()
    assert not (out / "data" / "cleaning.json").exists()
    rows = len(np.load(packed / "train-512.npy"))
    assert f"train-512            {rows:>11,}   blocks" in done.stdout
    np.save(packed / "train-512.npy", np.full((3, 512), 2000, np.uint16))
    done = recipe_command("run", SEVEN_B, *sets, "--until", "data", "--out", out, env={"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 1
    assert "data: runs again (text.packed: the file's content has changed)" in done.stdout
    assert "train-512.npy` holds the token 2,000, and the tokenizer has 1,024 entries" in done.stderr


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((3, 100), np.uint16), "is an array (3, 100), and must be (blocks, 1024)."),
        (np.zeros((3, 1024), np.float32), "holds `<f4`, and token numbers are whole numbers."),
        (np.zeros((0, 1024), np.uint16), "is an array (0, 1024), and must be (blocks, 1024)."),
        (np.zeros(1024, np.int32), "is an array (1024,), and must be (blocks, 1024)."),
        (None, "is no array of NumPy."),
    ],
    ids=["length", "kind", "empty", "flat", "text"],
)
def test_check_looks_into_packed_files(tmp_path, array, words):
    for length in (512, 1024, 2048):
        for side in ("train", "validation"):
            np.save(tmp_path / f"{side}-{length}.npy", np.zeros((3, length), np.uint16))
    settings = ("data.hub=", f"data.packed={tmp_path}", "tokenizer.base=openai-community/gpt2")
    load(SEVEN_B, from_options(settings))
    if array is None:
        (tmp_path / "train-1024.npy").write_text("1 2 3")
    else:
        np.save(tmp_path / "train-1024.npy", array)
    (said,) = problems(*settings)
    assert said == f"`{tmp_path}/train-1024.npy` {words} Write it with numpy.save, a block a row."


# Blocks and checkpoints


def blocks(first: int, last: int, steps: int = 10):
    from runner.training.settings import BlocksSettings

    return BlocksSettings(folder="", sequence_len=4, first_step=first, last_step=last, steps=steps, seed=1)


def test_a_resumed_length_sees_exactly_the_rows_that_are_left():
    from runner.training.blocks import TrainBlocks

    rows = np.arange(24, dtype=np.uint16).reshape(6, 4)
    whole = TrainBlocks(rows, blocks(4, 10), batch=2, steps=10)
    assert len(whole) == 20
    in_order = [whole[index]["input_ids"][0] for index in range(8, 20)]
    assert sorted(in_order[:6]) == sorted(in_order[6:]) == [0, 4, 8, 12, 16, 20]
    assert in_order[:6] != in_order[6:], "each pass has an order of its own"
    again = TrainBlocks(rows, blocks(4, 10), batch=2, steps=10)
    assert [again[index]["input_ids"][0] for index in range(14, 20)] == in_order[6:]
    with pytest.raises(IndexError):
        whole[7]


def test_a_checkpoint_that_a_kill_left_half_written_is_never_resumed_from(tmp_path):
    from runner.training import checkpoints

    for step, complete in ((10, True), (20, True), (30, False)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text("{}" if step != 20 else '{"half')
        if complete:
            (folder / "complete.json").write_text(json.dumps({"step": step, "tokens": 1}))
    assert checkpoints.last_good(tmp_path) == tmp_path / "checkpoint-10"
    checkpoints.drop_broken(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-10"]


def test_a_named_checkpoint_is_gone_back_to_once(tmp_path, monkeypatch):
    from types import SimpleNamespace

    from runner.training import resume

    own, old = tmp_path / "checkpoints", tmp_path / "old" / "checkpoint-9"
    old.mkdir(parents=True)

    def save(step: int) -> None:
        folder = own / f"checkpoint-{step}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "trainer_state.json").write_text("{}")
        (folder / "complete.json").write_text(json.dumps({"step": step}))
        time.sleep(0.02)

    def chosen(name: Path, rank: int = 0) -> str:
        monkeypatch.setenv("RANK", str(rank))
        cfg = SimpleNamespace(resume_from_checkpoint=str(name), output_dir=str(own))
        resume.choose(cfg, SimpleNamespace(run_dir=str(tmp_path)))
        return Path(cfg.resume_from_checkpoint).name

    named = own / "checkpoint-500"
    assert chosen(named) == "checkpoint-500" and not (tmp_path / "resumed-from.json").exists(), "it is not there yet"
    for step in (500, 600, 700):
        save(step)
    # The second process looks before and after the first has written its note.
    assert [chosen(named, rank) for rank in (1, 0, 1, 0)] == ["checkpoint-500"] * 4
    time.sleep(0.02)
    save(600)
    assert [chosen(named, rank) for rank in (1, 0)] == ["checkpoint-600"] * 2, "700 is of the way that was left"
    shutil.rmtree(named)
    assert chosen(named) == "checkpoint-600"
    assert chosen(old) == "checkpoint-9", "another one that the recipe names is gone back to"
    shutil.rmtree(old)
    assert chosen(old) == "checkpoint-700"


# Which stages run


@pytest.fixture
def finished(tmp_path):
    """A plan whose every stage looks finished, without any training; gives a function for changed plans."""

    def make(*options: str):
        recipe, _, _ = load(SEVEN_B, from_options(options))
        return translate(recipe, Place(f"{tmp_path}/config", f"{tmp_path}/data", str(tmp_path), f"{tmp_path}/scratch"))

    plan = make()
    for stage in plan.stages:
        folder = stages.StageFolder(plan, stage)
        if stage.name == "data":
            for name in ("tokenizer/t", "sft/train.parquet", "dpo/train.parquet", "lora/train.parquet"):
                (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / "data" / name).write_text(name)
            for length in (512, 1024, 2048):
                (tmp_path / "data" / "blocks").mkdir(exist_ok=True)
                (tmp_path / "data" / "blocks" / f"train-{length}.npy").write_text(str(length))
        else:
            folder.model.mkdir(parents=True)
            (folder.model / "model.safetensors").write_text(stage.name)
        folder.mark("finished", inputs=stages.inputs(plan, stage), outputs=folder.outputs())
    return make


def repeated(plan) -> list[str]:
    return [decision.stage.name for decision in order.decide(plan, plan.stages) if decision.action != "keep"]


def test_nothing_runs_again_where_nothing_changed(finished):
    assert repeated(finished()) == []


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (("lora.rank=32",), ["lora"]),
        (("dpo.beta=0.2",), ["dpo", "lora"]),
        (("sft.learning_rate=1e-5",), ["sft", "dpo", "lora"]),
        (("pretrain.learning_rate=1e-4",), ["pretrain-512", "pretrain-1024", "pretrain-2048", "sft", "dpo", "lora"]),
        (("pretrain.logging_steps=5",), []),
        (("pretrain.gates.0=perplexity < 3",), []),
        (("report_to=none",), []),
        (("openshift.queue=fast",), []),
        (("speed.data_workers=8",), []),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_only_stages_whose_inputs_changed_run_again(finished, options, names):
    assert repeated(finished(*options)) == names


def test_the_reason_is_said(finished):
    plan = finished("dpo.beta=0.2")
    said = [str(decision) for decision in order.decide(plan, plan.stages)]
    assert "dpo: runs again (rl_beta: 0.1 → 0.2)" in said
    assert "lora: runs again (`dpo` before it runs again)" in said
    assert "sft: done, and stays" in said


def test_results_that_are_not_as_they_were_left_are_made_again(finished, tmp_path):
    plan = finished()
    (tmp_path / "sft" / "best_model" / "model.safetensors").write_text("something else")
    assert repeated(plan) == ["sft", "dpo", "lora"]
    (tmp_path / "sft" / "best_model" / "model.safetensors").unlink()
    assert repeated(plan) == ["sft", "dpo", "lora"]


def test_what_took_training_is_moved_aside_before_a_stage_runs_again(finished, tmp_path):
    from runner.execute import pipeline
    from runner.execute.runs import RunFolder

    def begin(name: str, learning_rate: str, kind: str = "run") -> list[str]:
        plan, said = finished(f"sft.learning_rate={learning_rate}", f"model.seed={learning_rate[0]}"), []
        folder = stages.StageFolder(plan, order.stage_of(plan, name))
        pipeline.begin(plan, RunFolder(tmp_path, kind), folder, order.one(plan, folder.stage), said.append)
        return said

    weights = "best_model/model.safetensors"
    assert begin("sft", "1e-5")[1:] == [
        f"sft: what was trained before is moved to {tmp_path}/sft.before; delete it when nobody needs it",
        f"sft: starting; log in {tmp_path}/sft/train.log",
    ]
    assert (tmp_path / "sft.before" / weights).read_text() == "sft" and not (tmp_path / "sft" / weights).exists()
    # Nothing was trained since.
    assert len(begin("sft", "2e-6")) == 2 and not (tmp_path / "sft.before-2").exists()
    (tmp_path / "sft" / "checkpoints" / "checkpoint-500").mkdir(parents=True)
    assert f"moved to {tmp_path}/sft.before-2;" in begin("sft", "3e-6")[1]
    assert (tmp_path / "sft.before-2" / "checkpoints" / "checkpoint-500").is_dir()
    assert (tmp_path / "sft.before" / weights).read_text() == "sft", "one that was moved earlier stays"
    # Random weights are quickly made again, and so is all of a rehearsal.
    assert len(begin("init", "4e-6")) == 2 and len(begin("dpo", "4e-6", "rehearsal")) == 2
    assert not [*tmp_path.glob("init.*"), *tmp_path.glob("dpo.*")]


@pytest.mark.parametrize(
    ("options", "exchanged", "stage", "words"),
    [
        (("sft.learning_rate=1e-5",), None, "dpo", "`sft` was made from something else than now: learning_rate: 2e-05"),
        (("sft.learning_rate=1e-5",), None, "lora", "`sft` was made from something else than now"),
        (
            (),
            "sft/best_model/model.safetensors",
            "dpo",
            "`sft` has left `best_model/model.safetensors`, which is not as",
        ),
        ((), "data/dpo/train.parquet", "dpo", "`data` has left `dpo/train.parquet`, which is not as it was left"),
        (("lora.data.seed=7",), "data/lora/train.parquet", "dpo", "The gate after `pretrain-2048` is closed"),
    ],
    ids=["settings", "settings further up", "weights", "rows", "what it does not read"],
)
def test_a_stage_chosen_by_name_starts_only_on_what_the_recipe_would_make(
    finished, tmp_path, options, exchanged, stage, words
):
    from runner.execute import pipeline
    from runner.execute.runs import RunFolder

    plan, run = finished(*options), RunFolder(tmp_path, "run")
    if exchanged:
        (tmp_path / exchanged).write_text("something else")
    with pytest.raises(Stop) as stop:
        pipeline._before(plan, run, next(one for one in plan.stages if one.name == stage), print)
    assert words in stop.value.text


def test_a_gate_and_a_promotion_are_about_the_weights_that_lie_there(finished, tmp_path):
    from runner.execute import pipeline, recorded
    from runner.execute.runs import RunFolder

    plan, run = finished(), RunFolder(tmp_path, "run")
    pipeline.identify(run)
    sft = next(stage for stage in plan.stages if stage.name == "sft")
    about, folder = recorded.subject(plan, run, sft), stages.StageFolder(plan, sft)
    metrics = {"perplexity": 20.0, "generated_tokens": 16, "regression.lm_eval.hellaswag.acc_norm": 0.0}
    (folder.path / "evaluation.json").write_text(json.dumps(vars(about) | {"metrics": metrics}))
    promotion = recorded.promote(plan, run, sft, "Ada Lovelace", "the demo is tomorrow")
    assert recorded.promotion(plan, run, sft, look=True) == promotion
    for missed in (None, [], "x", [1], [{}]):
        (folder.path / "promotion.json").write_text(json.dumps(promotion | {"missed": missed}))
        assert recorded.promotion(plan, run, sft) is None, "without the failing numbers it is no promotion"
    (folder.path / "promotion.json").write_text(json.dumps(promotion))
    (folder.model / "model.safetensors").write_text("something else")
    assert recorded.promotion(plan, run, sft, look=True) is None
    verdicts = recorded.verdicts(plan, run, sft, look=True)
    assert {verdict.why for verdict in verdicts} == {"measured on another checkpoint"}
    with pytest.raises(Stop, match="no finished result"):
        recorded.promote(plan, run, sft, "Ada Lovelace", "the demo is tomorrow")
    for broken in ("[]", '"x"', '{"outputs": [1], "inputs": 3, "status": "finished"}', "[" * 100_000):
        (folder.path / "stage.json").write_text(broken)
        assert recorded.subject(plan, run, sft) is None and order.one(plan, sft).action != "keep"


def test_a_changed_length_of_blocks_repeats_only_what_reads_it(finished, tmp_path):
    plan = finished()
    data = next(stage for stage in plan.stages if stage.name == "data")
    (tmp_path / "data" / "blocks" / "train-2048.npy").write_text("others")
    stages.StageFolder(plan, data).mark("finished", outputs=stages.StageFolder(plan, data).outputs())
    assert repeated(plan) == ["pretrain-2048", "sft", "dpo", "lora"]


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        (Selection(), 8),
        (Selection(stage="sft"), 1),
        (Selection(first="sft"), 3),
        (Selection(last="init"), 2),
        (Selection(first="sft", last="dpo"), 2),
    ],
    ids=str,
)
def test_stages_are_chosen_by_name(chosen, names):
    assert len(chosen.of(plan_of())) == names


@pytest.mark.parametrize(
    "chosen",
    [Selection(stage="sfft"), Selection(first="dpo", last="sft"), Selection(stage="sft", first="sft")],
    ids=str,
)
def test_a_choice_of_stages_that_means_nothing_is_refused(chosen):
    with pytest.raises(Stop) as stop:
        chosen.of(plan_of())
    assert stop.value.code == 2


def test_the_newest_finished_stage_is_asked(finished, tmp_path):
    from runner.execute import stage_asking
    from runner.execute.runs import RunFolder

    plan, run = finished(), RunFolder(tmp_path, "run")
    recipe, _, _ = load(SEVEN_B)
    assert stage_asking.newest(plan).name == "lora"
    for name in ("lora", "dpo"):
        (stage,) = (stage for stage in plan.stages if stage.name == name)
        stages.StageFolder(plan, stage).mark("running")
    assert stage_asking.newest(plan).name == "sft"
    before, after = stage_asking.chats(recipe, plan, run, stage_asking.newest(plan))
    assert (before.model, after.model) == (f"{tmp_path}/pretrain-2048/best_model", f"{tmp_path}/sft/best_model")
    assert after.chat and after.tokenizer == before.tokenizer == after.model
    _, text = stage_asking.chats(recipe, plan, run, next(s for s in plan.stages if s.name == "pretrain-512"))
    assert not text.chat and text.turn_end == "<|endoftext|>"
    with pytest.raises(Stop, match="`init` has left no model that could answer"):
        stage_asking.chats(recipe, plan, run, plan.stages[1])


def test_weights_that_were_cut_short_do_not_load(tmp_path):
    from safetensors.numpy import save_file

    save_file({"a": np.ones((4, 5), np.float32)}, tmp_path / "model.safetensors")
    assert stages.check_weights(tmp_path) == 20
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-10])
    with pytest.raises(Stop, match="cannot be loaded"):
        stages.check_weights(tmp_path)


# The whole way


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    """One rehearsal of the whole recipe; the folder and what it printed."""
    import os
    import subprocess
    import sys

    out = tmp_path_factory.mktemp("rehearsal") / "run"
    done = subprocess.run(
        [sys.executable, "-m", "runner", "rehearse", str(SEVEN_B), "--out", str(out)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    return out, done.stdout


def history(out: Path, stage: str) -> dict:
    return json.loads((out / stage / "training_history.json").read_text("utf-8"))


def test_a_rehearsal_runs_every_stage_and_every_gate(rehearsed):
    out, said = rehearsed
    for stage in TRAINED:
        assert list((out / stage / "best_model").glob("*.safetensors")), stage
    for stage in ("pretrain-2048", "sft", "dpo", "lora"):
        assert f"{stage}: gate" in said
    assert said.count("540,672") >= 2, "the tokens are said before and after"
    assert "MISSED" not in said


def test_the_learning_rate_runs_on_over_the_lengths(rehearsed):
    out, _ = rehearsed
    found = {step["step"]: step["learning_rate"] for name in TRAINED[:3] for step in history(out, name)["steps"]}
    assert sorted(found) == list(range(1, 121))
    top, low, warmup, whole = 0.01, 0.001, 10, 120
    for step, rate in found.items():
        done = step - 1  # steps before this one: the rate that it was taken with
        cosine = low + (top - low) * 0.5 * (1 + math.cos(math.pi * (done - warmup) / (whole - warmup)))
        wanted = top * done / warmup if done < warmup else cosine
        assert rate == pytest.approx(wanted, rel=1e-5, abs=1e-12), step


def test_the_tokens_are_those_of_the_plan(rehearsed):
    out, _ = rehearsed
    seen = [json.loads((out / name / "training_summary.json").read_text("utf-8"))["tokens"] for name in TRAINED[:3]]
    assert seen == [98_304, 98_304 + 147_456, 540_672]


def test_a_length_goes_on_with_the_model_of_the_one_before(rehearsed):
    out, _ = rehearsed
    for before, after in (TRAINED[:2], TRAINED[1:3]):
        last = history(out, before)["epochs"][-1]["validation_loss"]
        first = history(out, after)["steps"][0]["loss"]
        assert first < last + 0.5, "an optimizer that starts anew would throw the model back"


def test_dpo_learns_to_prefer_the_better_answer(rehearsed):
    summary = json.loads((rehearsed[0] / "dpo" / "training_summary.json").read_text("utf-8"))
    assert summary["first_preference_accuracy"] < 0.6 <= summary["last_preference_accuracy"]


def test_the_same_command_again_does_nothing_again(rehearsed, recipe_command):
    done = recipe_command("rehearse", SEVEN_B, "--out", rehearsed[0])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("done already") == 8 and "starting" not in done.stdout


def test_an_unreachable_threshold_stops_at_that_gate(rehearsed, recipe_command):
    out, _ = rehearsed
    done = recipe_command("rehearse", SEVEN_B, "--out", out, "--set", "sft.gates.0=perplexity < 0.5")
    assert done.returncode == 1
    assert "The gate after `sft` is closed" in done.stderr and "perplexity: wanted < 0.5" in done.stderr
    assert "dpo: " not in done.stdout.split("sft: gate")[1]


def test_a_gate_is_read_with_exit_0_or_1(rehearsed, recipe_command):
    out, _ = rehearsed
    good = recipe_command("gate", SEVEN_B, "sft", "--run", out)
    assert good.returncode == 0, good.stdout + good.stderr
    assert "is open" in good.stdout and "metric" in good.stdout
    bad = recipe_command("gate", SEVEN_B, "sft", "--run", out, "--set", "sft.gates.0=perplexity < 0.5")
    assert bad.returncode == 1 and "MISSED" in bad.stdout and "is closed" in bad.stdout
    ungated = recipe_command("gate", SEVEN_B, "pretrain-512", "--run", out)
    assert ungated.returncode == 1 and "(no gate)" in ungated.stdout


def test_a_person_may_overrule_a_gate_and_is_on_record(rehearsed, recipe_command, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(rehearsed[0], out)
    strict = ("--set", "lora.gates.0=perplexity < 0.5")
    who = ("--by", "Ada Lovelace", "--reason", "the demo is tomorrow")
    assert recipe_command("promote", SEVEN_B, "lora", "--run", out, *who).returncode == 1, "an open gate needs nobody"
    assert (
        recipe_command("promote", SEVEN_B, "lora", "--run", out, *strict, "--by", "", "--reason", "x").returncode == 2
    )
    done = recipe_command("promote", SEVEN_B, "lora", "--run", out, *strict, *who)
    assert done.returncode == 0, done.stdout + done.stderr
    read = recipe_command("gate", SEVEN_B, "lora", "--run", out, *strict)
    assert read.returncode == 0 and "PROMOTED" in read.stdout and "Ada Lovelace" in read.stdout
    again = recipe_command("rehearse", SEVEN_B, "--out", out, *strict)
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.stdout.count("the demo is tomorrow") >= 1 and "it had missed: perplexity" in again.stdout
    stricter = recipe_command("gate", SEVEN_B, "lora", "--run", out, "--set", "lora.gates.0=perplexity < 0.4")
    assert stricter.returncode == 1, "a promotion holds for the gate that it overruled alone"


def test_weights_that_somebody_exchanged_close_the_gate(rehearsed, recipe_command, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(rehearsed[0], out)
    record = json.loads((out / "sft" / "evaluation.json").read_text("utf-8"))
    (out / "sft" / "evaluation.json").write_text(json.dumps(record | {"weights": "0" * 32}))
    done = recipe_command("gate", SEVEN_B, "sft", "--run", out)
    assert done.returncode == 1 and "measured on another checkpoint" in done.stdout


def test_ask_says_which_stage_answers(rehearsed, recipe_command):
    done = recipe_command("ask", SEVEN_B, "How do I tie a bowline?", "--run", rehearsed[0])
    assert done.returncode == 0, done.stdout + done.stderr
    first, empty, said = done.stdout.split("\n", 2)
    assert first.startswith("the model that `lora` left, ") and not empty and said.strip()


def test_runs_are_compared_stage_by_stage(rehearsed, recipe_command, tmp_path):
    one, other = rehearsed[0], tmp_path / "other"
    shutil.copytree(one, other)
    strict = ("--set", "sft.gates.0=perplexity < 0.5")
    who = ("--by", "Ada Lovelace", "--reason", "the demo is tomorrow")
    assert recipe_command("promote", SEVEN_B, "sft", "--run", other, *strict, *who).returncode == 0
    (other / "lora" / "evaluation.json").unlink()
    done = recipe_command("compare", SEVEN_B, "--run", one, "--with", other, *strict)
    assert done.returncode == 0, done.stdout + done.stderr
    table = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if "│" in line]
    assert [row[0] for row in table if row[0]] == list(TRAINED)
    cells = {row[1]: row[2:] for row in table}
    assert cells["gate perplexity < 0.5"][0].startswith("MISSED: got")
    loss = json.loads((one / "lora" / "training_summary.json").read_text("utf-8"))["last_validation_loss"]
    assert (
        cells["validation loss"][0].endswith(f"→ {loss:.4g}")
        and cells["validation loss"][1] == cells["validation loss"][0]
    )
    assert cells["promotion"][0] == "" and cells["promotion"][1].startswith("PROMOTED against its")
    assert cells["gate generated_tokens >= 1"][1].startswith("MISSED: got nothing")


def test_single_recipes_have_no_stages_to_ask_or_compare(recipe_command):
    survival = ROOT / "recipes" / "survival.yaml"
    assert recipe_command("ask", survival, "Why?", "--stage", "sft").returncode == 2
    done = recipe_command("compare", survival, "--with", "runs/other")
    assert done.returncode == 2 and "has no stages to compare" in done.stderr


@pytest.mark.long
def test_another_checkpoint_is_measured_and_opens_no_gate(rehearsed, recipe_command, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(rehearsed[0], out)
    checkpoint = sorted((out / "sft" / "checkpoints").glob("checkpoint-*"))[0]
    done = recipe_command("evaluate", SEVEN_B, "sft", "--run", out, "--checkpoint", checkpoint)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "perplexity" in done.stdout
    assert recipe_command("gate", SEVEN_B, "sft", "--run", out).returncode == 1
    assert recipe_command("evaluate", SEVEN_B, "sft", "--run", out).returncode == 0
    assert recipe_command("gate", SEVEN_B, "sft", "--run", out).returncode == 0


# The whole way on a claim: what the manifests' own commands do, with config maps of the rehearsal in the place of theirs


def config_map(folder: Path, models: Path, stage: str, *options: str) -> dict[str, Path]:
    """The mounts of a stage's pods: the claim, and the files that a rehearsal's stage has in its config map."""
    recipe, _, _ = load(SEVEN_B, from_options(options))
    home = folder / f"config-{len(list(folder.iterdir()))}"
    place = Place(str(home), str(models / "seven-b" / "data"), str(models / "seven-b"), str(folder / "s"), False)
    changed, _ = rehearse_pipeline.substituted(recipe, None)
    (found,) = (one for one in translate(changed, replace(place, run_key="k")).stages if one.name == stage)
    for file in found.files:
        (home / stage).mkdir(parents=True, exist_ok=True)
        (home / stage / file.path).write_text(file.text, encoding="utf-8")
    return {f"/etc/recipe-runner/{stage}": home / stage, "/shared/models": models}


def rendered(stage: str, file: str) -> dict:
    return yaml.safe_load(next(one.text for one in render_plan(plan_of()) if one.path == f"{stage}/{file}"))


def test_the_gate_jobs_own_command_measures_and_opens_on_the_claim(rehearsed, tmp_path):
    models = tmp_path / "models"
    shutil.copytree(rehearsed[0], models / "seven-b")
    record = models / "seven-b" / "sft" / "evaluation.json"
    record.unlink()
    # The next stage's pod comes too early, and looks for itself.
    (early,) = pods(rendered("dpo", "pytorchjob.yaml"), config_map(tmp_path, models, "dpo"), tmp_path / "early")
    early.start()
    assert early.process.wait(120) == 1
    assert "The gate after `sft` is closed, and `dpo` does not start." in early.text
    done = once(rendered("sft", "gate.yaml"), config_map(tmp_path, models, "sft"), tmp_path / "gate")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "The gate after `sft` is open." and "perplexity" in done.stdout
    assert math.isfinite(json.loads(record.read_text("utf-8"))["metrics"]["perplexity"])
    (late,) = pods(rendered("dpo", "pytorchjob.yaml"), config_map(tmp_path, models, "dpo"), tmp_path / "late")
    late.start()
    assert late.process.wait(120) == 0 and "dpo: done already" in late.text
    strict = config_map(tmp_path, models, "sft", "sft.gates.0=perplexity < 0.5")
    shut = once(rendered("sft", "gate.yaml"), strict, tmp_path / "strict")
    assert shut.returncode == 1
    assert "MISSED: it misses the threshold" in shut.stdout
    assert shut.stdout.splitlines()[-1] == "The gate after `sft` is closed."


@pytest.fixture
def short_path():
    """A socket's name holds 107 characters, and multiprocessing puts its sockets below a pod's TMPDIR."""
    with tempfile.TemporaryDirectory(prefix="pods-") as folder:
        yield Path(folder)


@pytest.mark.long
def test_stages_trained_by_their_jobs_own_commands_pass_their_gates(short_path):
    tmp_path = short_path
    models, said = tmp_path / "models", {}
    models.mkdir()
    for stage in ("data", "init", *TRAINED[:3], "sft"):
        job, mounts = rendered(stage, "pytorchjob.yaml"), config_map(tmp_path, models, stage)
        # One process here, where the recipe has eight; the config map is the one of a single one.
        job["spec"]["nprocPerNode"] = "1"
        (pod,) = pods(job, mounts, tmp_path / "pods" / stage)
        operate(job, [pod], lambda: None, timeout=400)
        said[stage] = pod.text
        state = json.loads((models / "seven-b" / stage / "stage.json").read_text("utf-8"))
        assert state["status"] == "finished" and state["outputs"] and state["keys"][""], stage
        if stage == TRAINED[2]:
            done = once(rendered(stage, "gate.yaml"), mounts, tmp_path / "gate")
            assert done.returncode == 0, done.stdout + done.stderr
    checkpoints = list((models / "seven-b" / "pretrain-512" / "checkpoints").iterdir())
    key = json.loads((models / "seven-b" / "pretrain-512" / "stage.json").read_text("utf-8"))["keys"][""]
    assert [folder.name for folder in checkpoints] == [key]
    assert "sft: starting" in said["sft"]
