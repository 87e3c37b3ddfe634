"""A recipe in the browser, for people who have no editor. The commands' own code judges, plans and rehearses."""

from runner.parts import Part

PART = Part(
    package=__name__,
    needs=("plan_view", "planner"),
    command_module="server",
    commands={"edit": "Edit a recipe in the browser, with its plan as you type."},
)
