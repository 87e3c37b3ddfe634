"""recipe-runner: one YAML recipe, from a checked file to a trained model."""

from runner.tools.first_process import end_on_sigterm

__version__ = "0.1.0"

# Here, because every program of a pod imports this module first, and its other imports take
# seconds.
end_on_sigterm()
