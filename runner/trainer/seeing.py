"""Models that also see, trained on text: their loss is that of a language model."""

from functools import wraps
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.loss.loss_utils import LOSS_MAPPING
from transformers.modeling_outputs import CausalLMOutputWithPast


def sees(model: PreTrainedModel) -> bool:
    """Whether a model has parts that see, and writes text."""
    settings = model.config
    reads_images = getattr(settings, "vision_config", None) is not None
    return reads_images and model.get_output_embeddings() is not None


def parts_that_see(model: PreTrainedModel) -> dict[str, Any]:
    """The weights of a model, maybe with an adapter, that text never reaches, by name."""
    if getattr(model.config, "vision_config", None) is None:
        return {}
    of_text = {id(weight) for weight in model.get_decoder().parameters()}
    head = model.get_output_embeddings()
    if head is not None:
        of_text |= {id(weight) for weight in head.parameters()}
    return {
        name: weight
        for name, weight in model.named_parameters()
        if id(weight) not in of_text and not name.startswith("score.")
    }


def checksums(model: PreTrainedModel) -> dict[str, int]:
    """A number for each of these weights, which training would change with the weight: the sum of
    its bytes, because packed weights may be no numbers."""
    return {
        name: int(weight.detach().reshape(-1).view(torch.uint8).sum(dtype=torch.int64))
        for name, weight in parts_that_see(model).items()
    }


def compute_loss_as_for_text(model: PreTrainedModel, fused: bool) -> None:
    """Gives a model that also sees the loss of language models. The classes of transformers 5.16.1
    for it leave out `num_items_in_batch`, so that each micro batch has the same weight, whatever
    its tokens; some compute a loss that no setting replaces; and of the fused losses, Axolotl
    0.19.0 gives Liger's to the text class of Qwen3.5 alone (integrations/liger/models/qwen3_5.py).
    fused: whether Liger computes it, without whole logits."""
    plain_forward = model.forward
    model.loss_function = LOSS_MAPPING["ForCausalLM"]
    model.accepts_loss_kwargs = True

    # The Trainer reads from its signature which columns of a row the model takes.
    @wraps(plain_forward)
    def forward(
        *arguments: object,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | None = None,
        **inputs: object,
    ) -> Any:
        if labels is None:
            return plain_forward(*arguments, **inputs)
        if fused and model.training:
            return _fused_loss(model, labels, num_items_in_batch, *arguments, **inputs)
        output = plain_forward(*arguments, **inputs)
        output["loss"] = model.loss_function(
            logits=output.logits,
            labels=labels,
            vocab_size=model.config.get_text_config().vocab_size,
            num_items_in_batch=num_items_in_batch,
        )
        return output

    model.forward = forward


def _fused_loss(
    model: PreTrainedModel,
    labels: Tensor,
    num_items_in_batch: Tensor | None,
    *arguments: object,
    **inputs: object,
) -> CausalLMOutputWithPast:
    from liger_kernel.transformers.model.loss_utils import LigerForCausalLMLoss

    # Llama 4 has its LM head beside its half for text, others beside the whole model.
    inner_model = getattr(model, "model", None) or model.language_model.model
    settings = model.config.get_text_config()
    loss = LigerForCausalLMLoss(
        hidden_states=inner_model(*arguments, **inputs)[0],
        lm_head_weight=model.get_output_embeddings().weight,
        labels=labels,
        hidden_size=settings.hidden_size,
        num_items_in_batch=num_items_in_batch,
        final_logit_softcapping=getattr(settings, "final_logit_softcapping", None),
    )
    return CausalLMOutputWithPast(loss=loss)
