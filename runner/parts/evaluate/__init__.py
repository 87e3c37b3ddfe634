"""Measuring the result of a stage, and the gates that decide whether the next one may start."""

from runner.parts import Part

PART = Part(
    package=__name__,
    sections=("gates", "evaluation"),
    rules="metrics",
    hooks={
        "measured": "metrics.measured",
        "in_rehearsal": "metrics.in_rehearsal",
        "before_stage": "gates.before_stage",
        "after_stage": "gates.after_stage",
        "on_record": "gates.promotions",
        "gate_in_pod": "gates.gate_in_pod",
        "promote_in_pod": "gates.promote_in_pod",
        "seal_key": "seal.key",
    },
    command_module="commands",
    commands={
        "evaluate": "Measure whether training improved the model.",
        "gate": "Show whether a stage has passed its gate.",
        "promote": "Overrule a closed gate, and record who did it and why.",
        "compare": "Show the model's answers before and after training.",
    },
)
