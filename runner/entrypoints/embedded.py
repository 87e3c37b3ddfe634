"""Alias of `runner.parts.openshift.image_data_check`, which helper pods run by this name."""

import sys

from runner.parts.openshift.image_data_check import main

if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
