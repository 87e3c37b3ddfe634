"""A recipe made of an Axolotl file."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import axolotl_examples
from runner import catalog
from runner.check import validate
from runner.check.validate import load
from runner.parts.axolotl_files import checking, commands, importing
from runner.recipe.reading import parse
from runner.tools.problem import Stop
from tests.conftest import ROOT
from tests.parts.axolotl_files.test_checking import EXAMPLES

FILE = """\
base_model: Qwen/Qwen2.5-0.5B-Instruct   # fits a laptop
load_in_4bit: true
adapter: qlora
lora_r: 32     # more than usual
lora_alpha: 16
lora_target_linear: true
colour: blue
datasets:
  - path: mlabonne/FineTome-100k
    type: chat_template
    split: train[:20%]
    field_messages: conversations
    message_property_mappings:
      role: from
      content: value
val_set_size: 0.05
output_dir: ./outputs/out
sequence_len: 2048
sample_packing: true
micro_batch_size: 4
gradient_accumulation_steps: 2
num_epochs: 1
optimizer: adamw_bnb_8bit
lr_scheduler: cosine
learning_rate: 2e-4  # found by trying
bf16: auto
gradient_checkpointing: true
attn_implementation: flash_attention_2
adam_beta2: 0.95
warmup_ratio: 0.1
evals_per_epoch: 4
wandb_project:
"""


def made_of(text: str) -> importing.Import:
    return importing.read(parse("mine.yaml", text))


def without(text: str, *keys: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(keys))


def notes(made: importing.Import) -> str:
    return "\n".join(f"{one.line}: {one.message} {one.hint}".rstrip() for one in made.notes)


def test_a_recipe_keeps_settings_and_comments_and_says_what_changed(golden_message):
    made = made_of(FILE)
    assert not made.refused and not commands.judged(made)
    golden_message(made.text, "the recipe")
    golden_message(notes(made), "what changed")


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("all weights on alpaca rows", without(FILE.replace("chat_template", "alpaca"), "adapter", "lora_", "load_in", "    f", "    m", "      ")),
        ("preferences", without(FILE, "sample_packing", "    f", "    m", "      ") + "rl: ipo\nrl_beta: 0.2\n"),
        ("text of several sets", without(FILE, "datasets", "  -", "    ", "      ", "val_set") + "datasets:\n  - {path: a.txt, type: completion}\n  - {path: b/c, type: completion}\n"),
        ("Liger and other plug-ins", FILE + "plugins: [axolotl.integrations.liger.LigerPlugin]\nliger_rope: true\nliger_layer_norm: true\nliger_fused_linear_cross_entropy: true\n"),
        ("shared by ZeRO", FILE + "deepspeed: deepspeed_configs/zero2.json\nspecial_tokens: {pad_token: x, eos_token: y}\nearly_stopping_patience: 2\neval_steps: 20\nsave_steps: 20\n"),
        ("labels", without(FILE.replace("chat_template", "chatml.intel"), "sample_packing", "    f", "    m", "      ") + "rl: kto\nremove_unused_columns: false\nkto_desirable_weight: 0.5\n"),
        ("text that is streamed", without(FILE, "datasets", "  -", "    ", "      ", "val_set", "adapter", "lora_", "load_in") + "max_steps: 20\npretraining_dataset:\n  - {path: b/c, name: en, type: pretrain, text_column: words}\n"),
        ("the same data twice", FILE.replace("val_set_size", "  - {path: a/b, type: alpaca}\n  - {path: a/b, type: alpaca}\nval_set_size") + "save_steps: 50\neval_steps: 20\n"),
    ],
)  # fmt: skip
def test_each_kind_of_file_becomes_its_recipe(case, text, golden_message):
    made = made_of(text.replace("evals_per_epoch: 4\n", "") if "eval_steps" in text else text)
    assert not made.refused, made.refused
    golden_message(f"{made.text}\n{notes(made)}", case)


def test_a_switch_in_place_of_a_number_becomes_the_number_that_axolotl_reads():
    made = made_of(
        FILE
        + "relora: true\njagged_restart_steps: 20\njagged_restart_warmup_steps: true\nlora_on_cpu: false\n"
    )
    own = {path[-1]: value for path, value in made.values.items() if path[0] == "advanced"}
    assert (
        own["jagged_restart_warmup_steps"] == 1
        and own["lora_on_cpu"] is False
        and own["relora"] is True
    )
    assert type(own["jagged_restart_warmup_steps"]) is int


def test_numbers_with_marks_between_their_digits_are_read_as_axolotl_does():
    made = made_of(
        FILE.replace("sequence_len: ", "sequence_len: 1_0")
        + "min_sample_len: 1_000\nwandb_name: 1_0a\n"
    )
    assert (
        made.values["model", "sequence_len"] == 102048
        and made.values["advanced", "axolotl", "min_sample_len"] == 1000
    )


def test_gpus_that_share_rows_are_as_many_as_the_file_needs(golden_message):
    one_row = FILE.replace("micro_batch_size: 4", "micro_batch_size: 1")
    made = made_of(one_row + "context_parallel_size: 2\n")
    assert (
        made.values["sharding", "context_parallel_size"] == 2
        and made.values["machines", "gpus_per_node"] == 2
    )
    assert ("distribution",) not in made.values and not made.refused
    many = (
        one_row.replace("bnb_8bit", "torch_8bit")
        + "context_parallel_size: 2\ndp_shard_size: 4\ndp_replicate_size: 2\nfsdp_version: 2\nfsdp_config: {offload_params: false}\n"
    )
    made = made_of(many)
    assert made.values["machines", "gpus_per_node"] == 16
    golden_message(made.text)


def test_single_files_of_a_set_on_the_hub_are_kept(golden_message):
    some = FILE.replace("    type:", "    data_files: [a/1.jsonl, b.jsonl]\n    type:", 1)
    made = made_of(some)
    assert not made.refused and made.values["data", "files"] == ["a/1.jsonl", "b.jsonl"]
    local = some.replace("path: ", "path: json #", 1)
    (refused,) = made_of(local).refused
    golden_message(f"{refused.message} {refused.hint}")


def test_chatml_needs_its_tokens():
    """A model of another template learns it if the file adds the tokens."""
    other = (
        FILE.replace("Qwen/Qwen2.5-0.5B-Instruct", "mistralai/Mistral-7B-Instruct-v0.3")
        + "chat_template: chatml\n"
    )
    assert commands.judged(made_of(other))
    added = "special_tokens: {bos_token: <|im_start|>, eos_token: <|im_end|>}\nlora_modules_to_save: [embed_tokens, lm_head]\n"
    assert not commands.judged(made_of(other + added))


def test_a_line_that_axolotl_drops_is_left_out_however_it_is_written():
    made = made_of(FILE + '"colur": green\n')
    assert ("advanced", "axolotl", "colur") not in made.values and not commands.judged(made)
    assert [note.line for note in made.notes if "drops it" in note.message] == [7, 33]


REFUSED = """\
base_model: Qwen/Qwen2.5-0.5B-Instruct
rl: grpo
optimizer: galore_adamw
attn_implementation: xformers
processor_type: AutoProcessor
adapter: lora
lora_r: 8
lora_alpha: 8
lora_target_modules: model.layers.[0-3].q_proj
val_set_size: 100
datasets:
  - path: a/b
    type: jeopardy
  - path: c/d
    type: chat_template
    field_messages: talk
    drop_system_message: true
  - path: e/f
    type: completion
    data_files: [x.json]
