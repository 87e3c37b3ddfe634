"""Scenario image-classification: a ResNet for small images, with its own kind of data and its own trainer."""
