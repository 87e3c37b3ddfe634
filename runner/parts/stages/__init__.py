"""Scenario stages: a list of trainings. Each starts from the model of the one before."""
