"""Scenarios that train a language model in one stage, on rows of any kind. They differ in the
weights that are trained.

`lora` trains a low-rank adapter beside a frozen model (Hu et al. 2021, arXiv 2106.09685), kept in 4
bits with qlora (Dettmers et al. 2023, arXiv 2305.14314); `last-layers` the last layers; `full` and
`causal-lm` every weight."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from runner import catalog
from runner.data.conversation_formats import OWN, ChatData
from runner.data.data_sets import DataSets, PlainText, TextSet, stated
from runner.parts.contract import Measurable
from runner.plan import EngineConfig, Evaluation, Place, Plan, Stage
from runner.recipe.recipe import LABELS, PREFERENCES, PROMPTS, SONGS, TEXT, Recipe
from runner.scenarios.shared import axolotl, common, sharding
from runner.scenarios.shared.contradictions import contradictions
from runner.tools.problem import Problem, listed, setting
from runner.trainer.settings import RunOptions


def translate(recipe: Recipe, place: Place) -> Plan:
    facts = common.batch_facts(recipe)
    return common.plan(
        recipe,
        place,
        lambda stage_place: common.rows_and_training(
            recipe, stage_place, training(recipe, stage_place)
        ),
        facts,
    )


def training(recipe: Recipe, place: Place) -> Stage:
    """The stage that trains."""
    measured = measurable(recipe)
    recipe_config, options = config(recipe, place)
    shared, shared_files = sharding.settings(recipe, place)
    sharding_section = recipe.settings.get("sharding")
    if sharding_section:
        shared |= sharding_section.for_axolotl
    if place.model_dir and not common.mounted(recipe, place):
        model = common.fetched_model(recipe)
    else:
        model = None
    plugin = axolotl.plugin(recipe, place, recipe_config, options)
    return axolotl.stage(
        recipe,
        place,
        axolotl.with_advanced(recipe, recipe_config | shared | plugin),
        Evaluation(measured.kind, asked=measured.asked),
        name="train",
        data=asdict(rows(recipe, place), dict_factory=stated),
        files=shared_files,
        model=model,
    )


def config(recipe: Recipe, place: Place) -> tuple[EngineConfig, RunOptions]:
    """The recipe's settings for Axolotl, without those that follow from its machines; and those of
    the run that Axolotl lacks."""
    options: RunOptions = {}
    held_out = common.validates(recipe)
    is_text = recipe.rows == TEXT
    technique_settings: EngineConfig = {}
    if recipe.rows == PROMPTS:
        technique_settings = dict(axolotl.own_answers(recipe))
    elif "objective" in recipe.train:
        technique_settings = dict(common.table("objectives")[recipe.train.objective])
    elif not is_text:
        technique_settings = axolotl.packing(recipe, place)
        if axolotl.flattens(recipe, place):
            options["flatten"] = True
    rewarded = technique_settings.pop("recipe_runner", None)
    if rewarded:
        options["rewards"] = rewarded["rewards"]
    if axolotl.has_persistent_workers(recipe):
        options["persistent_workers"] = True
    settings = {
        **axolotl.model(recipe, place),
        **trained(recipe, place),
        **axolotl.fused(recipe, place),
        **axolotl.faster(recipe),
        **({} if is_text else axolotl.template(recipe)),
        **axolotl.datasets(
            place.data_dir,
            "scored" if recipe.scores else recipe.rows,
            recipe.data.get("train_on"),
            held_out,
            recipe.data.get("thinking_field"),
        ),
        # Tokenised rows are beside the data if everything is prepared in advance, else on each
        # machine.
        "dataset_prepared_path": f"{place.data_dir if place.prepared else place.scratch_dir}/tokenised",
        **technique_settings,
        **axolotl.training(recipe, place, held_out),
    }
    if technique_settings.get("rl") == "simpo" and "warmup_ratio" in settings:
        # Axolotl 0.19.0 refuses it here, although its trainer supports it.
        options["warmup_ratio"] = settings.pop("warmup_ratio")
    if options:
        settings["recipe_runner"] = {}  # its place in the file; `axolotl.plugin` fills it
    return settings, options


def rows(recipe: Recipe, place: Place) -> DataSets:
    """The data to prepare."""
    fields = {
        "sequence_len": recipe.model.sequence_len,
        "tokenizer": common.tokenizer(recipe, place),
    }
    if recipe.rows == TEXT:
        return plain_text(recipe, place, **fields)
    rows_type: type[DataSets] = ChatData
    if recipe.rows in (PREFERENCES, LABELS, PROMPTS):
        from runner.data import judged  # a check of other rows is faster without it

        rows_type = judged.KINDS[recipe.rows]
    if recipe.rows == SONGS:
        from runner.data import songs

        rows_type, fields["songs"] = songs.of_songs(recipe)
    if recipe.rows == PROMPTS:
        fields["answer_tokens"] = recipe.train.answer_tokens
    tokens = axolotl.special_tokens(recipe)
    if not tokens or recipe.data.chat_template == OWN:
        # The tokenizer's own template is used; ChatML's tokens count for it if nothing else is
        # known.
        tokens = replace(tokens or catalog.chat_template("chatml"), axolotl=OWN)
    return common.rows(rows_type, recipe, place, recipe.data, special_tokens=tokens, **fields)


def measurable(recipe: Recipe) -> Measurable:
    if recipe.rows == SONGS and recipe.data.songs:
        from runner.data import songs

        question_kinds = songs.of_songs(recipe)[1].asked
    else:
        question_kinds = {}
    # For a model's own answers, each reward.
    question_kinds |= dict.fromkeys(recipe.settings.get("rewards") or (), "")
    return Measurable(
        common.measured_as(recipe.rows),
        question_kinds,
        common.validates(recipe),
        recipe.pretrained,
    )


def trained(recipe: Recipe, place: Place) -> EngineConfig:
    """Which weights are trained; empty for all. Layers with an adapter have this model's names."""
    train = recipe.train
    if "adapter" in train:
        return _adapter(recipe, recipe.facts, place)
    if "last_layers" not in train:
        return _half_for_text(recipe.model_facts, recipe.scores)
    trains_head = train.lm_head and not recipe.scores
    patterns = unfrozen_parameters(recipe.facts, train.last_layers, trains_head)
    if recipe.scores and patterns:
        patterns += [f"^{SCORE}$"]
    if patterns:
        return {"unfrozen_parameters": patterns}
    return {}


