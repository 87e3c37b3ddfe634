"""Alias of `runner.parts.openshift.controller`."""

import sys

from runner.parts.openshift.controller import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
