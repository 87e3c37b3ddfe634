"""Getting started: an own recipe from a starter or a few answers, and the meaning of settings, models and machines."""
