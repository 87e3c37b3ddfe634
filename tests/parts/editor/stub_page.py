"""The page of `recipe edit` with a stand-in for the command `recipe`: RECIPE COMMAND…"""

from __future__ import annotations

import sys
from pathlib import Path

from runner.parts.editor.server import serve

if __name__ == "__main__":
    try:
        serve(
            Path(sys.argv[1]),
            0,
            lambda address: print(f"The page: {address}  (^C ends it)", flush=True),
            sys.argv[2:],
        )
    except KeyboardInterrupt:
        print("Stopped by ^C. The same command starts again.", file=sys.stderr)
