"""Translates a recipe's sections into Axolotl's settings (its config reference, 0.19.0). Settings
that Axolotl lacks go to the runner's plugin, under `recipe_runner`."""

import json
import math
from dataclasses import replace
from typing import Any, Literal

from runner import catalog, parts
from runner.data import conversation_formats, tokenizers
from runner.data.conversation_formats import OWN, THINKING, TRAINING, TrainOn
from runner.data.tokenizers import MISTRAL, jinja
from runner.plan import EngineConfig, Evaluation, Place, Stage
from runner.recipe.document import applies
from runner.recipe.recipe import CONVERSATIONS, PROMPTS, Recipe
from runner.scenarios.shared import common, sharding
from runner.tools.problem import Stop, listed
from runner.tools.settings import Settings
from runner.trainer.settings import Demo, ProofSettings, RunOptions

LIGER = "axolotl.integrations.liger.LigerPlugin"
PLUGIN = "runner.trainer.plugin.RecipePlugin"  # the name that images of 0.1 also use
# Liger's kernels, with the ends of Axolotl's names for them.
LIGER_PARTS = {"rope": "rope", "rms_norm": "rms_norm", "glu": "glu_activation"}
FLASH = "flash_attention_2"
CONFIG_FILE = "axolotl.yaml"
# How many questions of validation rows are asked before and after training if the recipe names
# none.
ASKED_OF_ROWS = 5
# Axolotl 0.19.0 pads rows to a multiple of 64 tokens, which suits GPUs. On a processor every token
# takes time, and short rows would take twice as long.
PADDED_ON_PROCESSOR = 8
# Axolotl 0.19.0 reports its use to a server by default, and may hang if that cannot be reached.
UNTRACKED = {"AXOLOTL_DO_NOT_TRACK": "1"}


