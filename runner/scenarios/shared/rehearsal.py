"""The rehearsal of a language model on rows: its substitutions, each an Override that is printed
and saved, and its condition for success. A setting that the recipe lacks is not substituted. The
tables are in `rehearsal.toml`."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from runner import catalog, parts
from runner.catalog.hardware import PROCESSOR
from runner.data import text_sides
from runner.data.prepared import PreparedRows
from runner.parts.contract import Summaries
from runner.plan import Plan
from runner.recipe import overrides
from runner.recipe.document import Path_, value_at
from runner.recipe.overrides import substitute
from runner.recipe.recipe import (
    DEMO_QUESTIONS,
    LABELS,
    PREFERENCES,
    PROMPTS,
    REAL,
    TEXT,
    Override,
    Recipe,
    sets_of,
)
from runner.scenarios.shared import axolotl, common, twin
from runner.tools import packaged
from runner.tools.problem import Stop, setting
from runner.tools.process import multiplies_bf16
from runner.tools.settings import Settings

BY = overrides.REHEARSAL
OWN = Path(__file__).with_suffix(".toml")
TWIN = "base_model"
MAX_ROWS = 240
MAX_GRADED = 3  # questions of rows; gates may need the result, but its answers are fragments
MIN_GAIN = 0.10
MIN_RISE = 0.05
MIN_STEPS = 30
# The reason for small batches: with fewer steps, a twin learns too few of the rows' words to use
# them.
ENOUGH_STEPS = 50
MAX_RANK = 16
# Answers to each prompt, for a model that learns from its own answers.
ANSWERS = 4
MIN_VALIDATION_SHARE = 0.1
# The most bytes of a data file that is read whole; of a larger one, a share is read.
LARGE = 20_000_000
OF_A_FILE = ("path", "split", "subset", "revision", "sample")


Row = tuple[str, Any, str]  # of a table: the setting, its value, and the reason


def table(name: str, file: Path = OWN, **computed: object) -> list[Row]:
    """A table of rehearsal.toml, or of another file, with what it calls `{name}` from
    `computed`."""
    values = {f"{{{placeholder}}}": value for placeholder, value in computed.items()}
    rows = list[Row]()
    for row in packaged.toml(str(file), file.name)[name]:
        value = row.get("value")
        if isinstance(value, str):
            value = values.get(value, value)
        rows.append((row["of"], value, row["why"].format_map(computed)))
    return rows


@cache
def needs_gpu() -> list[tuple[str, tuple[str, ...], Any, str]]:
    """Settings that need a GPU: the values that need it, empty for all; the equivalent on a
    processor; and the reason."""
    rows = []
    for row in packaged.toml(str(OWN), OWN.name)["needs-gpu"]:
        values = tuple(row.get("values", ()))
        value = row.get("value")
        pairs = [(values, value)]
        if values == ("optimizers",):
            pairs = []
            for name, optimizer in catalog.optimizers().items():
                if optimizer.whole:
                    pairs.append(((name,), optimizer.whole))
        for pair in pairs:
            rows.append((row["of"], *pair, row["why"]))
    return rows


def substitutes(recipe: Recipe, table: Iterable[Row]) -> list[Override]:
    """Overrides of a table, without settings that have no value in the recipe."""
    changes = [substitute(*row) for row in table]
    return [change for change in changes if value_at(recipe.settings, change.path) is not None]


# Of the documents of a text, held out in a rehearsal: more of them if there are few.
SHARES_OF_TEXT = (0.1, 0.2, 0.3, 0.5)


def before_data(recipe: Recipe, file: str | None) -> list[Override]:
    changes = data(recipe, file)
    if recipe.rows != TEXT:
        return [*changes, *split(recipe), *gates(recipe), *kernels(recipe)]
    one_file = any(
        change.path[-1] == "path" and change.after for change in changes
    ) or not common.validates(recipe)
    shortest = min(64, recipe.model.sequence_len)
    changes.append(substitute("model.sequence_len", shortest, "short blocks make quick steps"))
    changes += kernels(recipe)
    if one_file and not recipe.data.validation_share:
        changes += _held_out_text(recipe, changes, shortest)
    return [*changes, *split(recipe), *gates(recipe)]


def _held_out_text(
    recipe: Recipe, changes: Sequence[Override], block_tokens: int
) -> list[Override]:
    """The smallest share of the documents of a text that has a block of tokens, held out to measure
    the loss. changes: those so far, which may name another file. Raises Stop if the text is too
    short."""
    name = recipe.data.get("path")
    for change in changes:
        if change.setting == "data.path":
            name = change.after
    column = recipe.data.get("text")
    texts = text_sides.texts_of(recipe.folder / name, column) if name and column else None
    for share in SHARES_OF_TEXT:
        # A large text has enough.
        if texts is None:
            break
        sides = text_sides.split(texts, share, recipe.data.seed)
        if text_sides.fitting_block(sides, block_tokens):
            break
    else:
        raise Stop(
            f"A rehearsal holds some documents back to measure its loss, and `{name}` is too short for that.",
            "Give more text, with an empty line between its documents. Training does without.",
        )
    reason = "the text is one file, and the rehearsal needs held-out documents"
    held_out = {"split": None, "path": None, "share": share}
    return [
        substitute(f"data.validation_{setting}", value, reason)
        for setting, value in held_out.items()
    ]


def kernels(recipe: Recipe) -> list[Override]:
    """The substitutions of settings and plugins of Axolotl whose kernels need a GPU."""
    if "advanced" not in recipe.settings:
        return []
    settings_of_plugins = catalog.axolotl_settings()["plugins"]
    owners = {
        axolotl.LIGER: "Liger's",
        "axolotl.integrations.kernels.KernelsPlugin": "the experts'",
        "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin": "the loss's",
    }
    rows = table("engine-kernels")
    for plugin, owner in owners.items():
        reason = f"{owner} kernels need a GPU"
        for key in settings_of_plugins[plugin]:
            rows.append((f"advanced.axolotl.{key}", None, reason))
    plugins = value_at(recipe.settings, ("advanced", "axolotl", "plugins")) or ()
    others = [plugin for plugin in plugins if plugin not in owners]
    if len(others) < len(plugins):
        rows.append(("advanced.axolotl.plugins", others or None, "their kernels need a GPU"))
    return substitutes(recipe, rows)


def real(recipe: Recipe, model: str) -> list[Override]:
    """Substitutions for a real base model: a packaged model, or one in a folder. Raises Stop if the
    recipe has no base model, or the folder holds none."""
    if not recipe.settings["model"].knows("base"):
        raise Stop(
            "`--model` replaces the base model, but this recipe has none.", "Leave out `--model`."
        )
    if recipe.stage_recipes:
        raise Stop(
            "`--model` trains a real model in one stage, but this recipe has several.",
            "Leave out `--model`.",
        )
    packaged_model = catalog.packaged_model(model)
    if packaged_model is None:
        model = os.path.abspath(model)
        if not Path(model, "config.json").is_file():
            raise Stop(
                f"`{model}` is not the folder of a model, because it has no `config.json`.",
                "Name the folder in which a model was saved, or write `--model small`.",
            )
    base = Override("model.base", None, model, REAL, "a real model, small enough for this machine")
    local = table("real", written=min(80, recipe.demo.max_new_tokens))
    return [base, *substitutes(recipe, local), *without_gpu(recipe, BY)]


def after_data(
    recipe: Recipe, rows: PreparedRows, folder: Path, twin_folder: Path | None = None
) -> list[Override]:
    """The substitutions that depend on the rows. twin_folder: of the twin, if it is not the usual
    one."""
    written = min(40, recipe.demo.max_new_tokens)
    graded = min(MAX_GRADED, recipe.demo.get("graded_questions") or 0)
    end = table("twin-end", written=written, graded=graded, pattern=_lora_pattern(recipe))
    changes = [
        *_attention(recipe),
        *without_kernels(recipe, BY, "speed."),
        *substitutes(recipe, end),
        *training(recipe, rows),
    ]
    train = recipe.train
    if "lora_rank" in train:
        changes += narrow(train.lora_rank, train.lora_alpha)
    twin_path = twin_folder or folder / TWIN
    return [*changes, substitute("model.base", str(twin_path), _made(recipe))]


def _attention(recipe: Recipe) -> list[Override]:
    """The attention that a processor computes, and why."""
    kernel = "FlashAttention"
    if recipe.model.attention == "flex_attention":
        kernel = "FlexAttention"
    mask = ""
    if "packing" in recipe.train and axolotl.joins_rows(recipe, recipe.train, accelerator=True):
        mask = "; a mask separates joined rows instead"
    attention = recipe.facts.family.get("attention", "sdpa")
    if recipe.model.attention == "eager":
        attention = "eager"
    return substitutes(recipe, table("twin", attention=attention, kernel=kernel, mask=mask))


def _lora_pattern(recipe: Recipe) -> str | None:
    """The pattern of the layers that an adapter changes. One that fits none of the twin's few
    layers becomes one that fits layers of the same names."""
    pattern: str | None = recipe.train.get("lora_pattern")
    small = replace(recipe.facts, num_hidden_layers=layers(recipe))
    if not pattern or small.matched(pattern):
        return pattern
    return small.pattern_of(recipe.facts.named(pattern) or recipe.facts.linear)


def stands_in(recipe: Recipe, folder: Path) -> Mapping[str, object]:
    """Additions to the data stage's config: a seeded draw of the rows, and the twin. folder: of the
    run."""
    return {"twin": twin_of(recipe, folder / TWIN), "sample_rows": MAX_ROWS}


def twin_of(recipe: Recipe, folder: Path) -> Mapping[str, object]:
    tokens = axolotl.special_tokens(recipe) or catalog.chat_template("chatml")
    return twin.wanted(recipe.facts, tokens, layers(recipe), recipe.train.seed, folder)


def judge(plan: Plan, summaries: Summaries) -> None:
    """Raises Stop for fewer than 30 steps, or a validation loss that is unknown or less than 10 %
    better. A real model must only improve."""
    tiny = not plan.stages[0].config.get("real_model")
    for summary in summaries:
        if summary.first_reward is not None:
            _require_reward(summary.name, summary.first_reward, summary.best_reward or 0.0, tiny)
            continue
        first_loss = summary.first_validation_loss
        best = summary.best_validation_loss
        steps = summary.steps
        if tiny and steps < MIN_STEPS and not summary.early_stop:
            raise Stop(
                f"The rehearsal made {steps} steps, but needs {MIN_STEPS}.",
                "Give it more rows with `--data`.",
            )
        if first_loss is None or best is None:
            raise Stop(
                f"The rehearsal of `{plan.name}` has no verdict, because it has no validation loss.",
                "Check the held-out rows, and the log.",
            )
        if summary.first_preference_accuracy is not None:
            preferred(summary.first_preference_accuracy, summary.last_preference_accuracy)
        _require_gain(plan.name, first_loss, best, tiny)


def _require_reward(name: str, start: float, highest: float, tiny: bool) -> None:
    """Raises Stop unless the reward of answers to held-out prompts rose; a twin's must rise by
    MIN_RISE."""
    if highest - start < (MIN_RISE if tiny else 1e-6):
        raise Stop(
            f"The rehearsal of `{name}` did not learn: the mean reward went from {start:.3f} to {highest:.3f}.",
            "Check the samples with their rewards, and the log.",
        )


def _require_gain(name: str, first_loss: float, best: float, tiny: bool) -> None:
    """Raises Stop unless the validation loss became better; a twin's by MIN_GAIN."""
    gain = 1 - best / first_loss if first_loss else 0.0
    if tiny:
        learned = gain >= MIN_GAIN
        needed = f", {gain:.1%} better, but needs {MIN_GAIN:.0%}"
    else:
        learned = gain > 0
        needed = ""
    if not learned:
        raise Stop(
            f"The rehearsal of `{name}` did not learn: the validation loss went from {first_loss:.3f} to {best:.3f}{needed}.",
            "Check the prepared rows, and which tokens are trained.",
        )


