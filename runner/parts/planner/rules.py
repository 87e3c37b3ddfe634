"""Rules about rows, as far as they can be counted without preparing them."""

from collections.abc import Iterator

from runner.recipe.recipe import Recipe, sets_of
from runner.scenarios.contract import Rule
from runner.tools.problem import Problem

# Bytes of a file whose rows are counted.
SMALL_FILE = 100_000
# Lengths of the catalog are estimates, in part, so that a smaller share says nothing.
MOST_LEFT_OUT = 0.1


def rows_left_out(recipe: Recipe) -> Iterator[Problem]:
    """Of a data set of the catalog it is known about how long its rows are."""
    for home, section in recipe.data_sections:
        where, length = recipe.longest_row(home)
        prompt = section.get("system_prompt") or ""
        if not length or not section.knows("form") or len(prompt.split()) >= length:
            continue
        from runner.parts.planner.row_counts import catalogued, of_catalog

        for _, one in sets_of(home, section):
            lengths = of_catalog(catalogued(one) or {}, one)
            if lengths and (share := lengths.beyond(length)) > MOST_LEFT_OUT:
                message = f"By the catalog about {share:.0%} of the rows of `{one['hub']}` are longer than {length:,} tokens, and are left out."
                hint = "Raise `sequence_len`; `recipe prepare` counts in tokens, and stops where more than `max_lost_share` are lost."
                yield recipe.note(where, message, hint)


def enough_rows(recipe: Recipe) -> Iterator[Problem]:
    """Some to learn from, and some to measure on where they are shared out. Of a small file: a large one has rows."""
    for home, data in recipe.data_sets():
        file = recipe.folder / data["path"] if data.get("path") else None
        if not file or not file.is_file() or file.stat().st_size > SMALL_FILE:
            continue
        from runner.data import row_files, rows

        unit = "document" if file.suffix == ".txt" else "row"
        try:
            if unit == "row":
                rows.columns(file)
            count = rows.sample(file).count
        except row_files.Unreadable:
            continue
        if count < (2 if data.get("validation_share") else 1):
            there = f"one {unit} alone" if count else f"no {unit}"
            message = f"`{file}` has {there}, and some must be left to learn from and to measure on."
            hint = f"Write more {unit}s; a hundred are a beginning."
            yield recipe.document.problem((*home, "path"), message, hint, severity="note" if count else "error")


RULES: tuple[Rule, ...] = (rows_left_out,)
FILE_RULES: tuple[Rule, ...] = (enough_rows,)
