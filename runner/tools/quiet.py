"""Keeps the libraries behind training from writing over what the runner has to say."""

import logging
import os
import sys
import warnings
from typing import Any, cast

# What each says at import or load that no user can act on: kernels for other GPUs, deprecations of its own code.
_CHATTY = (
    *("torchao", "torch.utils._pytree", "DeepSpeed", "transformers", "datasets", "huggingface_hub"),
    "bitsandbytes.backends.cpu.ops",
)


def hush() -> None:
    """Call it before the first import of torch, transformers or datasets."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    for library in ("HF_HUB", "TRANSFORMERS", "DATASETS"):
        os.environ.setdefault(f"{library}_VERBOSITY", "error")
    for name in _CHATTY:
        # A filter, because DeepSpeed sets its own level when it is imported.
        logging.getLogger(name).addFilter(_errors_only)
    warnings.filterwarnings(
        "ignore", module=r"(torch|torchao|transformers|datasets|huggingface_hub|bitsandbytes)(\.|$)"
    )


def without_scikit_learn() -> None:
    """Call it before the first import of transformers, in a process that runs models alone: 5.16 imports scikit-learn for a
    kind of generation that nobody here asks for, and that is a quarter of its time."""
    sys.modules.setdefault("sklearn", cast(Any, None))


def _errors_only(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR
