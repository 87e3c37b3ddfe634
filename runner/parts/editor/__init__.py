"""A recipe in the browser, for people who have no editor. The commands' own code judges, plans and rehearses."""
