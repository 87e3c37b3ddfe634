"""`recipe edit`: a recipe in the browser."""

import os
import sys
import webbrowser
from pathlib import Path

import click

from runner.commands.options import port_option, say


@click.command()
@click.argument("path", metavar="RECIPE", default=".")
@port_option(7861, "the page")
def edit(path: str, port: int) -> None:
    """Edit a recipe in the browser: its text with completion and problems as you type, a form, the plan, a
    rehearsal.

    RECIPE is a file, or a folder with recipes. Default: the current folder. Only this machine can open the page. It
    writes nothing until you save.
    """
    import nicegui  # noqa: F401 - said here, before anything is shown

    from runner.parts.editor.server import serve

    def ready(address: str) -> None:
        say(f"The page: {address}  (^C ends it)")
        # If there is no desktop, some browsers would take the terminal.
        if sys.stdout.isatty() and (
            sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        ):
            webbrowser.open(address)

    serve(Path(path), port, ready)
