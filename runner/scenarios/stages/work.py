"""The stage `data` of a recipe with stages: it prepares the rows of every training."""

import random
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runner import scenarios
from runner.data import RenderedExample, reading
from runner.data.prepared import PreparedRows
from runner.data.tokenizers import Pretrained
from runner.parts.contract import Work
from runner.plan import ROWS_KEY
from runner.scenarios import preparing
from runner.tools.files import replacing
from runner.tools.problem import Tell
from runner.tools.process import helping_pod


def data(work: Work, tell: Tell) -> None:
    """Prepares the text and the tokenizer of a model with random weights, and the rows of each
    training in a folder of its name; a rehearsal creates the twin of each base model."""
    if "lengths" in work:
        scenarios.work("pretrain.text")(work, tell)
        if helping_pod():
            return
    out = Path(work["out"])
    twins = work.get("twins", {})
    prepared = list[PreparedRows]()
    model = None
    twin = None
    for name, rows in _rows(work).items():
        model = work["models"].get(name, model)
        if name in work["models"] and model:
            preparing.fetch_model(model, tell)
        tell(f"{name}:")
        if name not in twins and twin:
            # Later stages read their rows with the tokenizer of the same twin.
            rows["tokenizer"] = asdict(Pretrained(twin["folder"], "main", False))
        twin = twins.get(name, twin)
        of_stage = {"data": rows, "model": model, "twin": twins.get(name)}
        prepared.append(_write_rows({**work, **of_stage}, out, name, tell))
    _total(prepared).write(out)


def _write_rows(work: Work, out: Path, name: str, tell: Tell) -> PreparedRows:
    """Writes the rows of a stage, if it draws some with those of an earlier one. work: as
    `preparing.write_rows` takes it, without its folder."""
    draw = work["earlier_rows"].get(name)
    folder = out / name
    if draw:
        folder = out / name / "own"
    preparing.write_rows({**work, "out": str(folder)}, lambda line: tell(f"  {line}"))
    rows = PreparedRows.read(folder) or PreparedRows()
    if draw:
        tell(f"  {mix(folder, out / draw['of'], out / name, draw['share'], draw['seed'])}")
        rows.write(out / name)
    return rows


def _total(prepared: list[PreparedRows]) -> PreparedRows:
    """The counts of all stages together."""
    sampled_from: int | None = None
    if any(rows.sampled_from for rows in prepared):
        sampled_from = sum(
            rows.sampled_from or rows.train_rows + rows.validation_rows for rows in prepared
        )
    return PreparedRows(
        sum(rows.train_rows for rows in prepared),
        sum(rows.validation_rows for rows in prepared),
        sampled_from,
    )


# The columns of prepared conversations that Axolotl reads.
READ = ("messages", "tools")


def mix(stage_folder: Path, earlier: Path, out: Path, share: float, seed: int) -> str:
    """Writes a stage's training rows with rows of an earlier stage, each drawn at most once, and
    its own validation rows; returns a line about the mixture. share: of the earlier rows."""
    import pyarrow as pa
    from datasets import Dataset
    from pyarrow import parquet

    stage_rows = _training_rows(stage_folder)
    earlier_rows = _training_rows(earlier)
    wanted = round(len(stage_rows) * share / (1 - share))
    drawn = sorted(
        random.Random(seed).sample(range(len(earlier_rows)), min(len(earlier_rows), wanted))
    )
    # Permissive, because turns of one may have fields that those of the other lack.
    mixed = pa.concat_tables(
        [stage_rows, earlier_rows.take(drawn)], promote_options="permissive"
    ).replace_schema_metadata()
    tables = {"train": Dataset(mixed).shuffle(seed=seed).with_format("arrow")[:]}
    if (stage_folder / "validation.parquet").is_file():
        tables["validation"] = parquet.read_table(stage_folder / "validation.parquet")
    else:
        (out / "validation.parquet").unlink(missing_ok=True)
    for split, table in tables.items():
        with replacing(out / f"{split}.parquet") as partial:
            parquet.write_table(table, partial, compression="zstd")
    if wanted > len(drawn):
        short = f"; {wanted - len(drawn):,} more are missing for that share"
    else:
        short = ""
    return (
        f"{'mixed':<20} {len(stage_rows):>9,}   of its own, {len(drawn):,} of {earlier.name}{short}"
    )


def _training_rows(folder: Path) -> Any:
    """The prepared training rows, as a table of the columns that Axolotl reads."""
    from pyarrow import parquet

    table = parquet.read_table(folder / "train.parquet")
    return table.select([name for name in READ if name in table.column_names])


def _rows(work: Work) -> dict[str, dict[str, Any]]:
    rows_by_stage = {}
    for key, rows in work.items():
        if key.startswith(ROWS_KEY):
            rows_by_stage[key.removeprefix(ROWS_KEY)] = dict(rows)
    return rows_by_stage


def _seen(work: Work) -> dict[str, Iterator[RenderedExample]]:
    texts: dict[str, Callable[..., Any]] = getattr(scenarios.part("pretrain", "work"), "FIRST", {})
    seen_rows: dict[str, Iterator[RenderedExample]] = {}
    if "lengths" in work:
        seen_rows = reading(texts["text"])(work)
    for name, part in _rows(work).items():
        rows = scenarios.seen(part)
        if rows:
            seen_rows[name] = rows
    return seen_rows


# The functions that show the rows that a function here prepares (see `runner.scenarios.first`).
FIRST = {"data": _seen}