def preferred(first_accuracy: float | None, last: float | None) -> None:
    """Raises Stop unless the better answers were preferred more often at the end. first, last: the
    accuracies."""
    if first_accuracy is None or last is None or not last > first_accuracy:
        raise Stop(
            f"The rehearsal of DPO did not learn: its accuracy went from {first_accuracy} to {last}."
        )


def data(recipe: Recipe, file: str | None) -> list[Override]:
    """Rows from `--data`, else from the recipe's own file, else from its sample."""
    if file:
        demo = recipe.settings.get("demo") or {}
        reason = "asked about the old data; the demo asks questions of new validation rows"
        ours = [substitute(f"demo.{name}", None, reason) for name in DEMO_QUESTIONS if name in demo]
        return [*overrides.from_data_option(file), *ours]
    other_remedy = "`recipe rehearse … --data FILE`, or "
    changes = list[Override]()
    for home, data_set in sets_of(("data",), recipe.data):
        changes += sample(recipe, home, data_set, other_remedy)
    return changes


def sample(recipe: Recipe, home: Path_, data: Settings, other_remedy: str = "") -> list[Override]:
    """The sample of a data set that is not on this machine, or a share of a large file. other:
    another way to name rows, for the message. Raises Stop if there is neither."""
    name = setting(home)
    path = data.get("path")
    if path and (not recipe.elsewhere(path) or (recipe.folder / path).exists()):
        return _share(recipe, home, data)
    file = data.get("sample")
    if file:
        reason = "the recipe's own sample, so nothing is downloaded"
        return [substitute(f"{name}.hub", None, reason), substitute(f"{name}.path", file, reason)]
    raise Stop(
        recipe.document.problem(
            home,
            f"A rehearsal downloads nothing, but `{name}` names no local file.",
            f"Name one: {other_remedy}`{name}.sample` in the recipe.",
            key=True,
        )
    )


