"""How much a loss may differ between one batch of rows and as many batches of one row."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from runner.parts.proof.judging import TOLERANCE, loss_tolerance

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("number_format", ["bfloat16", "float16"])
def test_the_tolerance_is_what_rounding_changes_at_most(number_format):
    """`eps` is the distance from 1 to the next number; rounding moves a number by half of it."""
    arguments = SimpleNamespace(bf16=number_format == "bfloat16", fp16=number_format == "float16")
    eps = torch.finfo(getattr(torch, number_format)).eps
    assert loss_tolerance(SimpleNamespace(args=arguments)) == eps / 2


def test_the_tolerance_in_fp32_is_that_of_sums_in_another_order():
    arguments = SimpleNamespace(bf16=False, fp16=False)
    assert loss_tolerance(SimpleNamespace(args=arguments)) == TOLERANCE
