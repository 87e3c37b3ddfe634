"""The rules of this part: the share of experts that an adapter trains, and the number and length of
a recipe's rows."""

import re
from collections.abc import Iterator

from runner import catalog
from runner.data import row_files, rows, text_sides
from runner.parts.contract import Rule
from runner.parts.planner import parameters, row_counts, samples
from runner.parts.planner.forecast import said
from runner.parts.planner.workload import Adapter
from runner.recipe.document import Path_
from runner.recipe.recipe import Recipe, sets_of
from runner.scenarios.language.translation import adapted
from runner.tools.files import is_text_file
from runner.tools.problem import Problem, Severity, plural
from runner.tools.settings import Settings

# The largest file, in bytes, whose rows are counted.
SMALL_FILE = 100_000
# With fewer rows a model learns hardly more than these (benchmarks/what_it_takes.py).
ROWS_OF_A_STYLE = 50
MORE_ROWS = (
    "About fifty rows teach a style. Each fact needs rows of its own, best in several wordings."
)
# A smaller share is within the error of the catalog's lengths.
MOST_LEFT_OUT = 0.1


def experts(recipe: Recipe) -> Iterator[Problem]:
    """A note on what an adapter leaves untrained in a mixture of experts."""
    for name, stage_recipe in recipe.stage_recipes.items() or (("", recipe),):
        facts = stage_recipe.model_facts
        train = stage_recipe.settings.get("train") or {}
        rank = train.get("lora_rank")
        if not facts or not facts.has_experts or not rank or train.get("lora_experts"):
            continue
        try:
            targets = tuple(adapted(facts, train))
            pattern = train.get("lora_pattern") or ""
            shapes = parameters.adapted(facts, Adapter(rank, targets, pattern=pattern))
            total = parameters.total(facts)
            held = parameters.of_experts(facts)
        except (catalog.UnknownArchitecture, re.error):
            continue
        trained = sum(rank * sum(shape) for shape in shapes)
        if not trained:
            continue
        message = said("experts", trained=trained / total, held=held / total, train=train)
        yield recipe.note(recipe.setting_of(name, "train.lora_layers"), *message)


def rows_left_out(recipe: Recipe) -> Iterator[Problem]:
    """A note for a data set of the catalog whose rows are too long."""
    for home, section in recipe.data_sections:
        where, length = recipe.longest_row(home)
        prompt = section.get("system_prompt") or ""
        if not length or not section.knows("system_prompt"):
            continue
        if len(prompt.split()) >= length:
            continue
        for _, data_set in sets_of(home, section):
            lengths = row_counts.of_catalog(catalog.dataset_of(data_set), data_set)
            if lengths and (share := lengths.beyond(length)) > MOST_LEFT_OUT:
                yield recipe.note(
                    where,
                    f"According to the catalog, about {share:.0%} of the rows of `{data_set['hub']}` are longer than {length:,} tokens, and are left out.",
                    "Raise `sequence_len`. `recipe prepare` counts the tokens, and stops if more than `max_lost_share` of the rows are lost.",
                )


def enough_rows(recipe: Recipe) -> Iterator[Problem]:
    """A small file needs rows to train on, and, if they are split, rows to validate on."""
    for home, data, file in recipe.data_files():
        if file.stat().st_size > SMALL_FILE:
            continue
        text_column = data.get("text")
        unit = "row"
        if is_text_file(file) and text_column:
            unit = "document"
        try:
            if unit == "row":
                rows.columns(file, sheet=data.get("sheet"))
            sampled = samples.sample(file, sheet=data.get("sheet"), text_column=text_column)
            count = sampled.count
        except row_files.Unreadable:
            continue
        least = 1
        if data.get("validation_share"):
            least = 2
        place = (*home, "path")
        if count >= least:
            if count < ROWS_OF_A_STYLE and data.knows("question"):
                rows_in_words = f"{count:,} {plural(unit, count)}"
                yield recipe.note(place, f"`{file}` has only {rows_in_words}.", MORE_ROWS)
            continue
        message = said("few_rows", file=file, count=count, unit=unit)
        severity: Severity = "error"
        if count:
            severity = "note"
        yield recipe.document.problem(place, *message, severity=severity)


def _sides_of(recipe: Recipe, home: Path_, data: Settings) -> list[text_sides.TextSide] | None:
    """The sides of a section of plain text. None if its rows are no plain text, or not all of it is
    in small files here."""
    all_texts = list[str]()
    for _, data_set in sets_of(home, data):
        column, name = data_set.get("text"), data_set.get("path")
        if not column or not name or recipe.elsewhere(name):
            return None
        texts = text_sides.texts_of(recipe.folder / name, column, data_set.get("sheet"))
        if texts is None:
            return None
        all_texts += texts
    return text_sides.split(all_texts, data.get("validation_share") or 0, data["seed"])


def enough_text(recipe: Recipe) -> Iterator[Problem]:
    """A note for a small text without a block of tokens on a side of the split, by the likely
    tokens of its bytes. `recipe prepare` counts them."""
    for home, data in recipe.data_sections:
        if not data.get("text") or not data.get("path"):
            continue
        where, block_tokens = recipe.longest_row(home)
        sides = _sides_of(recipe, home, data)
        if not block_tokens or not sides or not sides[0].documents:
            continue  # another rule reports a file without documents
        for side in sides:
            if side.likely_tokens >= block_tokens:
                continue
            length = text_sides.fitting_block(sides, block_tokens)
            if length:
                hint = f"Give more text, or write `{where[-1]}: {length}`."
            elif len(sides) > 1 and text_sides.fitting_block(sides[:1], block_tokens):
                hint = "Give more text, or delete `validation_share`: then none of it is held back."
            else:
                hint = "Give more text."
            yield recipe.note(
                where,
                f"The {side.name} text has about {side.likely_tokens:,} tokens, too few for one block of {block_tokens:,}.",
                hint,
                check="too-little-text",
            )


RULES: tuple[Rule, ...] = (rows_left_out, experts)
FILE_RULES: tuple[Rule, ...] = (enough_rows, enough_text)
