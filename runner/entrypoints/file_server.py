"""Alias of `runner.parts.openshift.file_server`, which pods of `recipe fetch` and `recipe submit`
run by this name."""

import runpy

if __name__ == "__main__":
    runpy.run_module("runner.parts.openshift.file_server", run_name="__main__")
