"""Problems in rows that can be read: duplicates, personal data, languages, short answers. It reports, and removes nothing."""

from runner.parts import Part

PART = Part(
    package=__name__,
    rules="first_rows",
    hooks={"examiner": "doctor.Examiner"},
)