def _half_for_text(facts: catalog.Model | None, scores: bool) -> EngineConfig:
    """All weights but those of parts that see, which text never reaches: as trained ones they would
    take the optimizer's memory, and DDP would wait for their gradients."""
    if facts is None or not facts.sees:
        return {}
    patterns = unfrozen_parameters(facts, facts.num_hidden_layers, lm_head=not scores)
    if scores:
        patterns.append(f"^{SCORE}$")
    return {"unfrozen_parameters": patterns}


def _adapter(recipe: Recipe, facts: catalog.Model, place: Place) -> EngineConfig:
    """Axolotl's settings for a low-rank adapter."""
    train = recipe.train
    config: EngineConfig = {}
    if train.adapter == "qlora":
        config["load_in_4bit"] = True
    if train.get("lora_experts"):
        config["lora_target_parameters"] = list(facts.family.get("experts", ()))
    # Axolotl does this only with CUDA.
    if train.get("quantize_experts") and place.accelerator:
        config["quantize_moe_experts"] = True
    config["lora_target_modules"] = train.lora_pattern or in_text(facts, adapted(facts, train))
    kernels = ("lora_qkv_kernel", "lora_o_kernel", "lora_mlp_kernel", "lora_embedding_kernel")
    return config | dict.fromkeys(kernels, _has_fused_adapter(recipe, facts, place))


