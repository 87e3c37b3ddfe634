"""Axolotl's own files: `check`, `plan`, `explain` and `diff` read them, and `import` turns one into a recipe."""
