"""Scenario pipeline: a model from random weights to a domain adapter, in stages with gates; cleaning of its text."""
