"""The real model takes training steps on fake tensors, and every byte is counted: `recipe plan --exact`."""

from runner.parts import Part

PART = Part(
    package=__name__,
    needs=("planner",),
    hooks={"trace": "tracing.trace", "trace_any_architecture": "tracing.any_architecture"},
)
