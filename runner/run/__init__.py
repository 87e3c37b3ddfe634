"""Runs: launches stages, keeps run folders, and asks and compares their models."""
