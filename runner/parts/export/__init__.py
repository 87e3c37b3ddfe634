"""A run's model in a form that others can load, with proof that it is the model that was trained."""

from runner.parts import Part

PART = Part(
    package=__name__,
    needs=("evaluate", "report"),
    command_module="commands",
    commands={
        "export": "Export the trained model to other formats, and verify it.",
        "merge": "Merge an adapter into its base model.",
        "push": "Upload an exported model to the hub.",
        "register": "Add a model to a Model Registry.",
    },
)