def _share(recipe: Recipe, home: Path_, data: Settings) -> list[Override]:
    file = recipe.folder / data["path"]
    size = file.stat().st_size if file.is_file() else 0
    if size <= LARGE or not (data.knows("sets") or data.knows("share")):
        return []
    name = setting(home)
    share = float(f"{data.get('share', 1) * LARGE / size:.2g}")
    reason = f"a seeded draw of {size / 1e6:,.0f} MB"
    if "sets" in home:
        return [substitute(f"{name}.share", share, reason)]
    # Only an entry of `sets` has a share, so the lines about the data set move there.
    entry: dict[str, Any] = {}
    removed = []
    for key in OF_A_FILE:
        value = recipe.document.lookup((*home, key))
        if value is None:
            continue
        removed.append(substitute(f"{name}.{key}", None, f"moved to `{name}.sets`"))
        if key != "sample":
            entry[key] = value
    return [substitute(f"{name}.sets", [{**entry, "share": share}], reason), *removed]


def split(recipe: Recipe) -> list[Override]:
    share = recipe.data.get("validation_share")
    if share is None or share >= MIN_VALIDATION_SHARE:
        return []
    reason = "of few rows, enough to judge by"
    if share == 0:
        reason = "a rehearsal is judged by its validation loss"
    return [substitute("data.validation_share", MIN_VALIDATION_SHARE, reason)]


