"""The `recipe` command: finds the subcommand, and turns every outcome into an exit code.

0 success; 1 a failure of recipe, data, training, gate, limit or cluster; 2 wrong use; 3 our own
bug; 130 on ^C.
"""

import errno
import importlib
import io
import sys
from functools import cache
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from runner import __version__, parts
from runner.tools import packaged
from runner.tools.problem import Interrupted, Stop, nearest, report_bug
from runner.tools.process import ensure_home, hush

# The core's own commands, each with its module and its line of `recipe --help`; the order of all
# commands, by heading; what to do about errors of the operating system, by their names.
_TABLE = packaged.toml(__file__, "commands.toml")
CORE = _TABLE["core"]
GROUPS = _TABLE["groups"]
REMEDIES = _TABLE["remedies"]
ORDER = tuple(name for names in GROUPS.values() for name in names)


@cache
def commands() -> dict[str, tuple[str, str]]:
    """The line of `recipe --help` for each command, and its module."""
    by_name = {
        name: (summary, f"runner.commands.{module}") for name, (module, summary) in CORE.items()
    } | parts.commands()
    return {
        name: by_name[name] for name in sorted(by_name, key=lambda name: (*ORDER, name).index(name))
    }


class _Commands(click.Group):
    """Imports a command's module when it is used, so that `check` never waits for what `run`
    needs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(commands())

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in commands():
            return None
        module = importlib.import_module(commands()[name][1])
        click_commands = (
            value for value in vars(module).values() if isinstance(value, click.Command)
        )
        return next(value for value in click_commands if value.name == name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in commands():
            from runner.catalog import tables

            part = parts.missing("commands", args[0])
            if part:
                raise Stop(parts.not_here(args[0], part), parts.INSTALL, code=2)
            synonyms = tables.table("synonyms")["commands"]  # other tools' names for our commands
            near = synonyms.get(args[0].lower().replace("_", "-")) or nearest(args[0], commands())
            if near:
                hint = f" Did you mean `{near}`?"
            else:
                hint = ""
            raise click.UsageError(f"There is no command `{args[0]}`.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes without the commands' modules, whose import takes too long while somebody
        types."""
        begun = []
        for name, (summary, _) in commands().items():
            if name.startswith(incomplete):
                begun.append((name, summary))
        return [CompletionItem(name, help=summary) for name, summary in begun]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, names in {
            **GROUPS,
            "More": tuple(name for name in commands() if name not in ORDER),
        }.items():
            listed = [(name, commands()[name][0]) for name in names if name in commands()]
            if listed:
                with formatter.section(heading):
                    formatter.write_dl(listed)


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="recipe")
@click.pass_context
def cli(context: click.Context) -> int | None:
    """Turn one YAML recipe into a trained model.

    The everyday commands are new, check, plan, rehearse and run. `recipe` alone shows how far you
    are with the recipe in this folder, and which command comes next.
    """
    if context.invoked_subcommand:
        return None
    from runner.check.batch import within
    from runner.commands.options import end
    from runner.commands.standing import standing

    if len(recipes := within(Path())) == 1:
        return standing(str(recipes[0]))
    click.echo(context.get_help(), err=True)
    if recipes:
        end(f"This folder has {len(recipes)} recipes. Name one of them after a command.", "list")
    else:
        end("There is no recipe in this folder yet.", "new", "my-demo", "--from", "survival")
    return 2


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits."""
    _speak_utf8()
    ensure_home()
    hush()
    sys.exit(_code(arguments))


def _speak_utf8() -> None:
    """What goes through a pipe or into a file is UTF-8 on Windows, too, where programs that read
    JSON expect it; its console shows what it can."""
    if sys.platform != "win32":
        return
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):
            continue
        if stream.isatty():
            stream.reconfigure(errors="replace")
        else:
            stream.reconfigure(encoding="utf-8")


def _code(arguments: list[str] | None) -> int:
    try:
        result = cli.main(arguments, prog_name="recipe", standalone_mode=False)
        if isinstance(result, int):
            return result
        return 0
    except Stop as stop:
        _tell(stop.text)
        return stop.code
    except click.ClickException as error:
        error.show()
        return 2
    except (KeyboardInterrupt, click.Abort) as ended:
        if _input_has_ended(ended):
            _tell(
                "The input ended before the question was answered, so nothing was started or changed."
            )
            _tell("Run the command in a terminal, or answer with options: `--help` lists them.")
            return 1
        # click replaces the exception for ^C, and keeps the original as its cause.
        interrupted = next(
            (cause for cause in (ended, ended.__cause__) if isinstance(cause, Interrupted)), None
        )
        _tell(str(interrupted or "Stopped by ^C. The same command starts again."))
        return 130
    except SystemExit:
        return 0  # click's own exit when the reader of a pipe (`| head`) stops
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = packaged.bringing(package)
        if extra:
            _tell(f"This needs the package `{package}`, which is not installed.")
            _tell(packaged.remedy(extra))
            return 1
        _tell(report_bug())
        return 3
    except OSError as error:
        _tell(f"{error.filename or 'A file'}: {error.strerror or error}.")
        remedy = REMEDIES.get(errno.errorcode.get(error.errno or 0, ""))
        if remedy:
            _tell(remedy)
        return 1
    except Exception:
        _tell(report_bug())
        return 3


def _input_has_ended(error: BaseException) -> bool:
    """Whether an exception comes from the end of the input, which click reports as it reports
    ^C."""
    while error.__context__ is not None:
        error = error.__context__
    return isinstance(error, EOFError)


def _tell(text: str) -> None:
    from runner.tools.text import printable

    click.echo(printable(text), err=True)
