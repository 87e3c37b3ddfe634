"""Alias of `runner.parts.openshift.helper_pod`, which helper pods run by this name."""

import sys

from runner.parts.openshift.helper_pod import look as main

if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
