"""Notes on the columns of questions and answers that no recipe reads: long texts that are not
learned, and marks that a row is bad."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from runner.data import columns

LONG = 60  # characters of a text that a person would miss, on average
FILLED = 0.5  # the least share of rows that have it
# Names of columns in which people judge a row, in lower case.
JUDGING_NAMES = (
    *("rating", "feedback", "thumbs", "thumb", "vote", "helpful", "is_helpful", "good", "is_good"),
    *("quality", "weight", "verdict", "approved", "accepted", "bewertung", "hilfreich"),
)
# What is written there of a bad row, in lower case.
BAD_MARKS = (
    *("bad", "down", "thumbs_down", "thumbs down", "thumbsdown", "dislike", "negative", "👎"),
    *("-1", "0", "0.0", "false", "no", "nein", "rejected", "schlecht", "poor", "wrong"),
)
# Numbers as marks: of more than two, a low one is no certain verdict.
MOST_MARKS = 4
Row = Mapping[str, object]


def unread_columns(
    file: Path, names: Sequence[str], used: Collection[str], sample: Sequence[Row]
) -> Iterator[tuple[str, str]]:
    """A message and a hint for each column that a person may miss. names: of the columns; used:
    those that the recipe names; sample: the first rows."""
    if not sample:
        return
    unread_names = [name for name in names if name not in used]
    for name in unread_names:
        facts = columns.facts_of(name, sample)
        is_long = facts.holds_text and facts.mean_characters >= LONG
        if is_long and facts.filled_share >= FILLED and not facts.is_kind:
            yield (
                f"The column `{name}` of `{file}` has long texts, and is not learned.",
                f"To learn it too, add `[{name}]` to `answer`, or to `question` if it helps to answer.",
            )
    for name in unread_names:
        if name.lower().strip() in JUDGING_NAMES:
            yield from _bad_rows(file, name, sample)


def _bad_rows(file: Path, name: str, sample: Sequence[Row]) -> Iterator[tuple[str, str]]:
    filled = []
    for row in sample:
        value = columns.value_of(row, name)
        if value is not None and str(value).strip():
            filled.append(str(value).strip().lower())
    bad = [mark for mark in filled if mark in BAD_MARKS]
    is_verdict = 1 < len(set(filled)) <= MOST_MARKS
    if not bad or not is_verdict:
        return
    verb = "is" if len(bad) == 1 else "are"
    yield (
        f"Of the first {len(sample):,} rows of `{file}`, {len(bad):,} {verb} marked as bad (`{bad[0]}` in `{name}`). The model would learn them all the same.",
        "Delete these rows, unless the mark means something else.",
    )
