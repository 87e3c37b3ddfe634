"""Alias of `runner.parts.ci.pull_request`, for one release: other people's pipelines of 0.1 run it by this name."""

import os
import sys

from runner.parts.ci.pull_request import main
from runner.tools.problem import Stop

if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:], os.environ))
    except Stop as stop:
        print(stop.text, file=sys.stderr)
        sys.exit(stop.code)
