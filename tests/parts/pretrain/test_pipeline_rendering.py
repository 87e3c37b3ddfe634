"""What a pipeline recipe says to Axolotl and to the cluster, and which contradictions are found in
it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from runner import catalog
from runner.check.validate import load
from runner.parts.jobs import kubernetes
from runner.recipe.overrides import from_options
from runner.scenarios import translate
from runner.tools.problem import Stop
from tests.catalog.axolotls_own import unknown_keys, validated
from tests.conftest import ROOT
from tests.rendering import render as render_plan

SEVEN_B = ROOT / "recipes" / "seven-b.yaml"
UNCOMPILED = tuple(f"stages.{index}.speed.compile=off" for index in range(4))
TRAINED = ("pretrain-512", "pretrain-1024", "pretrain-2048", "sft", "dpo", "lora")


def plan_of(*options: str):
    recipe, _, _ = load(SEVEN_B, from_options(options))
    return translate(recipe, kubernetes.place(recipe))


def configs(*options: str) -> dict[str, dict]:
    return {
        stage.name: yaml.safe_load(
            next(file.text for file in stage.files if file.path == stage.config_file)
        )
        for stage in plan_of(*options).stages
        if stage.engine == "axolotl"
    }


def problems(*options: str) -> list[str]:
    with pytest.raises(Stop) as stop:
        load(SEVEN_B, from_options(options))
    return [f"{problem.message} {problem.hint}" for problem in stop.value.problems]


def test_the_model_has_6_083_055_616_parameters():
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    plan = plan_of()
    init = plan.stage("init")
    config = AutoConfig.for_model(**init.config["architecture"])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == 6_083_055_616
    assert plan.facts["parameters"] == init.config["parameters"] == 6_083_055_616


def job_of(stage: str, files: dict[str, str]) -> dict:
    """The job of a stage: a plain one where nothing is trained, and no GPU is held."""
    (text,) = (
        files[path] for path in (f"{stage}/job.yaml", f"{stage}/pytorchjob.yaml") if path in files
    )
    return yaml.safe_load(text)


def pod_of(job: dict) -> dict:
    spec = job["spec"]
    return (spec["pytorchReplicaSpecs"]["Master"] if job["kind"] == "PyTorchJob" else spec)[
        "template"
    ]["spec"]


def test_every_stage_has_a_folder_with_config_and_job():
    plan = plan_of()
    files = {file.path: file.text for file in render_plan(plan)}
    for stage in plan.stages:
        assert {
            f"{stage.name}/{stage.config_file}",
            f"{stage.name}/kustomization.yaml",
        } <= files.keys()
    jobs = {stage.name: job_of(stage.name, files) for stage in plan.stages}
    assert len({job["metadata"]["name"] for job in jobs.values()}) == len(jobs) == 8
    assert [name for name, job in jobs.items() if job["kind"] == "PyTorchJob"] == list(TRAINED)
    for name in ("data", "init"):
        assert "nvidia.com/gpu" not in str(jobs[name]), "what trains nothing holds no GPU"


def test_each_pod_finds_its_config_where_its_command_says():
    plan = plan_of()
    files = {file.path: file.text for file in render_plan(plan)}
    for stage in plan.stages:
        (container,) = pod_of(job_of(stage.name, files))["containers"]
        mount = next(mount for mount in container["volumeMounts"] if mount["name"] == "config")[
            "mountPath"
        ]
        configs = [word for word in container["command"] if word.startswith("/etc/")]
        assert len(configs) == 2, "the plan for the guard, and the engine's own"
        for config in configs:
            assert Path(config).parent == Path(mount)
            assert f"{stage.name}/{Path(config).name}" in files


def test_the_lengths_share_one_schedule():
    lengths = [configs()[name] for name in TRAINED[:3]]
    for config in lengths:
        assert config["max_steps"] == 100_000 and config["warmup_steps"] == 5_000
        assert config["learning_rate"] == 3e-4 and config["cosine_min_lr_ratio"] == 0.1
        assert config["lr_scheduler"] == "cosine"
        assert (config["micro_batch_size"], config["gradient_accumulation_steps"]) == (8, 4)
        assert (config["weight_decay"], config["adam_beta1"], config["adam_beta2"]) == (
            0.1,
            0.9,
            0.95,
        )
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
    assert (sft["micro_batch_size"], sft["gradient_accumulation_steps"]) == (2, 2)
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


def test_what_is_trained_after_pretraining_is_proven_by_the_stage_that_holds_no_gpu():
    plan = plan_of()
    data = plan.stage("data")
    proofs = data.config["proofs"]
    assert list(proofs) == ["sft", "dpo", "lora"] and data.machines.gpus_per_node == 0
    files = {f"{plan.place_of(data).config_dir}/{file.path}": file.text for file in data.files}
    for name, proof in proofs.items():
        stage = plan.stage(name)
        assert proof["tokenizer"] == plan.stage("init").config["tokenizer"], (
            "the one that the model will have"
        )
        assert files[proof["config"]] == next(
            file.text for file in stage.files if file.path == stage.config_file
        )
        assert stage.config["recipe_runner"]["proof"]["prepared"] == proof["out"]


def test_it_is_proven_again_with_whatever_decides_how_rows_are_trained_and_pretraining_stays():
    def keys(*options):
        return {stage.name: stage.keys for stage in plan_of(*options).stages}

    before = keys()
    for change in (
        "stages.1.train.packing=none",
        "stages.1.model.sequence_len=1024",
        'stages.3.advanced.axolotl={"train_on_inputs": true}',
    ):
        now = keys(change)
        assert now["data"][""] != before["data"][""], change
        assert {name: now[name] for name in TRAINED[:3]} == {
            name: before[name] for name in TRAINED[:3]
        }, change
    for change in (
        "stages.1.train.learning_rate=1e-5",
        "stages.2.train.beta=0.2",
        "stages.3.train.lora_rank=8",
        "stages.1.train.epochs=3",
        "openshift.output_dir=/shared/models/other",
    ):
        assert keys(change)["data"] == before["data"], change


@pytest.mark.parametrize(
    ("options", "fp8", "modes"),
    [
        ((), {"pretrain", "sft"}, {"pretrain": "default", "dpo": "max-autotune"}),
        (
            ("machines.gpu=NVIDIA-H200",),
            {"pretrain", "sft"},
            {"pretrain": "default", "lora": "max-autotune"},
        ),
        (("machines.gpu=NVIDIA-A100-SXM4-80GB",), set(), {"pretrain": "default", "dpo": "default"}),
        (
            ("stages.0.model.precision=bf16", "stages.1.speed.fp8=false"),
            set(),
            {"pretrain": "max-autotune", "sft": "max-autotune", "dpo": "max-autotune"},
        ),
        (UNCOMPILED, {"pretrain", "sft"}, {"pretrain": None, "dpo": None}),
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
    (said,) = problems("stages.0.model.precision=fp8", "machines.gpu=NVIDIA-A100-SXM4-80GB")
    assert "does not support `fp8`. It needs" in said and "precision: bf16" in said


@pytest.mark.parametrize("text", [".nan", "1e400"])
def test_a_share_that_is_no_number_is_said_once(text):
    (said,) = problems(f"stages.0.train.curriculum.0.until={text}")
    assert "until" in said or "not a finite number" in said


def test_several_gpus_share_everything():
    for config in configs().values():
        assert (
            config["fsdp_version"] == 2 and config["fsdp_config"]["reshard_after_forward"] is True
        )
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
        ("distribution=zero3", "stages.0.model.precision=bf16"),
        (
            "stages.0.train.optimizer=adamw_bnb_8bit",
            "stages.0.speed.fused_kernels=false",
            *UNCOMPILED,
        ),
        (
            "stages.3.train.lora_dropout=0",
            "stages.1.train.packing=none",
            "stages.2.train.objective=ipo",
        ),
    ],
    ids=" ".join,
)
def test_every_variant_passes_axolotls_own_validation(options):

    recipe, _, _ = load(SEVEN_B, from_options(options))
    for stage in translate(recipe, kubernetes.place(recipe)).stages:
        if stage.engine == "axolotl":
            config = yaml.safe_load(
                next(file.text for file in stage.files if file.path == stage.config_file)
            )
            validated(config, catalog.gpu(recipe.machines.gpu), stage.machines.world_size)
            assert unknown_keys(config) == []


def test_zero_is_a_change_of_a_line():
    stage = plan_of("distribution=zero3").stage("sft")
    assert "deepspeed.json" in {file.path for file in stage.files}
    assert stage.config["deepspeed"] == "/etc/recipe-runner/sft/deepspeed.json"


def test_a_recipe_without_lora_ends_after_dpo(tmp_path):
    (tmp_path / "data").symlink_to(ROOT / "recipes" / "data")
    file = tmp_path / "short.yaml"
    file.write_text(
        re.sub(r"(?ms)^  - name: lora.*?(?=^evaluation:)", "", SEVEN_B.read_text("utf-8")),
        encoding="utf-8",
    )
    recipe, _, _ = load(file)
    assert [stage.name for stage in translate(recipe, kubernetes.place(recipe)).stages][-1] == "dpo"


def test_a_recipe_without_sft_has_no_earlier_rows():
    (said,) = problems("stages.1=")
    assert "Rows can be drawn only from conversations of a stage before" in said
    stages = plan_of("stages.1=", "stages.2.earlier_rows=").stages
    assert "sft" not in [stage.name for stage in stages] and stages[0].config["earlier_rows"] == {}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("stages.0.tokenizer.vocabulary=60000",), "the embedding has 50,304 rows"),
        (("stages.0.model.attention_heads=30",), "cannot be divided by 30 heads"),
        (("stages.0.model.key_value_heads=7",), "cannot be divided by 7 key and value heads"),
        (("stages.0.train.curriculum.2.until=0.9",), "would not be trained"),
        (("stages.0.train.curriculum.1.until=0.4",), "both must rise"),
        (("stages.0.train.curriculum.1.sequence_len=512",), "both must rise"),
        (("stages.0.train.curriculum.2.sequence_len=8192",), "longer than the model's context"),
        (("stages.0.train.min_learning_rate=0.1",), "is above `learning_rate`"),
        (("stages.0.train.warmup_steps=100000",), "leaves nothing"),
        (("stages.0.train.warmup_steps=", "stages.0.train.warmup_ratio=1"), "leaves nothing"),
        (("stages.0.train.warmup_ratio=0.1",), "has both `warmup_ratio` and `warmup_steps`"),
        (("stages.1.model.sequence_len=8192",), "reads at most 4,096 tokens"),
        (("stages.0.data.path=data/seven-b-text.jsonl",), "only one."),
        (
            ("stages.0.data.hub=", "stages.0.data.packed=nowhere"),
            "Name the tokenizer of these files",
        ),
        (("stages.1.data.question=Q: [instruct]",), "names the column `instruct`"),
        (
            ('stages.1.advanced.axolotl={"sample_pakking": true}',),
            "has no setting `sample_pakking`",
        ),
        (("name=" + "a" * 45,), "the cluster allows 53"),
    ],
    ids=lambda value: value[0][:40] if isinstance(value, tuple) else "",
)
def test_contradictions_are_found(options, words):
    assert any(words in said for said in problems(*options)), problems(*options)
