"""`python -m runner.entrypoints.embedded DIR ASKED NAME`: whether the image that this runs in holds a recipe's rows.

DIR: where they should lie; ASKED: what they should have been made for (`runner.prepared.asked`); NAME: the recipe's.
"""

from __future__ import annotations

import sys
from pathlib import Path

from runner.prepared import Rows

REMEDY = "Write `openshift.data_from: claim`, and the cluster prepares them; or build the image with EMBED={name}."


def main(folder: str, expected: str, name: str) -> int:
    rows = Rows.read(Path(folder))
    if rows and rows.asked == expected:
        print(f"The image holds {rows.train_rows:,} rows for training and {rows.validation_rows:,} for validation.")
        return 0
    what = "no rows of this recipe" if not rows else "rows that were made for other settings of `data`"
    print(f"The image holds {what} in `{folder}`.", REMEDY.format(name=name), sep="\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
