"""`python -m runner.entrypoints.embedded DIR ASKED CONTENTS NAME`: whether the image that this runs in holds a recipe's rows.

DIR: where they should lie; ASKED, CONTENTS: what they should have been made for, and from (`runner.data.report`; empty
CONTENTS: that is not known); NAME: the recipe's.
"""

import sys
from pathlib import Path

from runner.data.report import PreparedRows

REMEDY = "Write `openshift.data_from: claim`, and the cluster prepares them; or build the image with EMBED={name}."


def main(folder: str, expected: str, contents: str, name: str) -> int:
    rows = PreparedRows.read(Path(folder))
    as_asked = rows is not None and rows.asked == expected
    if rows is not None and as_asked and contents in ("", rows.contents):
        print(f"The image holds {rows.train_rows:,} rows for training and {rows.validation_rows:,} for validation.")
        return 0
    other = "from the data file as it was before it changed" if as_asked else "for other settings of `data`"
    what = "no rows of this recipe" if rows is None else f"rows that were made {other}"
    print(f"The image holds {what} in `{folder}`.", REMEDY.format(name=name), sep="\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
