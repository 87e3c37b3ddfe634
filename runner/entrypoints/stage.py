"""Alias of `runner.parts.jobs.stage`, which pods run by this name."""

import sys

from runner.parts.jobs.stage import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
