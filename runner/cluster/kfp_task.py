"""Alias of `runner.parts.kfp.task`, for one release: pods of 0.1 run the tasks of Kubeflow Pipelines by this name."""

import sys

from runner.parts.kfp.task import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
