"""recipe-runner: one YAML recipe, from a checked file to a trained model."""

__version__ = "0.1.0"
