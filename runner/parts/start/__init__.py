"""Drafting: a recipe of one's own from a starter, with what somebody wants otherwise, before anything is written."""
