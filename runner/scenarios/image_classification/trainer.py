"""Alias of `runner.parts.images.trainer`, also used by images of 0.1."""

import sys

from runner.parts.images.trainer import main

if __name__ == "__main__":
    sys.exit(main())
