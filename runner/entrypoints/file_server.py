"""Alias of `runner.parts.openshift.file_server`, which pods of `recipe fetch` and `recipe submit` run by this name."""

import sys

from runner.parts.openshift.file_server import main

if __name__ == "__main__":
    sys.exit(main())
