"""The plan of a recipe for people and programs: on one screen, in full, as JSON, as a picture."""
