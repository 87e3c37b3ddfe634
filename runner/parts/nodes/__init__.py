"""Training on a few plain machines, without Kubernetes."""
