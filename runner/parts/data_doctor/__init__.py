"""Problems in readable rows: duplicates, personal data, languages, short answers. It reports them and removes none."""
