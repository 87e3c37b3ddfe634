"""Our own bugs: the trace goes into a file, the person gets a sentence."""

from __future__ import annotations

from runner import __version__


def report_bug() -> str:
    """Writes the trace of the exception that is being handled, and says where it is."""
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile(
        "w", prefix="recipe-bug-", suffix=".txt", delete=False, encoding="utf-8"
    ) as report:
        report.write(f"recipe-runner {__version__}\n")
        traceback.print_exc(file=report)
    return f"This is a bug in recipe-runner, not in your recipe. Its trace is in {report.name}; please report it."