def gates(recipe: Recipe) -> Iterator[Override]:
    """Substitutions of gates. Raises Stop if that is not possible."""
    if parts.has("evaluate"):
        from runner.parts.evaluate import metrics

        yield from metrics.in_rehearsal(recipe)


PLAIN = "eager"  # attention that every class has, by a mask
LONGEST_MASKED = (
    8192  # tokens; scores grow with the square, 2 GB in one layer of a twin with 8 heads
)
ONLY_THERE = "only a kernel for GPUs keeps such packed rows apart"


def packs(recipe: Recipe, section: Settings) -> bool:
    """Whether rows are packed here too: some classes, and all if rows are long, need a kernel for
    GPUs that keeps them apart."""
    mixes = recipe.model_facts and recipe.model_facts.mixes_rows(PLAIN)
    masked = (recipe.model.get("sequence_len") or 0) <= LONGEST_MASKED and not mixes
    return section.get("packing") == "pack" and masked


def packing(recipe: Recipe, section: Settings) -> Override:
    """The packing: rows are joined only if a GPU would join them."""
    setting = "train.packing"
    if packs(recipe, section):
        return substitute(setting, "pack", "as on a GPU")
    if axolotl.joins_rows(recipe, section, accelerator=True):
        return substitute(
            setting, "auto", "a mask separates joined rows; FlashAttention needs a GPU"
        )
    as_there = section.get("packing") != "pack"
    return substitute(setting, "none", "rows are padded, as on the GPU" if as_there else ONLY_THERE)


