"""From the text of a recipe to a Recipe: document (reading), check (judging), rules (contradictions)."""
