"""Getting started: a recipe of one's own from a starter or a few answers, and what settings, models and machines mean
for it."""
