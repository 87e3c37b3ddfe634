"""Alias of `runner.parts.ci.pull_request`, for one release: other people's pipelines of 0.1 run it
by this name."""

import runpy

if __name__ == "__main__":
    runpy.run_module("runner.parts.ci.pull_request", run_name="__main__")
