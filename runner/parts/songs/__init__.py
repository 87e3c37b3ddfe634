"""Rows that are songs: some are drawn, and each becomes a task that it can answer: to write it or to recognise it."""
