"""What the runner's own trainers hold fixed, and the plan has to know."""

from __future__ import annotations

# Basic blocks in each of the four stages of a network for images: 18 layers with weights, counting stem and classifier.
DEPTHS = {"resnet18": (2, 2, 2, 2)}
# Blocks of validation text that are kept, and that an evaluation looks at; more would only cost time at every evaluation.
VALIDATION_BLOCKS = 1024
