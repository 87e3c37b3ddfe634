"""Training on a few plain machines, without Kubernetes."""

from runner.parts import Part

PART = Part(
    package=__name__,
    sections=("nodes",),
    rules="target",
    targets={"nodes": "target"},
    hooks={"followers": "target.followers"},
)
