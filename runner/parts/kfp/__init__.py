"""A recipe as a pipeline of Kubeflow Pipelines: a task a stage and a task a gate."""

from runner.parts import Part

PART = Part(
    package=__name__,
    needs=("jobs", "openshift"),
    targets={"kfp": "target"},
)