output_dir: o
learning_rate: much
micro_batch_size: 1
gradient_accumulation_steps: 1
deepspeed: mine.json
"""


def test_what_no_recipe_can_say_is_refused_by_name(golden_message):
    made = made_of(REFUSED)
    golden_message(
        "\n".join(f"{one.line}: {one.message} {one.hint}".rstrip() for one in made.refused)
    )


@pytest.mark.parametrize(
    ("lines", "parts"),
    [
        (
            "deepspeed: deepspeed_configs/zero3_bf16_cpuoffload_all.json\n",
            {"optimizer": "cpu", "weights": "cpu"},
        ),
        ("deepspeed: deepspeed_configs/zero3_bf16_cpuoffload_params.json\n", {"weights": "cpu"}),
        (
            "fsdp_version: 2\nfsdp_config: {offload_params: true}\n",
            {"optimizer": "cpu", "weights": "cpu"},
        ),
        ("deepspeed: deepspeed_configs/zero3_bf16.json\n", {}),
    ],
)
def test_offloading_is_imported(lines, parts):
    made = made_of(FILE.replace("adamw_bnb_8bit", "adamw_torch_fused") + lines)
    found = {
        path[1].removeprefix("offload_"): value
        for path, value in made.values.items()
        if path[0] == "sharding"
    }
    assert found == parts
    assert not any("ZeRO-3" in note.message for note in made.notes)
    assert commands.judged(made) == []


@pytest.mark.parametrize(
    ("lines", "without_", "said"),
    [
        (
            "lora_target_parameters: [mlp.experts.gate_up_proj]\nlora_dropout: 0\n",
            ("lora_target_linear",),
            {
                ("train", "lora_layers"): [],
                ("advanced", "axolotl", "lora_target_parameters"): ["mlp.experts.gate_up_proj"],
            },
        ),
        (
            "float16: true\nfp16: false\nbf16: false\n",
            ("bf16", "adapter", "lora_", "load_in"),
            {("model", "precision"): "fp32", ("advanced", "axolotl", "float16"): True},
        ),
        (
            "adapter: lora\nload_in_8bit: true\nlora_target_modules: [q_proj]\nquantize_moe_experts: true\n"
            "fsdp_version: 2\nfsdp_config: {offload_params: false}\n",
            ("adapter", "load_in", "lora_target_linear"),
            {
                ("train", "eight_bit_base"): True,
                ("advanced", "axolotl", "quantize_moe_experts"): True,
            },
        ),
        (
            "deepspeed: deepspeed_configs/zero3_bf16_cpuoffload_all.json\n",
            (),
            {("train", "optimizer"): "adamw_bnb_8bit", ("sharding", "offload_optimizer"): "cpu"},
        ),
    ],
    ids=[
        "experts alone",
        "half precision without autocast",
        "8 bits under FSDP",
        "8 bits beside the GPU",
    ],
)
def test_what_few_files_ask_for_comes_back_the_same(lines, without_, said):
    text = (
        without(
            FILE.replace("adamw_bnb_8bit", "adamw_torch_fused") if "fsdp" in lines else FILE,
            "colour",
            *without_,
        )
        + lines
    )
    made = made_of(text)
    assert not made.refused and commands.judged(made) == []
    assert {path: made.values.get(path) for path in said} == said
    assert axolotl_examples.compared(text, made) == []


@pytest.mark.parametrize(
    ("optimizer", "more", "way"),
    [
        ("paged_adamw_8bit", "", "zero3"),
        ("adamw_torch_8bit", "", "fsdp"),
        # ZeRO-3 splits no weights in 8 bits, and nothing splits both.
        ("paged_adamw_8bit", "adapter: lora\nload_in_8bit: true\n", "fsdp"),
    ],
)
def test_fsdp_becomes_zero_where_fsdp_2_lacks_the_optimizer(optimizer, more, way):
    text = without(
        FILE.replace("adamw_bnb_8bit", optimizer),
        "colour",
        *(("adapter", "load_in") if more else ()),
    )
    made = made_of(
        f"{text}{more}fsdp: [full_shard]\nfsdp_config: {{state_dict_type: FULL_STATE_DICT}}\n"
    )
    assert made.values["distribution",] == way
    assert any("ZeRO-3" in note.message for note in made.notes) == (way == "zero3")
    assert bool(commands.judged(made)) == bool(more)


def test_a_deepspeed_file_of_ones_own_is_named():
    (note,) = [
        note
        for note in made_of(FILE + "deepspeed: mine/zero3.json\n").notes
        if "ZeRO-3" in note.message
    ]
    assert "leaves out" in note.message and note.source == "deepspeed: mine/zero3.json"


def test_the_usual_lines_about_the_tokenizer_are_imported():
    assert (
        commands.judged(
            made_of(FILE + "model_type: AutoModelForCausalLM\ntokenizer_type: AutoTokenizer\n")
        )
        == []
    )


def test_rows_that_would_see_each_other_are_not_packed():
    made = made_of(FILE.replace("Qwen/Qwen2.5-0.5B-Instruct", "ibm-granite/granite-4.0-h-micro"))
    assert made.values["train", "packing"] == "none"
    assert "sample_packing" in FILE and "The recipe pads rows instead." in notes(made)


def test_a_line_that_freezes_the_parts_for_images_is_what_recipes_do_anyway():
    """Beside an adapter, it would freeze the adapter: PEFT's names begin otherwise."""
    text = FILE.replace("Qwen/Qwen2.5-0.5B-Instruct", "google/gemma-3-4b-it")
    text = text.replace("lora_target_linear: true", "lora_target_modules: [q_proj]")
    frozen = "unfrozen_parameters: ['^model.language_model.*', '^lm_head.*']\n"
    made = made_of(text + frozen)
    assert not made.refused and "train only the half for text" in notes(made)
    assert ("advanced", "axolotl", "unfrozen_parameters") not in made.values
    other = made_of(text + "unfrozen_parameters: ['^model.language_model.norm']\n")
    assert ("advanced", "axolotl", "unfrozen_parameters") in other.values


