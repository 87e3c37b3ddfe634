"""`recipe diff`: what two recipes differ in, in settings and not in lines."""

import json
from dataclasses import asdict

import click

from runner.commands.options import complete_starter, end, say, table
from runner.parts.start import differences


@click.command()
@click.argument("before", metavar="A", shell_complete=complete_starter)
@click.argument("after", metavar="B", shell_complete=complete_starter)
@click.option("--plan", "plans", is_flag=True, help="Say what changes in memory, time, cost and emitted settings.")
@click.option("--price", type=click.FloatRange(min=0), help="What one GPU costs an hour, for `--plan`.")
@click.option(
    "--format", "style", type=click.Choice(["text", "json", "markdown"]), default="text", help="How to print it."
)
def diff(before: str, after: str, plans: bool, price: float | None, style: str) -> None:
    """Say what differs from A to B in settings; one that is left out counts as its default.

    Each is a recipe, a starter's name, or the folder of a run, whose recipe is read as it was when it ran.
    """
    old, new = differences.opened(before), differences.opened(after)
    settings = differences.in_settings(old, new)
    planned = differences.in_plans(old, new, price) if plans else []
    if style == "json":
        whole = {"before": before, "after": after, "settings": [asdict(one) for one in settings]}
        whole |= {"plan": [asdict(one) for one in planned]} if plans else {}
        say(json.dumps(whole, indent=2, ensure_ascii=False))
    elif style == "markdown":
        say(differences.markdown(settings, planned) or "No setting differs.")
    else:
        for head, some in (("SETTING", settings), ("PLAN", planned)):
            if some:
                table([(head, before, after, ""), *map(differences.row, some)])
                say()
        one = f"{'One' if settings else 'No'} setting differs."
        say(f"{len(settings)} settings differ." if len(settings) > 1 else one)
        end("What each needs a plan says.", "plan", after)
