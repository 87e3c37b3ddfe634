"""The stage `data` of a recipe with stages: it prepares the rows of every training."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runner import scenarios
from runner.data import RenderedExample, reading
from runner.data.prepared import PreparedRows
from runner.data.tokenizers import Pretrained
from runner.entrypoints import prepare
from runner.scenarios.contract import Work
from runner.tools.files import replacing
from runner.tools.problem import Tell
from runner.tools.process import helping_pod


def data(work: Work, tell: Tell) -> None:
    """Prepares the text and the tokenizer of a model with random weights, and the rows of each
    training in a folder of its name; a rehearsal creates the twin of each base model."""
    if "lengths" in work:
        scenarios.work("pipeline.text")(work, tell)
        if helping_pod():
            return
    out = Path(work["out"])
    twins = work.get("twins", {})
    each: list[PreparedRows] = []
    model = twin = None
    for name, rows in _rows(work).items():
        model = work["models"].get(name, model)
        if name in work["models"] and model:
            prepare.fetch_model(model, tell)
        tell(f"{name}:")
        drawn = work["earlier_rows"].get(name)
        if drawn:
            folder = out / name / "own"
        else:
            folder = out / name
        one = {**work, "out": str(folder), "data": rows, "model": model, "twin": twins.get(name)}
        if name not in twins and twin:
            # Later stages read their rows with the tokenizer of the same twin.
            one["data"] = rows | {"tokenizer": asdict(Pretrained(twin["folder"], "main", False))}
        twin = twins.get(name, twin)
        prepare.write_rows(one, lambda line: tell(f"  {line}"))
        each.append(PreparedRows.read(folder) or PreparedRows())
        if drawn:
            tell(f"  {mix(folder, out / drawn['of'], out / name, drawn['share'], drawn['seed'])}")
            each[-1].write(out / name)
    drawn = [rows.sampled_from or rows.train_rows + rows.validation_rows for rows in each]
    PreparedRows(
        sum(rows.train_rows for rows in each),
        sum(rows.validation_rows for rows in each),
        sum(drawn) if any(rows.sampled_from for rows in each) else None,
    ).write(out)


# The columns of prepared conversations that Axolotl reads.
READ = ("messages", "tools")


def mix(own: Path, earlier: Path, out: Path, share: float, seed: int) -> str:
    """Writes a stage's training rows with rows of an earlier stage, each drawn at most once, and
    its own validation rows; returns a line about the mixture. share: of the earlier rows."""
    import pyarrow as pa
    from datasets import Dataset
    from pyarrow import parquet

    mine, others = (
        table.select([name for name in READ if name in table.column_names])
        for table in (parquet.read_table(folder / "train.parquet") for folder in (own, earlier))
    )
    wanted = round(len(mine) * share / (1 - share))
    drawn = sorted(random.Random(seed).sample(range(len(others)), min(len(others), wanted)))
    # Permissive, because turns of one may have fields that those of the other lack.
    mixed = pa.concat_tables(
        [mine, others.take(drawn)], promote_options="permissive"
    ).replace_schema_metadata()
    tables = {"train": Dataset(mixed).shuffle(seed=seed).with_format("arrow")[:]}
    if (own / "validation.parquet").is_file():
        tables["validation"] = parquet.read_table(own / "validation.parquet")
    else:
        (out / "validation.parquet").unlink(missing_ok=True)
    for split, table in tables.items():
        with replacing(out / f"{split}.parquet") as partial:
            parquet.write_table(table, partial, compression="zstd")
    if wanted > len(drawn):
        short = f"; {wanted - len(drawn):,} more are missing for that share"
    else:
        short = ""
    return f"{'mixed':<20} {len(mine):>9,}   of its own, {len(drawn):,} of {earlier.name}{short}"


def _rows(work: Work) -> dict[str, dict[str, Any]]:
    return {
        name: dict(part)
        for name, part in work.items()
        if isinstance(part, Mapping) and "kind" in part
    }


def _seen(work: Work) -> dict[str, Iterator[RenderedExample]]:
    texts: dict[str, Callable[..., Any]] = getattr(scenarios.part("pipeline", "work"), "FIRST", {})
    shown: dict[str, Iterator[RenderedExample]] = {}
    if "lengths" in work:
        shown = reading(texts["text"])(work)
    shown |= {name: rows for name, part in _rows(work).items() if (rows := scenarios.seen(part))}
    return shown


# The functions that show the rows that a function here prepares (see `runner.scenarios.first`).
FIRST = {"data": _seen}
