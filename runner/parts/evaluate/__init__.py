"""Measuring the result of a stage, and the gates that decide whether the next one may start."""
