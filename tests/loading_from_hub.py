"""Loads what recipes and the catalog name from the hub that HF_ENDPOINT names, with the project's
own code. A process of its own, because the hub's client reads that variable when it is imported.

`python -m tests.loading_from_hub FILE`: FILE names `data_sets` with a split, `models` and
`tokenizers`; prints what each gave, as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def columns_of_a_row(name: str, split: str) -> list[str]:
    """The columns of the first row, as the data stage reads them."""
    from runner.data.data_sets import DataSource, from_hub

    hub, _, subset = name.partition(":")
    source = DataSource(hub=hub, revision="main", subset=subset or None, split=split, path=None)
    with from_hub(source, stream=True) as dataset:
        return list(next(iter(dataset)))


def entry_of_a_model(name: str) -> dict[str, object]:
    """What `recipe models add` writes down."""
    from runner.parts.start.commands.models import on_hub
    from runner.recipe import lock

    return lock.entry_of(on_hub(name, "main"), "main")


def tokens_of_a_model(name: str) -> int:
    """The size of the tokenizer that rows are cut with."""
    from runner.data import tokenizers

    tokenizer = tokenizers.load(name, "main", False)
    return len(tokenizer)


def main(file: str) -> None:
    wanted = json.loads(Path(file).read_text("utf-8"))
    found = {
        "data_sets": {
            f"{name} {split}": columns_of_a_row(name, split) for name, split in wanted["data_sets"]
        },
        "models": {name: entry_of_a_model(name) for name in wanted["models"]},
        "tokenizers": {name: tokens_of_a_model(name) for name in wanted["tokenizers"]},
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
