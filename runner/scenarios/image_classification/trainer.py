"""Alias of `runner.parts.images.trainer`, the name that images of 0.1 know it by, too."""

import sys

from runner.parts.images.trainer import main

if __name__ == "__main__":
    sys.exit(main())
