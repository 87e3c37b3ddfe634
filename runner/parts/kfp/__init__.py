"""A recipe as a pipeline of Kubeflow Pipelines: a task a stage and a task a gate."""
