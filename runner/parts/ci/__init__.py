"""Judging recipes in CI: on a pull request of GitHub or GitLab, and as forms that such programs read."""
