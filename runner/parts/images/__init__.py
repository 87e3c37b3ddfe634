"""Scenario image-classification. Axolotl trains no images, so it brings its own kind of data and its own engine."""

PREPARERS = {"images": "runner.parts.images.data"}
ENGINES = {"images": "runner.parts.images.trainer"}
MEASURES = {"images": "runner.parts.images.measuring"}
ASKED = {"images": "runner.parts.images.predict"}
