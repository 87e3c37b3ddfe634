"""Facts about models, GPUs, data sets and the pinned engine, kept as data with a source for
each."""

from runner.catalog.hardware import Gpu, alike, gpu, gpu_names, label_of
from runner.catalog.models import (
    ChatTemplate,
    Model,
    PackagedModel,
    UnknownArchitecture,
    cached_model,
    chat_template,
    from_config,
    model,
    model_ids,
    model_types,
    original,
    packaged_model,
    packaged_models,
    release_year,
    teaching,
    unsuitable,
)
from runner.catalog.tables import (
    AXOLOTL_VERSION,
    DEEPSPEED_VERSION,
    HERE,
    Facts,
    Optimizer,
    axolotl_settings,
    dataset,
    dataset_of,
    deepspeed_settings,
    fused_loss_models,
    near_dataset,
    optimizers,
    table,
)
from runner.tools.settings import Schema
