"""A recipe made of a file of LLaMA-Factory, or of a command of TRL."""

from __future__ import annotations

import ast
import json
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.check.validate import load
from runner.parts.axolotl_files import commands, conversion, importing, others
from runner.recipe.reading import parse
from runner.tools.problem import Stop
from tests.parts.axolotl_files.test_importing import PROBES, notes

FACTORY = """\
model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct   # fits a laptop
trust_remote_code: true
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 16     # more than usual
lora_target: all
dataset: talks,songs
template: qwen
cutoff_len: 1024
max_samples: 100
output_dir: saves/talks
logging_steps: 5
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
val_size: 0.1
deepspeed: examples/deepspeed/ds_z2_config.json
"""
SETS = {
    "talks": {"file_name": "talks.jsonl", "formatting": "sharegpt"},
    "songs": {"hf_hub_url": "somebody/songs", "columns": {"prompt": "verse", "response": "poet"}},
    "plain": {"hf_hub_url": "somebody/texts", "columns": {"prompt": "body"}},
    "alpaca": {"hf_hub_url": "somebody/alpaca", "split": "train"},
    "pairs": {"hf_hub_url": "somebody/pairs", "ranking": True, "columns": {"prompt": "q", "query": "more", "chosen": "good", "rejected": "bad"}},
    "labels": {"hf_hub_url": "somebody/labels", "formatting": "sharegpt", "columns": {"messages": "messages", "kto_tag": "liked"}},
    "pictures": {"hf_hub_url": "somebody/pictures", "formatting": "sharegpt", "columns": {"images": "images"}},
    "abroad": {"ms_hub_url": "somebody/abroad"},
    "roles": {"hf_hub_url": "somebody/roles", "formatting": "sharegpt", "tags": {"user_tag": "Mensch"}},
}  # fmt: skip
COMMAND = """\
#!/bin/sh
# trl dpo is for later
accelerate launch --num_processes 8 \\
  trl sft \\
    --model_name_or_path Qwen/Qwen2.5-0.5B-Instruct \\
    --dataset_name 'trl-lib/Capybara' \\
    --learning_rate=2.0e-4 --use_peft --lora_r 32 \\
    --lora_target_modules q_proj v_proj \\
    --packing --no_gradient_checkpointing \\
    --warmup_steps 0.1 \\
    --output_dir out  # of the day
echo done --seed 7
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/dataset_info.json").write_text(json.dumps(SETS), "utf-8")
    talk = [{"from": "human", "value": "Who are you?"}, {"from": "gpt", "value": "A model."}]
    rows = [
        json.dumps({"conversations": [{**talk[0], "value": f"Who are you, {one}?"}, talk[1]]})
        for one in range(40)
    ]
    (tmp_path / "data/talks.jsonl").write_text("\n".join(rows), "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made_of(text: str) -> importing.Import:
    made = conversion.made_of(parse("mine.yaml", text))
    assert made is not None
    return made


def changed(text: str, **settings: Any) -> str:
    """A file with other settings; None deletes one."""
    data = yaml.safe_load(text) | settings
    return yaml.safe_dump(
        {key: value for key, value in data.items() if value is not None}, sort_keys=False
    )


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("LoRA on two sets", FACTORY),
        ("all weights on plain text", changed(FACTORY, stage="pt", finetuning_type="full", dataset="plain", deepspeed="ds_z3_offload_config.json", pure_bf16=True, lora_rank=None)),
        ("QLoRA with defaults", yaml.safe_dump({"model_name_or_path": "Qwen/Qwen2.5-0.5B-Instruct", "finetuning_type": "lora", "quantization_bit": 4, "dataset": "alpaca", "use_rslora": True, "packing": True, "fp16": True})),
        ("preferences by SimPO", changed(FACTORY, stage="dpo", pref_loss="simpo", dataset="pairs", packing=False, lora_target="q_proj,v_proj", mask_history=True)),
        ("labels", changed(FACTORY, stage="kto", dataset="labels", kto_chosen_weight=0.5, report_to=["swanlab", "wandb"])),
        ("another optimizer and a setting of Axolotl's", changed(FACTORY, optim="adamw_8bit", adam_beta2=0.95, max_steps=20, train_on_prompt=True, deepspeed=None, fsdp="full_shard")),
        ("scores", changed(FACTORY, stage="rm", dataset="pairs", packing=False)),
    ],
)  # fmt: skip
def test_each_kind_of_llama_factorys_files_becomes_its_recipe(case, text, folder, golden_message):
    made = made_of(text)
    assert not made.refused, made.refused
    assert commands.judged(made) == []
    golden_message(f"{made.text}\n{notes(made)}", case)


def test_a_command_of_trl_becomes_its_recipe_at_the_lines_of_the_script(folder, golden_message):
    document = others.command_line("job.sh", COMMAND)
    assert document and document.data["command"] == "sft" and "seed" not in document.data
    made = others.read(document, "trl")
    assert commands.judged(made) == []
    golden_message(f"{made.text}\n{notes(made)}")
    wrong = others.command_line("job.sh", COMMAND.replace("2.0e-4", "-1"))
    (problem,) = commands.judged(others.read(wrong, "trl"))
    assert (problem.line, problem.source.strip()[:18]) == (7, "--learning_rate=-1")


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("a configuration for SFT", "model_name_or_path: Qwen/Qwen2.5-0.5B\ndatasets:\n- {path: a/b, name: en, split: train, fraction: 0.5}\n- {path: ./data/talks.jsonl}\nassistant_only_loss: true\neval_strategy: steps\nattn_implementation: flash_attention_2\npadding_free: true\n"),
        ("a configuration for DPO", "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: a/b\nbeta: 0.2\nloss_type: [ipo]\nuse_peft: true\nload_in_4bit: true\nlora_target_modules: all-linear\n"),
        ("a configuration for KTO", "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: a/b\ndesirable_weight: 0.5\naccelerate_config: zero3\nnum_processes: 4\n"),
        ("plain text", "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: a/b\ndataset_text_field: words\n"),
        ("a reward model", "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: a/b\ncenter_rewards_coefficient: 0.01\nuse_peft: true\n"),
    ],
)  # fmt: skip
def test_each_kind_of_trls_files_becomes_its_recipe(case, text, folder, golden_message):
    made = made_of(text)
    assert not made.refused, made.refused
    assert commands.judged(made) == []
    golden_message(f"{made.text}\n{notes(made)}", case)


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("settings", changed(FACTORY, stage="ppo", finetuning_type="oft", quantization_bit=3, use_badam=True, val_size=100, deepspeed="mine.json")),
        ("data", changed(FACTORY, dataset="pictures,abroad,roles,nobody")),
        ("a loss", changed(FACTORY, stage="dpo", pref_loss="kto_pair", dataset="pairs", pref_ftx=0.1)),
        ("no descriptions", changed(FACTORY, dataset_dir="elsewhere")),
        ("rewards", "model_name_or_path: a/b\nreward_funcs: accuracy_reward\n"),
        ("a loss of TRL's", "model_name_or_path: a/b\nloss_type: [sigmoid, sft]\naccelerate_config: mine.yaml\n"),
    ],
)  # fmt: skip
def test_what_no_recipe_can_say_is_refused_by_name(case, text, folder, golden_message):
    refused = made_of(text).refused
    golden_message(
        "\n".join(f"{one.line}: {one.message} {one.hint}".rstrip() for one in refused), case
    )


def test_losses_in_a_list_are_refused_in_words(folder):
    refused = made_of(changed(FACTORY, stage="dpo", pref_loss=["sigmoid"], dataset="pairs")).refused
    assert "Recipes have no objective `['sigmoid']`." in [one.message for one in refused]


@pytest.mark.parametrize("loss", ["kto", "orpo", "reward"])
def test_a_loss_of_another_command_of_trl_is_none_of_dpo(loss):
    refused = made_of(f"model_name_or_path: a/b\nbeta: 0.2\nloss_type: {loss}\n").refused
    assert f"Recipes have no objective `{loss}`." in [one.message for one in refused]


def test_a_setting_of_another_trainer_is_refused_by_name_if_it_is_on(folder):
    preferences = (
        "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: a/b\nbeta: 0.2\nneat_packing: "
    )
    assert not made_of(f"{preferences}no\n").refused
    wrong = [
        *made_of(f"{preferences}yes\n").refused,
        *made_of(changed(FACTORY, dtype="bfloat16")).refused,
    ]
    named = [("neat_packing", "TRL"), ("dtype", "LLaMA-Factory")]
    assert [one.message for one in wrong] == [
        f"Recipes have no setting for `{key}` of {name}." for key, name in named
    ]


def test_an_empty_technique_is_refused(folder):
    refused = made_of(changed(FACTORY, finetuning_type="", stage="")).refused
    assert {"finetuning_type", "stage"} <= {str(one.source).partition(":")[0] for one in refused}


def test_a_command_that_no_recipe_can_say_and_a_variable_are_refused(golden_message):
    (problem,) = others.read(
        others.command_line("a.sh", COMMAND.replace("trl sft", "trl rloo")), "trl"
    ).refused
    golden_message(f"{problem.line}: {problem.message} {problem.hint}", "another command")
    with pytest.raises(Stop) as stop:
        others.command_line("a.sh", COMMAND.replace("Qwen/Qwen2.5-0.5B-Instruct", '"$MODEL"'))
    golden_message(stop.value, "a variable")
    assert others.command_line("a.sh", "echo nothing\n") is None


@pytest.mark.parametrize(
    ("script", "data"),
    [
        ("pip install trl peft\nuv run --with trl trl sft --a 1\n", {"command": "sft", "a": 1}),
        ("trl sft \\\n--a 1\\\n --b \\\n2 2>&1 | tee log.txt\n", {"command": "sft", "a": 1, "b": 2}),
        ("cd x && python trl/scripts/dpo.py --a=1; trl kto --b 2\n", {"command": "dpo", "a": 1}),
        ("trl kto --a 'x # y' --b \"p; q\" # --c 3\n", {"command": "kto", "a": "x # y", "b": "p; q"}),
        ("accelerate launch --config_file f/deepspeed_zero3.yaml --num_processes 4 --mixed bf16 trl sft --no_a --b x y\n",
         {"command": "sft", "accelerate_config": "f/deepspeed_zero3.yaml", "num_processes": 4, "a": False, "b": ["x", "y"]}),
    ],
)  # fmt: skip
def test_a_script_is_read_as_a_shell_reads_it(script, data):
    document = others.command_line("job.sh", script)
    assert document and document.data == data


@pytest.mark.parametrize(
    ("text", "setting", "value"),
    [
        ("bf16: false\n", "model.precision", "fp32"),
        ("warmup_steps: 0\nwarmup_ratio: 0.1\n", "train.warmup_ratio", 0.1),
        ("warmup_steps: 0.1\n", "train.warmup_ratio", 0.1),
        ("warmup_steps: 10\n", "train.warmup_ratio", None),
        ("deepspeed: /home/liz3/ds_stage2_zero2.json\n", "distribution", "zero2"),
        ("report_to: azure_ml, wandb\n", "train.report_to", "wandb"),
        ("dataloader_pin_memory: yes\n", "advanced.axolotl.dataloader_pin_memory", True),
    ],
)
def test_settings_that_mean_something_together(text, setting, value):
    made = made_of(f"model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: a/b\n{text}")
    assert not made.refused and made.values.get(tuple(setting.split("."))) == value


@pytest.mark.parametrize(
    "one",
    [
        {"hf_hub_url": "a/b", "columns": None, "tags": None},
        {"hf_hub_url": "a/b", "columns": ["prompt"]},
        {
            "hf_hub_url": "a/b",
            "formatting": "sharegpt",
            "tags": {"user_tag": "gpt", "assistant_tag": "human"},
        },
        {"hf_hub_url": "a/b", "split": "train[:10%]"},
    ],
)
def test_descriptions_of_data_sets_as_people_write_them(one, folder):
    (folder / "data/dataset_info.json").write_text(json.dumps({"talks": one}), "utf-8")
    made = made_of(changed(FACTORY, dataset="talks"))
    strange = isinstance(one.get("columns"), list) or "formatting" in one
    assert bool(made.refused) == strange
    assert strange or made.values["data", "split"] == one.get("split", "train[:100]")


def test_the_command_writes_recipes_whose_files_are_named_from_their_folder(
    folder, recipe_command, golden_message
):
    (folder / "sub").mkdir()
    (folder / "sub/mine.yaml").write_text(FACTORY, "utf-8")
    done = recipe_command("check", "sub/mine.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr
    done = recipe_command(
        "import", "sub/mine.yaml", "--set", "machines.gpu=NVIDIA-L40S", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    golden_message(done.stdout + done.stderr, "LLaMA-Factory")
    recipe, _, _ = load(folder / "mine.yaml")
    assert [one.get("path") for one in recipe.data["sets"]] == ["data/talks.jsonl", None]
    (folder / "job.sh").write_text(COMMAND, "utf-8")
    done = recipe_command("import", "job.sh", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert load(folder / "job.yaml")[0].train.lora_rank == 32
    done = recipe_command(
        "import", "job.sh", "--without", "packing", "-o", "other.yaml", cwd=folder
    )
    assert done.returncode == 0 and load(folder / "other.yaml")[0].train.packing == "none"


def test_nothing_that_a_file_holds_ends_in_a_traceback(folder):
    draw, ends = random.Random(7), {True: 0, False: 0}
    files = [FACTORY, "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: a/b\nuse_peft: true\n"]
    keys = [
        key
        for facts in others.table().values()
        for key in (*facts.get("settings", ()), *facts.get("unread", ()))
    ]
    more = [
        "stage",
        "finetuning_type",
        "quantization_bit",
        "dataset",
        "datasets",
        "val_size",
        "report_to",
        "deepspeed",
    ]
    for number in range(120):
        data = yaml.safe_load(files[number % 2])
        for _ in range(draw.choice((1, 2, 4))):
            data[draw.choice([*keys, *more, *data])] = draw.choice(PROBES)
        try:
            made = conversion.made_of(parse("a.yaml", yaml.safe_dump(data)))
            ends[bool(made) and not made.refused and not commands.judged(made)] += 1
        except Stop:
            ends[False] += 1
    assert min(ends.values()) > 5


def defaults(module: str) -> dict[str, Any]:
    """The fields of a module's dataclasses that are written with plain defaults, without importing
    it."""
    found: dict[str, Any] = {}
    origin = (
        Path(find_spec(module.partition(".")[0]).origin)
        .parent.joinpath(*module.split(".")[1:])
        .with_suffix(".py")
    )
    for node in ast.walk(ast.parse(origin.read_text("utf-8"))):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            value: ast.expr | None = node.value
            if isinstance(value, ast.Call):
                value = next((one.value for one in value.keywords if one.arg == "default"), None)
            found[node.target.id] = value.value if isinstance(value, ast.Constant) else ...
    return found


def test_trl_has_the_settings_and_their_defaults():
    known: dict[str, Any] = {}
    for module in ("transformers.training_args", "trl.trainer.base_config", "trl.trainer.kto_config",
                   "trl.trainer.dpo_config", "trl.trainer.model_config", "trl.scripts.utils"):  # fmt: skip
        known |= defaults(module)
    known |= {
        key: value for key, value in defaults("trl.trainer.sft_config").items() if key not in known
    }
    facts = others.table()["trl"]
    launcher = {"num_processes", "accelerate_config"}
    for key, (_, *default) in facts["settings"].items():
        if key in ("simpo_gamma", "warmup_ratio"):  # of trl.experimental; of transformers 4
            continue
        assert key in known or key in launcher, key
        if default and known[key] not in (..., None):
            assert default == [known[key]], key
    assert {*facts["template"], *facts["unread"], "assistant_only_loss"} <= known.keys() | {
        "reward_funcs"
    }
    assert defaults("trl.trainer.sft_config")["learning_rate"] == 2e-5
