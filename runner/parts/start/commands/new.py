"""`recipe new`: a copy to start your own from, or a recipe from a few answers."""

from pathlib import Path

import click

from runner.check.validate import valid
from runner.commands.options import complete_starter, end, say, set_option
from runner.parts.start import wizard
from runner.parts.start.answers import Answers
from runner.parts.start.drafting import Draft, draft, minimal_starter, starter, write
from runner.recipe import overrides as changing
from runner.recipe.reading import read
from runner.tools.names import JOB_NAME
from runner.tools.problem import Stop


@click.command()
@click.argument("name")
@click.option(
    "--from",
    "source",
    metavar="RECIPE",
    help="A starter recipe's name, or any recipe file. Without it, a terminal is asked.",
    shell_complete=complete_starter,
)
@click.option(
    "--minimal",
    "short",
    is_flag=True,
    help="Take the minimal starter of that starter's scenario instead: on the same data, where there is one.",
)
@set_option
@wizard.options
def new(name: str, source: str | None, short: bool, sets: tuple[str, ...], **answers: str | None) -> None:
    """Copy a recipe under a new NAME, comments and all, with its schema and its sample beside it.

    Without `--from` it asks what you have, which model, and where it runs, and makes the recipe from that. Every answer is an
    option too.
    """
    name = name.removesuffix(".yaml")
    if not JOB_NAME.match(name):
        raise Stop(
            f"A recipe cannot be called `{name}`.",
            "A name has lower-case letters, digits and `-`, starts with a letter, and has at most 53 characters.",
        )
    given = {each: said for each, said in answers.items() if said}
    if source is None and not given and not wizard.terminal():
        raise click.MissingParameter(param_hint="'--from'", param_type="option")
    if source and given:
        raise Stop(
            "`--from` copies a recipe as it is, and does not go with answers about another one.",
            "Use `--set` beside it, or leave `--from` out.",
            code=2,
        )
    if short and source is None:
        raise Stop("`--minimal` goes with `--from`.", "Leave it out.", code=2)
    if Path(f"{name}.yaml").exists():
        raise Stop(f"`{name}.yaml` is there already.", "Choose another name, or delete it first.")
    wished, said = changing.from_options(sets), None
    if source:
        origin = minimal_starter(source) if short else starter(source)
        valid(read(origin))
        made = draft(origin, name, wished)
    else:
        made, said = wizard.asked(name, given, wished)
        origin = said.origin
    copied = write(made, origin)
    if not said:
        called = f"minimal/{origin.stem}" if short else source
        say(f"{made.target}: a copy of {called}. Edit it, then: recipe check {made.target}")
        for change in changing.apply(made.origin, made.changes)[1]:
            if change.setting not in {own.setting for own in (*made.wished, *made.moved)}:
                say(f"{change}")
    for file in copied:
        say(f"{file}: goes with it")
    for problem in made.mended_later:
        say(f"\nStill to do: {problem.message}\n{problem.hint}")
    if said:
        _answered(made, said, sets)


def _answered(made: Draft, said: Answers, sets: tuple[str, ...]) -> None:
    """What became of the answers, and how to get the same again."""
    secret = made.recipe.settings.get("openshift", {}).get("hub_token_secret")
    for problem in made.judged[1]:
        say(f"\n{problem}")
    say(f"\nThe same without questions:\n  {wizard.command(made.recipe.name, said, sets)}")
    if secret:
        say(f"`{said.base}` is gated: accept its licence on the hub, and write a token into the secret `{secret}`.")
    end(f"{made.target} is made from your answers, and checked.", "rehearse", str(made.target))