def _has_fused_adapter(recipe: Recipe, facts: catalog.Model, place: Place) -> bool:
    """Whether Axolotl's fused LoRA kernels, on by default there, can be used. They need a GPU,
    separate query, key and value, no code of the model's own, and no weights in 8 bits, and are for
    models that write. Axolotl refuses them beside `nvfp4_merge_aware`."""
    train = recipe.train
    # With DoRA they would use the weight norms from before the first step, because fused and 8-bit
    # AdamW keep a tensor's version (Axolotl 0.19.0, kernels/lora.py, _compute_dora_scale; torch
    # 2.13).
    is_unsuitable = train.get("use_dora") or train.get("eight_bit_base") or recipe.scores
    advanced = recipe.advanced.plain().get("axolotl") or {}
    return bool(
        place.accelerator
        and facts.fused_lora
        and not recipe.model.get("trust_remote_code")
        and not is_unsuitable
        and not advanced.get("nvfp4_merge_aware")
    )


# the layer that makes a score of an answer's last word (transformers 5.16, modeling_layers.py)
SCORE = "score.weight"


def unfrozen_parameters(model: catalog.Model, last_layers: int, lm_head: bool) -> list[str]:
    """Patterns, as Axolotl's `unfrozen_parameters` reads them, for the last layers and the LM head;
    none for the whole model, if no part of it sees. A tied LM head has no parameter of its own: its
    weight is the embedding's, and unfreezing `lm_head` by name would unfreeze nothing."""
    first_layer = model.num_hidden_layers - last_layers
    if first_layer == 0 and lm_head:
        return text_parameters(model)
    patterns = []
    for layer in range(first_layer, model.num_hidden_layers):
        patterns.append(f"^{model.layers_path}.{layer}.")
    if lm_head:
        patterns.append(f"^{model.embedding if model.tied else model.lm_head}$")
    return patterns


def text_parameters(model: catalog.Model) -> list[str]:
    """Such patterns for the half for text, of a model that also sees; none for others."""
    if not model.sees:
        return []
    patterns = [f"^{model.root}."]
    if not model.tied:
        patterns.append(f"^{model.lm_head}$")
    return patterns


def in_text(facts: catalog.Model, layer_names: list[str]) -> str | list[str]:
    """Linear layers for an adapter as PEFT reads them: by name, or, of a model that also sees, by a
    pattern that stays within its half for text, because parts that see have layers of the same
    names."""
    if not facts.sees or not layer_names:
        return layer_names
    names = "|".join(map(re.escape, layer_names))
    return rf"{re.escape(facts.layers_path)}\.\d+\.(?:.*\.)?(?:{names})"


def adapted(facts: catalog.Model, train: Any) -> list[str]:
    """The linear layers with an adapter, by their names in a transformer layer. Raises re.error."""
    layer_pattern = train.get("lora_pattern")
    if layer_pattern:
        return [name for name in facts.named(layer_pattern) if name in facts.linear]
    if train.get("lora_layers") is None:
        requested = facts.linear
    else:
        requested = train.lora_layers
    layer_names = list[str]()
    for name in requested:
        # A name that matches none of the known layers is passed on unchanged.
        layer_names += [*facts.fitting(name)] or [name]
    return list(dict.fromkeys(layer_names))


def pattern(recipe: Recipe) -> Iterator[Problem]:
    """A pattern that peft would refuse."""
    facts = recipe.model_facts
    lora_pattern = recipe.train.get("lora_pattern")
    if not lora_pattern:
        return
    try:
        re.compile(lora_pattern)
        matched_layers = facts.matched(lora_pattern) if facts else {}
    except re.error as error:
        yield recipe.problem("train.lora_pattern", *_no_pattern(lora_pattern, error))
        return
    # For an architecture outside the catalog, only a trace shows the layers.
    if not facts or facts.model_type not in catalog.model_types():
        return
    message = _unfit_pattern(facts, recipe.model.base, lora_pattern, matched_layers)
    if message:
        yield recipe.problem("train.lora_pattern", *message)


