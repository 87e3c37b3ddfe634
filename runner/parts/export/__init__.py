"""A run's model in a form that others can load, with proof that it is the model that was trained."""

from runner.parts import Part

PART = Part(
    package=__name__,
    needs=("evaluate", "report"),
    command_module="commands",
    commands={
        "export": "Write a model for others, proven to be the trained one.",
        "merge": "Make an adapter part of its base model.",
        "push": "Send an exported model to the hub.",
        "register": "Enter a model in a Model Registry.",
    },
)
