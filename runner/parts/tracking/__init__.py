"""Runs at MLflow or Weights & Biases: settings, curves and results under the same names in both."""