def _unfit_pattern(
    facts: catalog.Model, base: str, lora_pattern: str, matched_layers: Mapping[str, bool]
) -> tuple[str, str] | None:
    """Why a pattern does not fit a model, and the remedy. matched_layers: the modules that it
    matches, and for each of them whether it is a linear layer."""
    names = facts.named(lora_pattern)
    missed = facts.family.get("missed", {})
    for name in names:
        if name in missed:
            return _without_adapter(facts, name)
    for path, is_linear in matched_layers.items():
        if not is_linear:
            return (
                f"`{lora_pattern}` also matches `{path}`, which is no linear layer.",
                "End the pattern with names of linear layers, such as `[qv]_proj`.",
            )
    if re.fullmatch(lora_pattern, head_module(facts)):
        return _head_with_adapter(facts, lora_pattern)
    seeing_layer = next(facts.seeing_modules(lora_pattern), None)
    if seeing_layer:
        return (
            f"`{lora_pattern}` also matches `{seeing_layer}`, in a part of the model that reads images or sound. Text trains none of it.",
            f"Begin it with `{re.escape(facts.layers_path)}\\.`, or write names of layers as `lora_layers`, which stay within the half for text.",
        )
    if not matched_layers:
        linear = listed(facts.linear)
        example = facts.linear_path(0, facts.linear[0])
        return (
            f"`{lora_pattern}` matches no linear layer of `{base}`, so the adapter would change nothing.",
            f"It must match a whole name such as `{example}`. The linear layers are {linear}.",
        )
    if not facts.family.get("names_alone"):
        return None
    further_layers = facts.matched(facts.pattern_of(names)).keys() - matched_layers.keys()
    if not further_layers:
        return None
    return (
        f"PEFT 0.20 takes only the names from a pattern for models of type `{facts.model_type}`, so it would also adapt `{min(further_layers)}`.",
        f"Write {listed(names)} as `lora_layers`, which means all layers.",
    )


def _no_pattern(name: str, error: re.error) -> tuple[str, str]:
    return (
        f"`{name}` is not a regular expression: {error.msg}.",
        "Write names of layers, or fix the pattern.",
    )


def _without_adapter(facts: catalog.Model, name: str) -> tuple[str, str]:
    reason = facts.family["missed"][name.rpartition(".")[2]]
    linear = listed(facts.linear)
    return (
        f"`{name}` cannot have an adapter: {reason}.",
        f"Its linear layers are {linear}. Delete `lora_layers` to give each of them an adapter.",
    )


def head_module(facts: catalog.Model) -> str:
    """The path of the LM head."""
    return facts.lm_head.removesuffix(".weight")


def _head_with_adapter(facts: catalog.Model, setting_value: str) -> tuple[str, str]:
    """Why the LM head gets no adapter. Liger 0.8.1 (`transformers/model/llama.py`) passes
    `lm_head.weight` to the fused loss."""
    reason = "The fused losses multiply by its own weights and skip an adapter, which would learn nothing."
    if facts.tied:
        reason = f"{reason} This model also uses these weights as its embedding, which a merge would change, too."
    return (
        f"`{setting_value}` includes the LM head, which gets no adapter. {reason}",
        "Leave it out. To train the LM head itself, use the scenario `last-layers` with `lm_head: true`. "
        f"Layers that can have an adapter: {listed(facts.linear)}.",
    )


def layers(recipe: Recipe) -> Iterator[Problem]:
    facts = recipe.model_facts
    if not facts or facts.model_type not in catalog.model_types():
        return
    for index, name in enumerate(recipe.train.get("lora_layers") or ()):
        try:
            fitting = facts.fitting(name)
        except re.error as error:
            message = _no_pattern(name, error)
        else:
            first_layer = min(fitting.values(), default=0) % facts.num_hidden_layers
            if fitting and not first_layer:
                continue
            if first_layer:
                message = (
                    f"`{name}` matches {first_layer} of the model's {facts.num_hidden_layers} layers, but LoRA adapts all of them.",
                    f"Write {listed(fitting)}, and the layers' numbers as `advanced.axolotl.peft_layers_to_transform`. Or write a `lora_pattern`.",
                )
            elif name.rpartition(".")[2] in facts.family.get("missed", {}):
                message = _without_adapter(facts, name)
            elif re.fullmatch(rf"(.*\.)?({name})", head_module(facts)):
                message = _head_with_adapter(facts, name)
            else:
                message = (
                    f"`{recipe.model.base}` has no linear layer `{name}`.",
                    f"Its linear layers are {listed(facts.linear)}. Delete `lora_layers` to give each of them an adapter.",
                )
        yield recipe.problem(("train", "lora_layers", index), *message)


