"""Which of transformers' classes loads a language model."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def language_class(config: "PretrainedConfig") -> Any:
    """The class for a config, as Axolotl 0.19.0 chooses it (loaders/model.py,
    `_set_auto_model_loader`). For a model that also sees, it is the one with the parts that see:
    servers name layers as this class does, and ignore an adapter with other names."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as THAT_SEE,
    )

    if config.model_type in THAT_SEE:
        return AutoModelForImageTextToText
    return AutoModelForCausalLM


def language_class_of(name: str, trust_remote_code: bool, revision: str | None = None) -> Any:
    """The same for a model's name or folder. Raises OSError or ValueError if it has no config."""
    from transformers import AutoConfig

    if revision is None:
        config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
    else:
        config = AutoConfig.from_pretrained(
            name, trust_remote_code=trust_remote_code, revision=revision
        )
    return language_class(config)
