"""Editing: a recipe in the browser, for people who have no editor. What judges, plans and rehearses is what the commands call."""
