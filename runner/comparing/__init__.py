"""Comparing: a recipe beside another one, with other values of a setting, and on other cards; each is planned before it is said."""