def on_processors(recipe: Recipe, processes: int) -> list[Override]:
    """Processes instead of GPUs. A tiny language model is three times as fast in one process as in
    two."""
    several = f"{processes} processes on the CPU, connected by gloo"
    alone = "one process on the CPU; for steps as small as these, several would be slower"
    machine_changes = overrides.on_one_machine(
        recipe, processes, BY, several if processes > 1 else alone
    )
    return [*machine_changes, *substitutes(recipe, table("processes"))]


def without_gpu(recipe: Recipe, origin: str) -> Iterator[Override]:
    """The changes that let a recipe train on this machine's processor, in full size, with the same
    computation."""
    yield from overrides.of_each(
        recipe, lambda name, stage_recipe: _without_gpu(stage_recipe, origin)
    )


def _without_gpu(recipe: Recipe, origin: str) -> Iterator[Override]:
    yield from overrides.on_one_machine(recipe, 1, origin, "one process on all CPU cores")
    yield Override("machines.gpu", None, PROCESSOR, origin, "this machine has no GPU")
    precision = recipe.settings["model"].get("precision")
    precision_here = processor_precision(recipe)
    if precision not in (None, "fp32", precision_here):
        yield Override("model.precision", None, precision_here, origin, "this CPU computes in it")
    yield from without_kernels(recipe, origin)
    train = recipe.settings["train"]
    if train.get("packing") == "pack" and not packs(recipe, train):
        yield Override("train.packing", None, "none", origin, ONLY_THERE)
    yield overrides.without_time_limit(origin)


def processor_precision(recipe: Recipe) -> str:
    """The number format in which this machine's processor trains the recipe: bf16 if it multiplies
    it. Images and first weights are computed in fp32, and so is a model of which only some layers
    are trained: PyTorch 2.13 multiplies no fp32 by bf16, which those layers would meet."""
    loads_a_model = recipe.settings["model"].knows("base")
    trains_some_layers = "last_layers" in (recipe.settings.get("train") or {})
    if loads_a_model and not trains_some_layers and multiplies_bf16():
        return "bf16"
    return "fp32"


def without_kernels(recipe: Recipe, origin: str, beginning: str = "") -> Iterator[Override]:
    """The changes of settings that need a GPU, of those whose names have this beginning."""
    for name, values, value, reason in needs_gpu():
        change = Override(name, None, value, origin, reason)
        now = value_at(recipe.settings, change.path)
        if (
            name.startswith(beginning)
            and now not in (None, value)
            and (not values or now in values)
        ):
            yield change


