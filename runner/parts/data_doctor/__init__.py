"""Problems in rows that can be read: duplicates, personal data, languages, short answers. It reports, and removes nothing."""
