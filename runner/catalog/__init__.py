"""Facts about models, GPUs, data sets and the pinned engine, kept as data with a source for each."""

from runner.catalog.datasets import dataset, near_dataset
from runner.catalog.engine import (
    AXOLOTL_SETTINGS_FILE,
    AXOLOTL_VERSION,
    DEEPSPEED_SETTINGS_FILE,
    DEEPSPEED_VERSION,
    axolotl_refusal,
    axolotl_settings,
    deepspeed_settings,
    fused_kernels,
    fused_loss_models,
)
from runner.catalog.gpus import Gpu, alike, gpu, gpu_names, label_of
from runner.catalog.models import (
    NO_GEOMETRY,
    TWIN_OF,
    Model,
    Unsuitable,
    cached_model,
    config_of,
    from_config,
    model,
    model_ids,
    model_types,
    near_model,
    original,
    unsuitable,
)
from runner.catalog.networks import Network, network
from runner.catalog.tables import HERE, table
from runner.catalog.templates import ChatTemplate, chat_template

__all__ = [
    "AXOLOTL_SETTINGS_FILE",
    "AXOLOTL_VERSION",
    "DEEPSPEED_SETTINGS_FILE",
    "DEEPSPEED_VERSION",
    "HERE",
    "NO_GEOMETRY",
    "TWIN_OF",
    "ChatTemplate",
    "Gpu",
    "Model",
    "Network",
    "Unsuitable",
    "alike",
    "axolotl_refusal",
    "axolotl_settings",
    "cached_model",
    "chat_template",
    "config_of",
    "dataset",
    "deepspeed_settings",
    "from_config",
    "fused_kernels",
    "fused_loss_models",
    "gpu",
    "gpu_names",
    "label_of",
    "model",
    "model_ids",
    "model_types",
    "near_dataset",
    "near_model",
    "network",
    "original",
    "table",
    "unsuitable",
]
