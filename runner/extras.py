"""Extras: which of the package's extras brings what, and how it is installed."""

from __future__ import annotations

# By the names that packages are imported by; whatever else a command cannot import is our own bug.
EXTRAS = {
    "cluster": {"kubernetes"},
    "data": {"datatrove", "orjson", "py3langid", "spacy"},
    "edit": {"nicegui"},
    "flash": {"flash_attn"},
    "gguf": {"llama_cpp"},
    "registry": {"model_registry"},
    "report": {"jinja2"},
    "serve": {"fastapi", "openai", "uvicorn"},
    "train": {
        "PIL",
        "accelerate",
        "axolotl",
        "bitsandbytes",
        "datasets",
        "deepspeed",
        "gradio",
        "huggingface_hub",
        "liger_kernel",
        "lm_eval",
        "numpy",
        "openpyxl",
        "peft",
        "pyarrow",
        "pydantic",
        "tokenizers",
        "torch",
        "torchao",
        "transformers",
        "trl",
    },
}


def package(module: str) -> str:
    """The package that a module is of, both by the names that they are imported by."""
    return module.partition(".")[0]


def bringing(package: str) -> str | None:
    """The extra that brings a package; None where none does."""
    return next((extra for extra, packages in EXTRAS.items() if package in packages), None)


def install(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'recipe-runner[{extra}]'"
