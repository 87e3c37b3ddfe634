"""The plan of a recipe for people and programs: on one screen, in all its parts, as JSON, as a picture."""
