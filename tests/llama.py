"""llama.cpp on any processor, as the judge of files that it reads."""

from __future__ import annotations

from typing import Any

import pytest


def opened(file: str, **options: Any) -> Any:
    """A model of llama.cpp, on the processor. Skips the test without the extra `gguf`.

    It repacks no weights: on a processor with AMX, a library that was compiled there multiplies
    repacked ones with instructions that virtual machines refuse, and the process dies
    (llama-cpp-python 0.3.36). `recipe export` reads files in the same way."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="the extra `gguf` is not installed")
    library = llama_cpp.llama_cpp
    usual = library.llama_model_default_params

    def without_repacking() -> Any:
        parameters = usual()
        parameters.use_extra_bufts = False
        return parameters

    library.llama_model_default_params = without_repacking
    try:
        return llama_cpp.Llama(file, verbose=False, n_threads=2, **options)
    finally:
        library.llama_model_default_params = usual
