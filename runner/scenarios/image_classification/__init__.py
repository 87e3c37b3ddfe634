"""Scenario image-classification. Axolotl trains no images, so it brings its own kind of data and its own engine."""

PREPARERS = {"images": "runner.scenarios.image_classification.data"}
ENGINES = {"images": "runner.scenarios.image_classification.trainer"}
MEASURES = {"images": "runner.scenarios.image_classification.measuring"}
ASKED = {"images": "runner.scenarios.image_classification.asking"}