def model(recipe: Recipe, place: Place) -> EngineConfig:
    chosen = recipe.model
    settings: EngineConfig = {
        "base_model": common.base_model(recipe, place),
        **chosen.for_axolotl,
        "bf16": chosen.precision == "bf16",
        "fp16": chosen.precision == "fp16",
    }
    if recipe.model_revision != "main" and place.model_dir is None:
        settings["revision_of_model"] = recipe.model_revision
    if chosen.gradient_checkpointing:
        settings["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    if chosen.trust_remote_code:
        settings["trust_remote_code"] = True
    # Heads in some layers are too wide for FlashAttention 2, so PyTorch's attention computes these.
    if chosen.attention == FLASH and recipe.facts.family.get("wide_heads"):
        settings["gemma4_hybrid_attn_impl"] = True
    if recipe.model_facts and recipe.model_facts.stored == "mxfp4":
        settings |= common.table("mxfp4")
    return settings


def fused(recipe: Recipe, place: Place) -> EngineConfig:
    """What Liger computes instead of PyTorch: loss, normalisation, rotary positions,
    feed-forward."""
    facts = recipe.model_facts
    loss = recipe.train.get("cross_entropy", "plain")
    if common.shared_by(recipe)[1] > 1:  # Liger's kernels need whole matrices
        facts = None
    if loss == "auto":
        # Logits are micro batch × sequence length × vocabulary numbers, which can be more than all
        # weights.
        if facts and (facts.sees or facts.model_type in catalog.fused_loss_models()):
            loss = "fused"
        else:
            loss = "chunked"
    kernels: dict[str, bool] = {}
    # They are compiled for a GPU, and replace transformers' classes, which a model's own code does
    # not use.
    if (
        facts
        and recipe.train.kernels != "none"
        and place.accelerator
        and not recipe.model.trust_remote_code
    ):
        # Those that liger-kernel 0.8.1 computes as transformers does.
        kernels = dict(catalog.table("fused-kernels").get(facts.model_type, {}))
        if kernels.get("glu"):
            kernels["glu"] = facts.usual_glu
    config: EngineConfig
    if loss == "chunked":
        config = {"chunked_cross_entropy": True}
    else:
        config = {}
    if loss == "fused" or any(kernels.values()):
        config |= {"plugins": [LIGER], "liger_fused_linear_cross_entropy": loss == "fused"}
        config |= {f"liger_{part}": kernels.get(name, False) for name, part in LIGER_PARTS.items()}
    return config


def compile_mode(recipe: Recipe, fp8: bool) -> str | None:
    """The mode of torch.compile, or None. Autotuning pays on Hopper; under FP8 its search gains
    nothing."""
    speed = recipe.settings.get("speed")
    mode = speed and speed.get("compile")
    if mode in (None, "off"):
        return None
    if mode != "auto":
        return str(mode)
    gpu = catalog.gpu(recipe.machines.gpu)
    hopper = gpu is not None and int(gpu.capability) == 9
    if hopper and not fp8:
        return "max-autotune"
    return "default"


def multiplies_in_fp8(recipe: Recipe) -> bool:
    """Whether a recipe of one stage multiplies in 8 bits; a known GPU without them uses bf16."""
    speed = recipe.settings.get("speed")
    if not speed or not speed.get("fp8"):
        return False
    gpu = catalog.gpu(recipe.machines.gpu)
    return gpu is None or gpu.fp8


def faster(recipe: Recipe) -> EngineConfig:
    """The settings for the section `speed` of a recipe of one stage."""
    speed = recipe.settings.get("speed")
    if not speed:
        return {}
    fp8 = multiplies_in_fp8(recipe)
    return {**speed.for_axolotl, **products(recipe, fp8, compile_mode(recipe, fp8))}


def has_persistent_workers(recipe: Recipe) -> bool:
    """Whether data workers stay between epochs and evaluations."""
    speed = recipe.settings.get("speed")
    return bool(speed and speed.get("persistent_workers") and speed.get("data_workers"))


def products(recipe: Recipe, fp8: bool, compile_mode: str | None) -> EngineConfig:
    """How matrices are multiplied: in 8 bits, or compiled. compile_mode: None for not compiled."""
    config: EngineConfig
    if fp8:
        config = {"fp8": True}
    else:
        config = {}
    if fp8 and common.by_fsdp(recipe):
        # Shards are exchanged as 8-bit numbers, half the bytes of bf16.
        config["fp8_enable_fsdp_float8_all_gather"] = True
    return config | (
        {"torch_compile": True, "torch_compile_mode": compile_mode} if compile_mode else {}
    )


def joins_rows(recipe: Recipe, section: Settings, accelerator: bool) -> bool:
    """Whether the rows of a micro batch become one, without padding: FlashAttention separates them
    by their lengths; on a processor a mask does. Compiled stages join no rows, because each joined
    batch has another shape. Models whose classes mix joined rows join none, and ring attention
    keeps apart only packed ones."""
    if section["packing"] != "auto":
        return bool(section["packing"] == "flatten")
    facts = recipe.model_facts
    apart = facts is None or not facts.mixes_rows(recipe.model.attention)
    # PyTorch's attention beside FlashAttention keeps only packed rows apart (Axolotl 0.19.0).
    if facts and accelerator and facts.family.get("wide_heads"):
        apart = False
    able = apart and (recipe.model.attention == FLASH or not accelerator)
    able = able and common.shared_by(recipe)[0] == 1
    compiled = compile_mode(recipe, multiplies_in_fp8(recipe)) is not None
    return able and not compiled and section["micro_batch_size"] > 1


def packing(recipe: Recipe, place: Place) -> EngineConfig:
    """How short rows are handled."""
    if recipe.train.packing == "pack":
        return dict(common.table("packed"))
    # Axolotl accepts it only for FlashAttention; otherwise the runner's plugin sets it.
    joined = place.accelerator and joins_rows(recipe, recipe.train, place.accelerator)
    settings: EngineConfig = {"sample_packing": False, "batch_flattening": joined}
    if not place.accelerator:
        settings["pad_to_multiple_of"] = PADDED_ON_PROCESSOR
    return settings


def flattens(recipe: Recipe, place: Place) -> bool:
    """Whether the runner's plugin joins the rows of a micro batch, because Axolotl does not."""
    if place.accelerator or recipe.train.packing == "pack":
        return False
    return joins_rows(recipe, recipe.train, place.accelerator)


def training(recipe: Recipe, place: Place, validates: bool = True) -> EngineConfig:
    """Optimisation, evaluation and checkpoints. The model with the lowest validation loss or the
    highest reward is kept; without held-out rows the last one."""
    train = recipe.train
    resumed = {}
    rewarded = recipe.rows == PROMPTS
    # An evaluation by features needs whole groups of answers, too.
    if recipe.by_features:
        evaluated = train.generations
    else:
        evaluated = train.micro_batch_size
    best = {
        "metric_for_best_model": "eval_reward" if rewarded else "eval_loss",
        "greater_is_better": rewarded,
    }
    checkpoint_name = recipe.settings.get("resume_from")
    if checkpoint_name:
        if checkpoint_name.startswith("/"):
            checkpoint = checkpoint_name
        else:
            checkpoint = f"{place.checkpoints_dir}/{checkpoint_name}"
        resumed = {"resume_from_checkpoint": checkpoint, "auto_resume_from_checkpoints": False}
    return {
        **train.for_axolotl,
        **({"eval_batch_size": train.get("eval_batch_size") or evaluated} if validates else {}),
        "learning_rate": common.learning_rate(recipe),
        "optimizer": sharding.optimizer(recipe, train.optimizer),
        **common.evaluated(train, validates),
        "load_best_model_at_end": validates,
        **(best if validates else {}),
        "auto_resume_from_checkpoints": True,
        "output_dir": place.checkpoints_dir,
        **reporting(train.report_to, recipe.name),
        **resumed,
    }


def reporting(tool: str, name: str) -> EngineConfig:
    """The tool that shows curves. W&B and MLflow need a project name."""
    project = {"wandb": "wandb_project", "mlflow": "mlflow_experiment_name"}.get(tool)
    if tool != "none":
        return {f"use_{tool}": True, **({project: name} if project else {})}
    return {}


def special_tokens(recipe: Recipe) -> catalog.ChatTemplate | None:
    """The special tokens of each message: the recipe's, else the model's own. None if only the
    tokenizer knows them."""
    requested = recipe.data.get("chat_template")
    if requested in ("chatml", None):
        name = requested
    else:
        name = recipe.facts.chat_template
    if requested == MISTRAL:
        return replace(catalog.chat_template("mistral"), axolotl=MISTRAL)
    if name:
        return catalog.chat_template(name)
    return None


def datasets(
    folder: str,
    rows: str,
    train_on: TrainOn = "assistant",
    validates: bool = True,
    thoughts: str | None = None,
) -> EngineConfig:
    """The prepared rows in a folder. thoughts: the field of a turn with these. Text and prompts are
    used unchanged. In conversations, the trained turns, each with its end-of-turn token, are the
    assistant's, only the last of these (which prepared rows mark), or all."""
    reads: EngineConfig = dict(
        common.table("reads")[rows if rows in common.table("reads") else CONVERSATIONS]
    )
    if reads["type"] == "chat_template":
        roles = sorted(set(conversation_formats.ROLES.values()))
        if train_on == "all":
            reads["roles_to_train"] = roles
        else:
            reads["roles_to_train"] = ["assistant"]
        reads |= {"message_field_training": TRAINING} if train_on == "last" else {}
        reads["train_on_eos"] = "turn"
        reads |= (
            {"field_thinking": thoughts, "template_thinking_key": thoughts}
            if thoughts == THINKING
            else {}
        )
    train, validation = (
        {"path": f"{folder}/{split}.parquet", "ds_type": "parquet", "split": "train", **reads}
        for split in ("train", "validation")
    )
    return {
        "datasets": [train],
        **({"test_datasets": [validation]} if validates else {}),
        "val_set_size": 0,
    }


def own_answers(recipe: Recipe) -> EngineConfig:
    """How a model learns from its own answers: TRL's settings; and the rewards of the part for
    them, unless features are compared."""
    train = recipe.train
    rows = common.effective_batch_size(recipe)
    rewarded: EngineConfig
    if recipe.by_features:
        rewarded = {}
    else:
        parts.require("rewards")
        from runner.parts.rewards import rules

        rewarded = rules.rewarded(recipe)
    trl = {
        "num_generations": train.generations,
        # Rows of all processes together; without it, Axolotl 0.19.0 would compare the rows of one.
        **({"generation_batch_size": rows} if rewarded else {}),
        "max_completion_length": train.answer_tokens,
        "temperature": train.temperature,
        **rewarded.get("trl", {}),
    }
    fast: EngineConfig
    if rewarded:
        fast = {"recipe_runner": rewarded["recipe_runner"]}
    else:
        fast = {}
    if train.generator != "transformers":
        trl |= common.table(train.generator)
    if train.generator == "vllm":
        fast["vllm"] = {"gpu_memory_utilization": train.vllm_memory, "tensor_parallel_size": 1}
    address = train.get("vllm_server")
    if address:
        host, _, port = address.rpartition(":")
        trl |= {"vllm_server_host": host, "vllm_server_port": int(port)}
    if recipe.by_features:
        ebft_section = recipe.settings.get("ebft")
        fast["ebft"] = {"mode": "structured", **(ebft_section.plain() if ebft_section else {})}
    return {"rl": train.objective, "trl": trl, **fast}


def template(recipe: Recipe) -> EngineConfig:
    """The chat template of conversations and preferences, and its tokens."""
    facts = recipe.facts
    chat_template = special_tokens(recipe)
    if recipe.data.chat_template == MISTRAL:
        return {"tokenizer_use_mistral_common": True}
    tokens: EngineConfig = {
        "chat_template": chat_template.axolotl
        if chat_template and recipe.data.chat_template != OWN
        else OWN
    }
    if chat_template and tokens["chat_template"] == "jinja":
        tokens["chat_template_jinja"] = jinja(chat_template)
    if chat_template and chat_template.end != facts.eos_token:
        # Axolotl looks for end-of-text at the end of a turn; with this one untrained, answers would
        # not end.
        tokens["eot_tokens"] = [chat_template.end]
    if facts.pad_token:
        tokens["special_tokens"] = {"pad_token": facts.pad_token}
    if recipe.rows == PROMPTS and chat_template and chat_template.end != facts.eos_token:
        # TRL 1.9 ends an answer only at this token, and would write more after the end of the turn.
        tokens["special_tokens"] = {
            **tokens.get("special_tokens", {}),
            "eos_token": chat_template.end,
        }
    return tokens


def plugin(recipe: Recipe, place: Place, config: EngineConfig, options: RunOptions) -> EngineConfig:
    """The settings of the runner's plugin for a recipe of one stage. config: the other settings;
    options: of the run, as far as they follow from what is trained."""
    options = {**options}
    # DeepSpeed stores fp32 weights itself, and fp32 needs no change.
    raises = (
        recipe.model.precision != "fp32"
        and not common.by_zero(recipe)
        and "adapter" not in recipe.train
    )
    if raises and master_weights(recipe, recipe.model.precision) == "fp32":
        options["master_weights"] = "fp32"
    if not recipe.scores:
        options["demo"] = demo(recipe, place)
    if place.prepared:
        options["proof"] = ProofSettings(prepared=common.proof_dir(place))
    return {
        "plugins": [*config.get("plugins", ()), PLUGIN],
        "recipe_runner": common.run_settings(recipe, place, **options),
    }


def demo(recipe: Recipe, place: Place) -> Demo:
    """The questions before and after training: the recipe's, else some of the validation rows."""
    tokens = special_tokens(recipe)
    return Demo(
        base_model=common.base_model(recipe, place),
        revision="main" if place.model_dir else recipe.model_revision,
        system_prompt=recipe.data.get("system_prompt"),
        chat="chat_template" in recipe.data,
        questions=[question for _, question in recipe.demo_questions],
        of_rows=None if recipe.demo_questions else ASKED_OF_ROWS,
        categories={question: category for category, question in recipe.demo_questions if category},
        max_new_tokens=recipe.demo.max_new_tokens,
        # Only questions with answers have it.
        graded_questions=recipe.demo.get("graded_questions") or 0,
        turn_end=tokens.end if tokens else None,
        trust_remote_code=recipe.model.trust_remote_code,
    )


def stage(
    recipe: Recipe,
    place: Place,
    config: EngineConfig,
    evaluation: Evaluation,
    has_gates: bool = True,
    **fields: Any,
) -> Stage:
    """A stage that Axolotl trains. evaluation, has_gates: as in `common.measured`; fields: further
    fields of the Stage."""
    machines = common.machines(recipe, place)
    gates, evaluation = common.measured(recipe, evaluation, has_gates)
    return Stage(
        engine="axolotl",
        config=config,
        config_file=CONFIG_FILE,
        command=("axolotl", "train", f"{place.config_dir}/{CONFIG_FILE}", "--launcher", "torchrun"),
        env={
            **common.common_environment(recipe, place),
            **UNTRACKED,
            # Axolotl would start one process for each core of the machine, whatever the pod's
            # share. 0: none, because a rehearsal's few rows are tokenised before another process
            # has started.
            tokenizers.TOKENISING_PROCESSES: str(machines.cpus) if place.accelerator else "0",
            "TOKENIZERS_PARALLELISM": "false",
        },
        machines=machines,
        shm_gib=common.shared_memory_gib(machines),
        gates=gates,
        evaluation=evaluation,
        **fields,
    )


def master_weights(recipe: Recipe, precision: str) -> Literal["fp32", "bf16"]:
    """The format of stored weights. precision: of the computation; torch unscales fp16's gradients
    only in fp32."""
    if precision in ("bf16", "fp8") and recipe.model.master_weights == "bf16":
        return "bf16"
    return "fp32"


def with_advanced(
    recipe: Recipe,
    config: EngineConfig,
    sections: tuple[str, ...] = ("model", "train", "data"),
) -> EngineConfig:
    """The recipe's own Axolotl settings (`advanced.axolotl`) on top. sections: those that `config`
    follows from. Raises Stop for one that contradicts them, or that Axolotl refuses here."""
    extra = recipe.advanced.plain().get("axolotl") or {}
    if not extra:
        return config
    config, extra = _with_additions(config, extra)
    wrong = _of_other_plugins(config, extra)
    for key, value in extra.items():
        if key in config and config[key] != value:
            message = f"`advanced.axolotl.{key}` contradicts the recipe, whose other lines make it `{json.dumps(config[key])}`."
            # The recipe's settings that determine this one of Axolotl's.
            homes = list[str]()
            for section in sections:
                for name in recipe.settings[section].making(key):
                    homes.append(f"{section}.{name}")
            if homes:
                hint = f"Delete it, and change {listed(homes, 'or')} instead."
            else:
                hint = "Delete it."
            wrong.append((key, message, hint))
        other_settings = config | {name: extra[name] for name in extra if name != key}
        reason = refusal(key, value, other_settings)
        if reason:
            message = (
                f"Axolotl {catalog.AXOLOTL_VERSION} cannot use this line here: `{key}` {reason}."
            )
            wrong.append((key, message, "Delete it."))
    if wrong:
        raise Stop(
            recipe.document.problem(("advanced", "axolotl", key), message, hint, key=True)
            for key, message, hint in wrong
        )
    return config | extra


def _with_additions(config: EngineConfig, extra: EngineConfig) -> tuple[EngineConfig, EngineConfig]:
    """Both settings with what only adds to the other: plug-ins, and settings inside a section that
    the recipe does not make, for example more special tokens."""
    config = dict(config)
    extra = dict(extra)
    if extra.get("plugins"):
        extra["plugins"] = list(dict.fromkeys([*config["plugins"], *extra["plugins"]]))
        config["plugins"] = extra["plugins"]
    for key, value in extra.items():
        section = config.get(key)
        if isinstance(value, dict) and isinstance(section, dict):
            extra[key] = {**section, **value}
            config[key] = {**section, **value, **section}
    return config, extra


def _of_other_plugins(config: EngineConfig, extra: EngineConfig) -> list[tuple[str, str, str]]:
    """Settings of Axolotl's plug-ins that are not loaded, each with message and remedy."""
    wrong = []
    for plugin, settings in catalog.axolotl_settings()["plugins"].items():
        package = plugin.rpartition(".")[0]
        if any(loaded.startswith(package) for loaded in config["plugins"]):
            continue
        for key in extra:
            if key in settings:
                message = f"`{key}` is a setting of Axolotl's plug-in `{plugin}`, which this recipe does not load."
                hint = f"Load it: write `plugins: [{plugin}]` beside the line. Or delete the line."
                wrong.append((key, message, hint))
    return wrong


def refusal(setting: str, value: object, config: EngineConfig) -> str | None:
    """Why Axolotl would refuse a setting beside a config of the runner, as the end of a sentence,
    or None."""
    if value is None or setting in config:
        return None
    if isinstance(value, list):
        values = value
    else:
        values = [value]
    for refusal_row in catalog.table("axolotl-refusals").values():
        off = not refusal_row.get("even_off") and (value is False or value == [])
        least = refusal_row.get("above", math.inf)
        good = refusal_row.get("fine", ())
        fine = values and all(
            item in good or (isinstance(item, int | float) and item > least) for item in values
        )
        refused = setting in refusal_row["settings"] and not (off or fine)
        if refused and applies(config, refusal_row.get("when", ()), refusal_row.get("unless", ())):
            return str(refusal_row["why"])
    return None
