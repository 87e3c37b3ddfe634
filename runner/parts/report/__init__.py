"""A run as one HTML page that can be sent. `facts` reads the run folder, `charts` draws, `sentences` says it, `page`
puts it into a template."""

from runner.parts import Part

PART = Part(
    package=__name__,
    needs=("evaluate",),
    hooks={
        "at_the_end": "page.at_the_end",
        "after_fetch": "page.leave",
        "page_of_runs": "page.of_runs",
        "provenance": "page.provenance",
    },
    command_module="commands",
    commands={
        "runs": "Compare the runs of this folder in a table.",
        "report": "Create a page about one run or several.",
        "why": "Explain why a job, a run or a log failed, with a remedy.",
    },
)
