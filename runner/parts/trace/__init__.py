"""The real model takes training steps on fake tensors, and every byte is counted: `recipe plan --exact`."""

from runner.parts import Part

PART = Part(
    package=__name__,
    needs=("plan_view", "planner"),
    hooks={"trace": "tracing.trace", "plan_by_trace": "tracing.plan_by_trace"},
)
