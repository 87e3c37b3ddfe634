"""The names that columns of people's files usually have."""

from runner.tools import packaged

TABLES = packaged.toml(__file__, "columns.toml")
