"""Alias, for one release: pods of 0.1 run the controller and the tasks of Kubeflow Pipelines by these names."""
