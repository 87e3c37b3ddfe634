"""Alias of `runner.parts.kfp.task`, for one release: pods of 0.1 run the tasks of Kubeflow
Pipelines by this name."""

import runpy

if __name__ == "__main__":
    runpy.run_module("runner.parts.kfp.task", run_name="__main__")
