"""`python -m runner.parts.serve.server_wrapper FOLDER MODULE ARGUMENTS`: somebody else's server, as its command runs it, which ends when
whoever started it is gone. It works in a folder with nothing in it, because it would take one there for a model of that name."""

import os
import runpy
import sys

from runner.tools.process import hush
from runner.trainer import child_process


def main() -> None:
    child_process.watch_parent()
    hush()
    os.chdir(sys.argv[1])
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
