"""`recipe doctor`: what will not work on this machine."""

from pathlib import Path

import click

from runner.commands.options import complete_recipe, end, open_recipe, say, set_option


@click.command()
@click.argument("path", metavar="[RECIPE]", required=False, shell_complete=complete_recipe)
@set_option
@click.option("--out", metavar="DIR", help="Where results would go. Default: the current folder.")
def doctor(path: str | None, sets: tuple[str, ...], out: str | None) -> int:
    """Look at GPUs, packages, disk, memory, ports and the hub, and say what will not work, and what mends it."""
    from runner.tools.process import hush

    hush()
    from runner.parts.start import doctor as doctors
    from runner.parts.start.hardware import probe
    from runner.render import place
    from runner.scenarios import translate

    recipe = plan = None
    if path:
        recipe, _ = open_recipe(path, sets)
        plan = translate(recipe, place(recipe))
    asked = (doctors.models_of(recipe), doctors.ports_of(recipe)) if recipe else ()
    machine = probe(Path(out or ".").absolute(), *asked)
    findings = doctors.findings(machine, recipe, plan)
    for finding in findings:
        say(str(finding))
    problems, warnings = (sum(one.state == state for one in findings) for state in (doctors.PROBLEM, doctors.WARNING))
    counts = (
        f"{count} {word}{'' if count == 1 else 's'}" for count, word in ((problems, "problem"), (warnings, "warning"))
    )
    say("\n" + ", ".join(counts))
    if problems:
        end("Mend the problems above.", "doctor", *([path] if path else []))
    else:
        end("Nothing here stands in its way.", "rehearse", path or "RECIPE")
    return 1 if problems else 0