def test_a_files_own_kind_is_read_by_itself():
    assert not made_of(FILE.replace("    split:", "    ds_type: json\n    split:")).refused


def test_a_learning_rate_is_never_made_up():
    (problem,) = made_of(FILE.replace("learning_rate: 2e-4", "# none")).refused
    assert problem.message == "Axolotl needs a line `learning_rate`."
    (problem,) = commands.judged(made_of(FILE.replace("learning_rate: 2e-4", "learning_rate: 0")))
    assert problem.source.startswith("learning_rate: 0")


def test_a_problem_of_the_recipe_is_at_the_line_of_the_file():
    text = FILE + "load_in_8bit: true\n"
    with pytest.raises(Stop):  # Axolotl itself
        made_of(text)
    (problem,) = commands.judged(
        made_of(FILE + "reward_model: false\nlora_on_cpu: true\nfp8: true\n")
    )
    assert problem.source == "fp8: true"
    with pytest.raises(Stop) as stop:
        made_of("scenario: lora\n")
    assert "no line `base_model`" in str(stop.value)


def test_the_command_writes_the_recipe_or_nothing(tmp_path, recipe_command, golden_message):
    (tmp_path / "mine.yml").write_text(FILE, "utf-8")
    done = recipe_command("import", "mine.yml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    golden_message(done.stdout + done.stderr, "written")
    done = recipe_command(
        "import", "mine.yml", "-o", "own.yaml", "--set", "machines.gpu=NVIDIA-L40S", cwd=tmp_path
    )
    assert done.returncode == 0 and "names no GPU" not in done.stdout
    assert (tmp_path / "lora.schema.json").is_file()
    recipe, _, _ = load(tmp_path / "mine.yaml")
    assert recipe.train.lora_rank == 32
    done = recipe_command("import", "mine.yml", cwd=tmp_path)
    assert done.returncode == 1
    golden_message(done.stderr, "a second time")
    (tmp_path / "bad.yml").write_text(FILE.replace("adamw_bnb_8bit", "galore_adamw"), "utf-8")
    done = recipe_command("import", "bad.yml", cwd=tmp_path)
    assert done.returncode == 1 and not (tmp_path / "bad.yaml").exists()
    golden_message(done.stderr, "a line that no recipe has")
    done = recipe_command("import", "bad.yml", "--without", "optimizer", cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "bad.yaml").exists()
    done = recipe_command("import", "bad.yml", "--without", "colours", cwd=tmp_path)
    assert done.returncode == 2
    golden_message(done.stderr, "without a line that is not there")
    (tmp_path / "code.yml").write_text(FILE + "trust_remote_code: true\n", "utf-8")
    done = recipe_command("import", "code.yml", cwd=tmp_path)
    assert done.returncode == 1 and not (tmp_path / "code.yaml").exists()
    golden_message(done.stderr, "code of a model without a commit")
    done = recipe_command("import", "code.yml", "--set", f"model.revision={'0' * 40}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert load(tmp_path / "code.yaml")[0].model_revision == "0" * 40
    (tmp_path / "other.yml").write_text(
        FILE.replace("Qwen/Qwen2.5-0.5B-Instruct", "somebody/model"), "utf-8"
    )
    done = recipe_command("import", "other.yml", cwd=tmp_path)
    golden_message(done.stderr, "of a model that is not in the catalog")


def test_commands_that_look_read_the_file_as_a_recipe(tmp_path, recipe_command, golden_message):
    (tmp_path / "mine.yml").write_text(FILE, "utf-8")
    assert recipe_command("import", "mine.yml", cwd=tmp_path).returncode == 0
    plans = [
        json.loads(recipe_command("plan", file, "--format", "json", cwd=tmp_path).stdout)
        for file in ("mine.yml", "mine.yaml")
    ]
    assert plans[0]["stages"] == plans[1]["stages"]
    done = recipe_command("plan", "mine.yml", cwd=tmp_path)
    assert done.returncode == 0
    golden_message(done.stderr.partition("\n\n")[0], "plan")
    done = recipe_command("diff", "mine.yml", "mine.yaml", cwd=tmp_path)
    assert done.returncode == 0 and "No setting differs" in done.stdout + done.stderr
    done = recipe_command("explain", "train.lora_rank", "mine.yml", cwd=tmp_path)
    assert done.returncode == 0 and "In mine.yml it is 32 (line 4)." in done.stdout


PROBES: tuple[Any, ...] = (
    "auto",
    -1,
    0,
    0.5,
    True,
    None,
    [],
    ["x"],
    {},
    {"a": 1},
    10**9,
    "1_000",
    [{}],
    [{"path": 1, "type": {}}],
)


def test_nothing_that_a_file_holds_ends_in_a_traceback():
    draw = random.Random(7)
    keys, of_sets = (
        [*catalog.axolotl_settings()["properties"]],
        ["path", "type", "roles", "split", "data_files", "field_messages"],
    )
    ends = {True: 0, False: 0}
    for _ in range(40):
        data = yaml.safe_load(FILE)
        for _ in range(draw.choice((1, 2, 4))):
            home, key = (
                (data["datasets"][0], draw.choice(of_sets))
                if draw.random() < 0.3
                else (data, draw.choice([*keys, *data]))
            )
            home[key] = draw.choice(PROBES)
            if (
                not isinstance(data["datasets"], list)
                or not data["datasets"]
                or not isinstance(data["datasets"][0], dict)
            ):
                break
        document = parse("a.yaml", yaml.safe_dump(data))
        assert checking.problems(document) is not None or "base_model" not in data
        try:
            made = importing.read(document)
            ends[not made.refused and not commands.judged(made)] += 1
        except Stop:
            ends[False] += 1
    assert ends[False] > 5


NVFP4 = """\
plugins: [axolotl.integrations.kernels.KernelsPlugin]
expert_backend: sonicmoe
nvfp4_merge_aware: true
"""


def test_axolotl_reads_what_is_rendered_as_the_same_configuration():
    for text in (
        FILE,
        FILE
        + "plugins: [axolotl.integrations.liger.LigerPlugin]\nliger_rope: true\nliger_rms_norm: true\n",
        without(FILE.replace("flash_attention_2", "flex_attention"), "bf16"),
        without(FILE.replace("qlora", "lora"), "load_in_4bit") + NVFP4,
        without(FILE, "lora", "load_in", "adapter").replace("bf16: auto", "fp8: true"),
    ):
        text = without(text, "colour")
        assert axolotl_examples.compared(text, made_of(text)) == []
    different = made_of(FILE.replace("lora_r: 32", "lora_r: 31"))
    assert axolotl_examples.compared(without(FILE, "colour"), different) == ["lora_r"]


def test_every_setting_that_is_left_to_the_runner_exists():
    schema = catalog.axolotl_settings()
    known = {*schema["properties"]} | {
        key for settings in schema["plugins"].values() for key in settings
    }
    for group in importing.table()["runner"].values():
        assert {*group["settings"]} <= known
    for name in importing.table()["defaults"]:
        assert any(validate.by_schema.has(scenario, name) for scenario in ("lora", "full"))


def test_the_page_has_the_numbers_of_the_table():
    files = json.loads(axolotl_examples.TABLE.read_text("utf-8"))["files"]
    assert len(files) == 267
    page = (ROOT / "docs" / "axolotl.md").read_text("utf-8")
    assert axolotl_examples.as_page(files) in page


@pytest.mark.long
@pytest.mark.skipif(not EXAMPLES, reason="RECIPE_TEST_AXOLOTL_EXAMPLES names no folder")
def test_the_table_is_what_the_examples_are():
    assert (
        axolotl_examples.examined(Path(EXAMPLES or ""))
        == json.loads(axolotl_examples.TABLE.read_text("utf-8"))["files"]
    )
