"""A plan as jobs of Kubernetes: PyTorchJob, TrainJob, and Jobs for what trains nothing."""

from runner.parts import Part

PART = Part(
    package=__name__,
    targets={"pytorchjob": "pytorchjob", "trainjob": "trainjob"},
    hooks={"callbacks": "training_metrics.callbacks", "computed": "kubernetes.computed"},
)
