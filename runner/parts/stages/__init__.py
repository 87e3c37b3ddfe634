"""Scenario stages: a list of trainings, each of the model of the one before."""
