"""What `recipe check` says of Axolotl's own files."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner import catalog
from runner.check import batch
from runner.check.validate import examine
from runner.parts.axolotl_files import checking
from runner.recipe.reading import parse
from tests.catalog.axolotls_own import unknown_keys, validated

# A folder with Axolotl's examples, from the source package of the pinned version.
EXAMPLES = os.environ.get("RECIPE_TEST_AXOLOTL_EXAMPLES")

FILE = """\
base_model: Qwen/Qwen2.5-0.5B
adapter: lora
lora_r: 8
lora_alpha: 16
datasets:
  - path: data/questions.jsonl
    type: alpaca
output_dir: out
sequence_len: 512
micro_batch_size: 2
gradient_accumulation_steps: 2
num_epochs: 1
learning_rate: 2e-4
"""


def found(more: str = "", text: str = FILE) -> list[str]:
    """The problems of a file with more lines, each with its severity and its line."""
    problems = checking.problems(parse("a.yaml", text + more))
    assert problems is not None
    return [f"{one.severity} {one.line}: {one.message} {one.hint}" for one in problems]


def test_a_file_without_faults_has_no_problems():
    assert found() == []


def test_a_recipe_is_none_of_axolotls_files():
    assert checking.problems(parse("a.yaml", "scenario: lora\nbase_model: x\n")) is None
    assert checking.problems(parse("a.yaml", "hosts: all\n")) is None


def test_settings_that_axolotl_drops_are_named_with_their_line(golden_message):
    golden_message(
        "\n".join(found("lora_rnak: 8\neta_min: 0.1\ncolour: blue\ndebug:\n")), "at the top"
    )
    golden_message(
        "\n".join(found("    fields: text\n", FILE.partition("output_dir")[0])), "of a data set"
    )
    fsdp = "fsdp_config:\n  fsdp_offload_params: true\n  fsdp_limit_all_gathers: true\n  offload: true\n"
    golden_message("\n".join(found(fsdp)), "of a section")


def test_plug_ins_bring_their_settings(golden_message):
    loaded = "plugins:\n  - axolotl.integrations.liger.LigerPlugin\n"
    assert found(f"{loaded}liger_rope: true\n") == []
    # Its class is in a module below, too.
    assert found(f"{loaded.replace('LigerPlugin', 'plugin.LigerPlugin')}liger_rope: true\n") == []
    golden_message("\n".join(found("liger_rope: true\n")), "of one that is not loaded")
    # The settings of other people's plug-ins are unknown.
    assert found("plugins:\n  - theirs.Plugin\ncolour: blue\n") == []
    golden_message("\n".join(found(f"{loaded}liger_rope: 3.5\n")), "of a wrong kind")


def test_wrong_kinds_and_bounds_are_named(golden_message):
    lines = "warmup_steps: 0.1\nlogging_steps: -1\ntokens:\n  bos_token: a\nchat_template: lama3\nload_in_4bit: maybe\n"
    golden_message("\n".join(found(lines)))
    golden_message(
        "\n".join(
            found(text=FILE.replace("- path: data/questions.jsonl\n    type: alpaca", "- alpaca"))
        ),
        "data",
    )


def test_values_are_read_as_axolotl_reads_them():
    """By PyYAML and pydantic: words for true, digits with `_`, numbers in quotes."""
    lines = (
        'tf32: yes\nsave_steps: "20"\nmin_sample_len: 1_000\njagged_restart_anneal_steps: false\n'
    )
    assert found(lines) == []
    assert len(found('tf32: "yess"\n')) == 1


@pytest.mark.parametrize("row", checking.table()["refused"], ids=lambda row: " ".join(row["when"]))
def test_each_contradiction_is_found_at_its_line(row):
    data = built(row)
    text = yaml.safe_dump(data, sort_keys=False)
    problem = next(
        one for one in checking.contradictions(parse("a.yaml", text)) if one.message == row["says"]
    )
    key = re.split("[=>~?]", row["when"][0])[0].split(".")[-1]
    assert problem.source.strip().startswith(key) and problem.hint == row["do"]


# Values of settings that are no switches.
VALUES: dict[str, Any] = {
    "base_model": "Qwen/Qwen2.5-0.5B",
    **dict.fromkeys(
        (
            "warmup_steps",
            "save_steps",
            "eval_steps",
            "max_steps",
            "batch_size",
            "gradient_accumulation_steps",
        ),
        10,
    ),
    **dict.fromkeys(
        ("saves_per_epoch", "evals_per_epoch", "early_stopping_patience", "eval_table_size"), 2
    ),
    **dict.fromkeys(("val_set_size", "warmup_ratio", "lora_dropout", "rpo_alpha"), 0.1),
    **{
        key: [{"path": "x", "type": "completion"}]
        for key in ("test_datasets", "pretraining_dataset")
    },
    **dict.fromkeys(("save_strategy", "eval_strategy"), "epoch"),
    "rl": "dpo",
    "attn_implementation": "flash",
    "fp8_config": {"recipe": "rowwise"},
    "unfrozen_parameters": ["x"],
    "special_tokens": {"pad_token": "x"},
    "tokens": ["x"],
    "chat_template": "chatml",
    "adapter": "lora",
    "model_quantization_config": "Mxfp4Config",
    "lr_groups": [{"name": "x", "modules": ["x"], "lr": 0.1}],
    "loraplus_lr_ratio": 16,
    "peft_layers_to_transform": [1],
    "peft_layers_pattern": ["x"],
    "lora_target_parameters": ["x"],
    "rope_scaling": {"type": "linear"},
    "dpo_loss_type": ["sigmoid"],
    "deepspeed": "x.json",
    "fsdp": ["full_shard"],
    "fsdp_config": {"offload_params": True},
    "max_packed_sequence_len": 512,
    "max_memory": {0: "1GB"},
    "gpu_memory_limit": "1GB",
    "qat": {"weight_dtype": "int4"},
    "torch_compile_options": {"shape_padding": True},
    "revision_of_model": "main",
    "gemma4_hybrid_attn_impl": True,
}
PATTERNS = {".*falcon.*": "x/falcon-7b", ".*mpt.*": "x/mpt-7b"}


def built(row: dict[str, Any]) -> dict[str, Any]:
    """A file for which a row of contradictions.toml is true, and which has nothing else against
    it."""
    data = {
        "base_model": "x/y",
        "datasets": [{"path": "x", "type": "alpaca"}],
        "output_dir": "o",
        "learning_rate": 0.1,
    }
    data |= {"micro_batch_size": 1, "gradient_accumulation_steps": 1}
    # What another rule needs beside the row's own lines.
    if {"load_in_4bit", "load_in_8bit"} & {*row["when"]} and "adapter" not in row.get("unless", ()):
        data["adapter"] = "lora"
    if "quantize_moe_experts" in row["when"]:
        data |= {"adapter": "lora"} | (
            {"load_in_4bit": True} if "lora_target_linear" in row["when"] else {}
        )
    for term in row["when"]:
        name, sign, asked = (*re.split("([=>~?])", term, maxsplit=1), "", "")[:3]
        value: Any = yaml.safe_load(asked.split("|")[0]) if sign == "=" else VALUES.get(name, True)
        value = int(asked) + 1 if sign == ">" else PATTERNS[asked] if sign == "~" else value
        home, _, inner = name.rpartition(".")
        if home:
            data.setdefault(home, {})[inner] = value
        else:
            data[name] = value
    for term in row.get("unless", ()):
        name = re.split("[=>~?]", term)[0]
        if name not in {re.split("[=>~?]", one)[0] for one in row["when"]}:
            data.pop(name, None)
    plugins = catalog.axolotl_settings()["plugins"]
    loads = [name for name, settings in plugins.items() if {*settings} & {*data}]
    return data | ({"plugins": loads} if loads else {})


@pytest.mark.long
@pytest.mark.parametrize("row", checking.table()["refused"], ids=lambda row: " ".join(row["when"]))
def test_axolotl_refuses_each_contradiction(row):
    gpu = catalog.gpu("NVIDIA-H100-80GB-HBM3")
    assert gpu
    with pytest.raises(Exception) as refused:
        validated(built(row), gpu, 1)
    assert "ring_flash_attn" not in str(refused.value)


def test_check_reads_the_file_as_it_is(tmp_path, recipe_command, golden_message):
    (tmp_path / "mine.yaml").write_text(FILE, "utf-8")
    done = recipe_command("check", "mine.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    golden_message(done.stdout + done.stderr, "without faults")
    (tmp_path / "other.yml").write_text(
        FILE + "lora_rank: 8\nload_in_4bit: true\nqat: {weight_dtype: int4}\n", "utf-8"
    )
    (tmp_path / "values.yaml").write_text("replicas: 1\n", "utf-8")
    done = recipe_command("check", ".", cwd=tmp_path)
    assert done.returncode == 1
    golden_message(done.stdout + done.stderr, "of a folder")


@pytest.mark.skipif(not EXAMPLES, reason="RECIPE_TEST_AXOLOTL_EXAMPLES names no folder")
def test_no_example_of_axolotl_has_a_false_alarm():
    """Each problem is one that Axolotl has with the file, and each file that it refuses has one."""
    from axolotl.integrations.base import PluginManager

    gpu, judged, wrong = catalog.gpu("NVIDIA-H100-80GB-HBM3"), 0, []
    assert gpu
    for file in sorted(
        path for path in Path(EXAMPLES or "").rglob("*.y*ml") if batch.is_meant(path)
    ):
        data = yaml.safe_load(file.read_text("utf-8"))
        judged += 1
        PluginManager._instance = None  # those of the file before it judge too
        try:
            validated(dict(data), gpu, 1)
            refuses = ""
        except Exception as error:
            # What is not installed here is no fault of the file.
            refuses = "" if isinstance(error, ImportError) else str(error)
        errors = [one for one in examine(file) if one.severity == "error"]
        dropped = [
            one for one in errors if "drops it" in one.message or "drops the line" in one.message
        ]
        unknown = {key.rpartition(".")[2] for key in unknown_keys(data)}
        if bool(refuses) != (len(errors) > len(dropped)):
            wrong.append((file.name, refuses, errors))
        wrong += [
            (file.name, one.message)
            for one in dropped
            if not any(f"`{key}`" in one.message for key in unknown)
        ]
    assert judged == 267 and wrong == []
