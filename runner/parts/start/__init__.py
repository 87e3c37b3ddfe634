"""Getting started: a recipe of one's own from a starter or a few answers, and the meaning of settings, models and
machines for it."""
