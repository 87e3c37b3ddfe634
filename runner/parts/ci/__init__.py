"""Judges recipes in CI: on a pull request of GitHub or GitLab, and in the formats of such programs."""