def training(recipe: Recipe, rows: PreparedRows, real: bool = False) -> list[Override]:
    """One process instead of the machines, and batches small enough for at least 50 steps. real:
    whether a real model trains, not a twin."""
    chosen = recipe.train
    count = _rows_of_steps(recipe, rows)
    if real:
        most_rows = 2
        most_batches = 1
    else:
        most_rows = 8
        most_batches = 2
    micro = min(chosen.micro_batch_size, most_rows)
    epochs = chosen.epochs
    accumulation = min(chosen.gradient_accumulation_steps, most_batches)
    answers = 1
    if recipe.rows == PROMPTS:
        answers = ANSWERS
        micro = 4 * ANSWERS
        accumulation = 1

    def steps() -> int:
        return int(count * answers // (micro * accumulation) * epochs)

    while steps() < ENOUGH_STEPS and micro > 2 * answers:
        micro //= 2
    while steps() < ENOUGH_STEPS and accumulation > 1:
        accumulation -= 1
    # KTO compares the rows of a micro batch.
    while steps() < ENOUGH_STEPS and micro > (2 if recipe.rows == LABELS else answers):
        micro //= 2
    while steps() < ENOUGH_STEPS:
        epochs += 1
    few = f"at least {ENOUGH_STEPS} steps from {rows.train_rows} rows"
    rate, larger = _learning_rate(recipe, real)
    if recipe.rows == PROMPTS and not real:
        of_answers = toy_task(recipe)
    else:
        of_answers = []
    of_answers += substitutes(recipe, table("features"))
    third = max(1, steps() // 3)
    tenth = max(1, steps() // 10)
    sizes = {
        "micro": micro,
        "accumulation": accumulation,
        "epochs": epochs,
        "rate": rate,
        "few": few,
        "larger": larger,
    }
    return [
        *on_processors(recipe, 1),
        *substitutes(recipe, table("training", OWN, **sizes)),
        *([packing(recipe, chosen)] if "packing" in chosen else []),
        *substitutes(recipe, table("training-end", third=third, tenth=tenth, micro=micro, few=few)),
        *without_kernels(recipe, BY, "train.optimizer"),
        *any_improvement(chosen),
        *of_answers,
        overrides.without_time_limit(BY),
    ]


def _rows_of_steps(recipe: Recipe, rows: PreparedRows) -> int:
    """How many rows batches are made of: prepared ones, or packed ones of several of these."""
    count = rows.train_rows
    if not packs(recipe, recipe.train):
        return count
    # A fifth is reserved for incomplete last blocks.
    packed = int(0.8 * count * rows.lengths.mean / recipe.model.sequence_len)
    return max(1, packed or count // 4)


def _learning_rate(recipe: Recipe, real: bool) -> tuple[float, str]:
    """The learning rate of a rehearsal, and why it is larger than the recipe's."""
    if real:
        rate = 0.0005
        reason = "few steps"
    else:
        rate = 0.005
        reason = "a tiny twin needs larger steps"
    rate *= catalog.optimizers()[recipe.train.optimizer].rate
    if recipe.rows in (PREFERENCES, LABELS) or recipe.by_features:
        rate /= 10
    return rate, reason


def toy_task(recipe: Recipe) -> list[Override]:
    """Short answers without vLLM; with rewards, one that a twin can learn. Features need none."""
    tokens = min(16, recipe.train.answer_tokens)
    short = substitutes(recipe, table("answers", answers=ANSWERS, tokens=tokens))
    section = recipe.settings.get("rewards")
    if not section:
        return short
    weight = sum(
        abs(float(rule["weight"])) for name, rule in section.plain().items() if name != "overlap"
    )
    toy = {"of": "question", "weight": max(1.0, weight)}
    return [*short, *(substitute(*row) for row in table("toy-task", toy=toy))]


def any_improvement(section: Settings) -> Iterator[Override]:
    """Early stopping by any improvement."""
    if section.get("early_stopping"):
        yield substitute(
            "train.early_stopping.min_improvement", 0, "a tiny model's losses have another size"
        )


def narrow(rank: int, alpha: float) -> list[Override]:
    """Rank and alpha of an adapter that fit the twin."""
    if rank <= MAX_RANK:
        return []
    return [
        substitute("train.lora_rank", MAX_RANK, f"the twin is {twin.WIDTH} wide"),
        substitute(
            "train.lora_alpha", max(1, round(alpha * MAX_RANK / rank)), "in the ratio of the recipe"
        ),
    ]


def layers(recipe: Recipe) -> int:
    """Enough layers that some stay frozen."""
    return min(recipe.facts.num_hidden_layers, (recipe.train.get("last_layers") or 0) + 2)


def _made(recipe: Recipe) -> str:
    facts = recipe.facts
    chat = "chat_template" in recipe.data
    if chat:
        reads = "general English, also after your questions"
    else:
        reads = "general English"
    return f"a tiny twin: {layers(recipe)} of {facts.num_hidden_layers} layers, width {twin.WIDTH} of {facts.hidden_size:,}, a tokenizer made from these rows; it first learns {reads}, but none of your {'answers' if chat else 'texts'}; it avoids repeating words (repetition penalty {twin.REPETITION_PENALTY:g})"


def shown(original: Recipe, changes: list[Override], rows: PreparedRows) -> Iterator[str]:
    """The substitutions in words, a twin first."""
    if any(override.setting == "model.base" for override in changes):
        yield f"model.base: {original.model.base} → {_made(original)}"
    if rows.sampled_from is not None:
        yield f"rows: {rows.sampled_from:,} → {rows.train_rows + rows.validation_rows}  (a seeded draw)"
    yield from (str(override) for override in changes if override.setting != "model.base")