# What the table of contradictions can name beside settings; together: the answers that are compared
# at once.
ANSWERS: Mapping[str, Callable[[Recipe], Any]] = {
    "questions": lambda recipe: recipe.demo_questions,
    "step_answers": common.effective_batch_size,
    "odd_step": lambda recipe: common.effective_batch_size(recipe) % recipe.train.generations,
    "together": lambda recipe: (
        common.replicas(recipe) * (recipe.train.eval_batch_size or recipe.train.generations)
    ),
    "odd_evaluation": lambda recipe: ANSWERS["together"](recipe) % recipe.train.generations,
}


def plain_text(recipe: Recipe, place: Place, **fields: object) -> PlainText:
    data = recipe.data
    plain = common.rows(
        PlainText,
        recipe,
        place,
        data,
        effective_batch_size=common.effective_batch_size(recipe),
        epochs=recipe.train.epochs,
        warmup_steps=recipe.train.warmup_steps or 0,  # a share never exceeds the number of steps
        eval_steps=recipe.train.eval_steps if common.validates(recipe) else None,
        **fields,
    )
    # For the validation loss alone: a split of each data set, or a file.
    split = data.validation_split
    if split:
        held_out = [replace(data_set, split=split, share=1.0) for data_set in plain.sets]
    else:
        held_out = []
    path = common.data_file(recipe, place, data.validation_path)
    if path:
        held_out.append(
            TextSet(
                hub=None, revision=None, subset=None, split=data.split, path=path, text=data.text
            )
        )
    return replace(plain, validation_sets=tuple(held_out))


def one_validation(recipe: Recipe) -> Iterator[Problem]:
    data = recipe.data
    if recipe.rows != TEXT:
        return
    settings_given = [name for name in common.GIVES_VALIDATION if data.get(name)]
    if len(settings_given) > 1:
        yield recipe.problem(
            ("data", settings_given[1]),
            f"`data` has {listed(settings_given)}, but validation data comes from one place.",
            "Keep one of these lines.",
        )
    sources: tuple[tuple[common.GivesValidation, str], ...]
    sources = (("validation_split", "hub"), ("validation_path", "path"))
    for name, source in sources:
        # A file works with any list of data sets; a split must exist in each.
        lacking = [home for home, data_set in recipe.data_sets() if not data_set.get(source)]
        if data.get(name) and lacking and not (name == "validation_path" and data.get("sets")):
            yield recipe.problem(
                ("data", name),
                f"`{name}` needs `{source}`, but `{setting(lacking[0])}` has no `{source}`.",
                "Use `validation_share` to take a share of the documents instead.",
            )
    yield from _validates_training_text(recipe)


def _validates_training_text(recipe: Recipe) -> Iterator[Problem]:
    """The problem that the text for validation is the training text."""
    data = recipe.data
    file = data.get("validation_path")
    split = data.get("validation_split")
    paths = (data_set.get("path") for _, data_set in recipe.data_sets())
    training_files = [(recipe.folder / path).resolve() for path in paths if path]
    name: common.GivesValidation
    if file and (recipe.folder / file).resolve() in training_files:
        name = "validation_path"
    elif split and split == data.get("split"):
        name = "validation_split"
    else:
        return
    yield recipe.problem(
        ("data", name),
        f"Validation uses the training text, `{data[name]}`, so the model that memorises it best would win.",
        "Name another, or use `validation_share` to hold out a share of the documents.",
    )


RULES = (contradictions(__file__, **ANSWERS), pattern, layers, one_validation)
