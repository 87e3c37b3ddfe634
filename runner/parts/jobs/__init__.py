"""A plan as jobs of Kubernetes: PyTorchJob, TrainJob, and Jobs for what trains nothing."""
