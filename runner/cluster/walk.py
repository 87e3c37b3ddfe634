"""Alias of `runner.parts.openshift.controller`, for one release: pods of 0.1 run it by this
name."""

import runpy

if __name__ == "__main__":
    runpy.run_module("runner.parts.openshift.controller", run_name="__main__")
