"""Axolotl's own files: `check`, `plan`, `explain` and `diff` read them as they are, and `import` makes a recipe of one."""
