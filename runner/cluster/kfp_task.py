"""Alias of `runner.parts.kfp.task`."""

import sys

from runner.parts.kfp.task import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
