"""Alias of `runner.parts.openshift.controller`, for one release: pods of 0.1 run it by this name."""

import sys

from runner.parts.openshift.controller import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
