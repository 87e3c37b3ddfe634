"""The loss of preference training on fake tensors: what TRL 1.9's DPOTrainer holds at once, operation by operation."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

BETA = 0.1


def loss(
    model: torch.nn.Module,
    reference: torch.nn.Module | None,
    output: Callable[..., Any],
    tokens: torch.Tensor,
) -> torch.Tensor:
    """The sigmoid loss over chosen answers, the first half of the rows, and rejected ones (Rafailov et al. 2023, arXiv
    2305.18290). What is only logged is computed too, because it takes memory.

    reference: None where an adapter is switched off instead. output: gives a model's output for `tokens` (rows, length).
    """
    from trl.trainer.utils import entropy_from_logits, selective_log_softmax

    def answers(logits: torch.Tensor) -> torch.Tensor:
        words = selective_log_softmax(logits[..., :-1, :], tokens[..., 1:])
        words[torch.zeros_like(words, dtype=torch.bool)] = 0.0  # the question's words do not count
        return words.sum(dim=1)

    outputs = output(model)
    own = answers(outputs.logits)
    with torch.no_grad(), model.disable_adapter() if reference is None else nullcontext():
        theirs = output(model if reference is None else reference)
        base = answers(theirs.logits)
    gain = (own - base).chunk(2, dim=0)
    preferred = -torch.nn.functional.logsigmoid(BETA * (gain[0] - gain[1])).mean()
    shifted = outputs.logits[..., :-1, :].detach()
    with torch.no_grad():
        entropy_from_logits(shifted)
        for side in shifted.chunk(2, dim=0):
            side.reshape(-1, side.shape[-1]).clone().mean(-1).sum()  # every word of it counts at worst
        shifted.chunk(2, dim=0)[0].argmax(dim=-1)
    return preferred
