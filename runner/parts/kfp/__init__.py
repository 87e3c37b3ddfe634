"""A recipe as a pipeline of Kubeflow Pipelines: a task for each stage and each gate."""
