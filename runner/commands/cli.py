"""The `recipe` command: finds the verb, and turns every end into an exit code.

0 done; 1 the recipe, data, training, gate, limit or cluster said no; 2 wrong use; 3 our own bug; 130 on ^C.
"""

from __future__ import annotations

import errno
import gc
import importlib
import sys

import click
from click.shell_completion import CompletionItem

from runner import __version__
from runner.tools import extras
from runner.tools.bugs import report_bug
from runner.tools.problem import Interrupted, Stop

# A new command costs one line here: its name, and what `recipe --help` says of it.
COMMANDS = {
    "list": "Show the starter recipes.",
    "new": "Copy a recipe to start your own.",
    "show": "Show a recipe with every default, and where it comes from.",
    "explain": "Say what a setting does, what it costs, and where it goes.",
    "gpus": "Show the GPUs that a recipe can name, and how it does on each.",
    "models": "Show the models that a recipe can name; write down others.",
    "diff": "Say what differs between two recipes, in settings and in plans.",
    "check": "Say what is wrong in recipes, with line and remedy.",
    "edit": "Edit a recipe in the browser, with its plan as you type.",
    "plan": "Say whether it fits, how long, how much, and what to change.",
    "render": "Write what the cluster needs.",
    "site": "Write what its namespace needs, once.",
    "prepare": "Prepare a recipe's data.",
    "rehearse": "Run all of it here with a tiny model.",
    "run": "Train on the GPUs of this machine.",
    "evaluate": "Say whether training made it better.",
    "gate": "Say whether a stage's gate is open.",
    "promote": "Overrule a closed gate, on record.",
    "doctor": "Say what will not work on this machine.",
    "submit": "Send a recipe to the cluster.",
    "status": "Say how far jobs on the cluster are.",
    "why": "Say why a job, a run or a log has gone wrong, with the remedy.",
    "logs": "Show what a job's machines write.",
    "fetch": "Bring results from the cluster.",
    "stop": "End a job on the cluster.",
    "open": "Show the cluster's TensorBoard.",
    "ask": "Ask a trained model.",
    "chat": "Talk to the original and the trained model, side by side.",
    "serve": "Serve both models by OpenAI's API.",
    "export": "Write a model for others, proven to be the trained one.",
    "push": "Send an exported model to the hub.",
    "register": "Enter a model in a Model Registry.",
    "merge": "Make an adapter part of its base model.",
    "compare": "Show the model's answers before and after training.",
    "report": "Make a page to show of a run, or of several.",
}


class _Commands(click.Group):
    """Imports a command's module when it is used, so that `check` never waits for what `run` needs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"runner.commands.{name}")
        command: click.Command = getattr(module, module.__dict__.get("COMMAND", name))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS:
            from runner.catalog import synonyms
            from runner.tools.names import nearest

            near = synonyms.command(args[0]) or nearest(args[0], COMMANDS)
            raise click.UsageError(
                f"There is no command `{args[0]}`." + (f" Did you mean `{near}`?" if near else ""), ctx
            )
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Without the commands' modules, which take longer than a key stroke."""
        begun = [(name, told) for name, told in COMMANDS.items() if name.startswith(incomplete)]
        return [CompletionItem(name, help=told) for name, told in begun]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="recipe")
def cli() -> None:
    """One YAML recipe, from a checked file to a trained model."""


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits."""
    # Modules and plans hold few rings of objects, and looking for them was a quarter of what a check of many recipes took.
    gc.set_threshold(100_000, 20, 20)
    sys.exit(_code(arguments))


def _code(arguments: list[str] | None) -> int:
    try:
        result = cli.main(arguments, prog_name="recipe", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except Stop as stop:
        click.echo(stop.text, err=True)
        return stop.code
    except click.ClickException as error:
        error.show()
        return 2
    except (KeyboardInterrupt, click.Abort) as ended:
        # click has its own word for ^C, and keeps who said it.
        told = next((each for each in (ended, ended.__cause__) if isinstance(each, Interrupted)), None)
        click.echo(str(told or "Interrupted."), err=True)
        return 130
    except SystemExit:
        # click's own answer to a reader (`| head`) that has seen enough.
        return 0
    except ModuleNotFoundError as error:
        return _missing(error)
    except OSError as error:
        click.echo(f"{error.filename or 'A file'}: {error.strerror or error}.", err=True)
        if error.errno in REMEDIES:
            click.echo(REMEDIES[error.errno], err=True)
        return 1
    except Exception:
        return _bug()


# True for every command; not all have `--out`.
_NO_FOLDER = "A file stands where a folder is needed. Use another folder, or move the file away."
_NO_RIGHT = "You have no right to write or read there. Use another folder, or ask who owns it."
REMEDIES = {
    errno.EEXIST: _NO_FOLDER,
    errno.ENOTDIR: _NO_FOLDER,
    errno.EACCES: _NO_RIGHT,
    errno.EPERM: _NO_RIGHT,
    errno.EROFS: _NO_RIGHT,
    errno.ENOSPC: "Free some space, or use a folder on another disk.",
}


def _missing(error: ModuleNotFoundError) -> int:
    """A package that an extra brings is not there: say which to install."""
    package = extras.package(error.name or "")
    if extra := extras.bringing(package):
        click.echo(f"This needs the package `{package}`, which is not installed.", err=True)
        click.echo(extras.install(extra), err=True)
        return 1
    return _bug()


def _bug() -> int:
    click.echo(report_bug(), err=True)
    return 3
