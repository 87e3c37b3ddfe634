"""`recipe edit`, and its server: the page for the browser of this machine, at a local address with
a token, for a folder."""

import os
import secrets
import sys
import webbrowser
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from runner import parts
from runner.check import batch
from runner.commands.options import command, say
from runner.parts.editor import judging
from runner.parts.editor.chat_process import ChatProcess
from runner.parts.editor.run_process import RECIPE, RunProcess
from runner.recipe import reading
from runner.run.run_folder import find
from runner.run.run_folder import folder as run_folder
from runner.tools.problem import Stop
from runner.tools.process import HOST, bound_port
from runner.tools.text import template

HERE = Path(__file__).parent
REHEARSE_FIRST = "On the page of this recipe, press Rehearse or Train here. When that has ended, reload this page."


class Guarded:
    """An ASGI application behind a token: the address with the token sets a cookie, which every
    request needs. Other pages on this machine would send that cookie too, so their origin is
    refused."""

    def __init__(self, inner: Callable[..., Awaitable[None]], token: str, port: int) -> None:
        self.inner = inner
        self.token = token
        self.cookie = f"recipe-edit-{port}"
        self.origins = (f"http://{HOST}:{port}", None)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.inner(scope, receive, send)
            return
        from starlette.requests import HTTPConnection
        from starlette.responses import PlainTextResponse, RedirectResponse

        request = HTTPConnection(scope)
        has_token = secrets.compare_digest(
            request.query_params.get("token", "").encode(), self.token.encode()
        )
        if has_token and scope["type"] == "http" and scope["path"] == "/":
            redirect = RedirectResponse("/", 303)
            redirect.set_cookie(self.cookie, self.token, httponly=True, samesite="strict")
            await redirect(scope, receive, send)
        elif (
            request.cookies.get(self.cookie) == self.token
            and request.headers.get("origin") in self.origins
        ):
            await self.inner(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            refusal = "Open the whole address that `recipe edit` prints, with its token."
            await PlainTextResponse(refusal, 403)(scope, receive, send)


def _report(name: str) -> str:
    """The page of the latest run of a recipe of that name, or a page that says why there is
    none."""
    try:
        if Path(name).name != name:
            raise Stop(f"`{name}` is not the name of a recipe.")
        parts.require("report")
        from runner.parts.report import page

        return page.of_runs(find(name, None))
    except Stop as stop:
        return _notice("No report yet", stop, REHEARSE_FIRST)


def _chat_address(folder: Path, first_file: Path, file: Path, chat: ChatProcess) -> str:
    """The address of the chat page for the recipe in a file. Raises Stop if it has no trained
    model, or is not one of the page's recipes."""
    if file not in (*batch.within(folder), first_file):
        raise Stop(f"`{file}` is not a recipe of this page.")
    name = str(reading.read(file).data.get("name", ""))
    return chat.address(file, run_folder(name, "run"))


def _notice(title: str, stop: Stop, remedy: str = "") -> str:
    """A page with a reason."""
    from markupsafe import Markup

    style = Markup((HERE / "page.css").read_text(encoding="utf-8"))
    sentences = stop.text.replace("`", "").split("\n")
    return template(HERE / "notice.html.jinja").render(
        title=title, style=style, sentences=sentences, remedy=remedy
    )


def serve(
    file: Path,
    port: int,
    ready: Callable[[str], None],
    recipe_command: Sequence[str] = RECIPE,
) -> None:
    """Serves the page of a recipe, or of the recipes of a folder, until ^C. port: 0 for any free
    one; ready: called with the address; recipe_command: the words of the command `recipe`. Raises
    Stop if the port is taken, or there is nothing to edit."""
    import uvicorn
    from fastapi import FastAPI, Request
    from fastapi.responses import HTMLResponse, RedirectResponse, Response
    from nicegui import app as pages
    from nicegui import ui

    from runner.parts.editor import page

    folder, first_file = page.opened(file)
    process = RunProcess(recipe_command)
    chat = ChatProcess(recipe_command)

    def shown() -> None:
        try:
            page.Page(folder, first_file, process).build()
        except Stop as stop:  # the file was removed
            ui.label(stop.text)

    application = FastAPI(openapi_url=None)

    async def proposals(request: Request) -> list[judging.Proposal]:
        return judging.proposals(**await request.json())

    async def meaning(request: Request) -> dict[str, str] | None:
        place = await request.json()
        return judging.meaning(place["text"], place["line"])

    def chat_page(file: str) -> Response:
        try:
            return RedirectResponse(_chat_address(folder, first_file, Path(file), chat), 303)
        except Stop as stop:
            return HTMLResponse(_notice("No chat yet", stop))

    def close() -> None:
        chat.close()
        process.close()

    for answer in (proposals, meaning):
        application.post(f"/{answer.__name__}")(answer)
    application.get("/report", response_class=HTMLResponse)(_report)
    application.get("/chat")(chat_page)
    pages.add_static_file(local_file=HERE / "editor.js", url_path="/editor.js")
    pages.on_shutdown(close)
    ui.page("/", title="recipe edit")(shown)
    # The page has its own stylesheet, because Tailwind rebuilds its own in the browser at every
    # change. After that many seconds of silence a tab counts as closed; a busy one answers sooner.
    ui.run_with(
        application, show_welcome_message=False, dark=None, tailwind=False, reconnect_timeout=15
    )
    with bound_port(port) as socket:
        number = socket.getsockname()[1]
        token = secrets.token_urlsafe(24)
        guarded = Guarded(application, token, number)
        server = uvicorn.Server(
            uvicorn.Config(guarded, log_level="error", timeout_graceful_shutdown=2)
        )
        socket.listen()  # an early browser waits instead of failing
        ready(f"http://{HOST}:{number}/?token={token}")
        server.run(sockets=[socket])


@command
def edit(path: str, port: int) -> None:
    """Edit a recipe in the browser: its text with completion and problems as you type, a form, the
    plan, a rehearsal; train it here, and chat with its model.

    RECIPE is a file, or a folder with recipes. Default: the current folder. Only this machine can
    open the page. It writes nothing until you save.
    """
    import nicegui  # noqa: F401 - said here, before anything is shown

    def ready(address: str) -> None:
        say(f"The page: {address}  (^C ends it)")
        # If there is no desktop, some browsers would take the terminal.
        desktop = (
            sys.platform == "darwin"
            or os.environ.get("DISPLAY")
            or os.environ.get("WAYLAND_DISPLAY")
        )
        if sys.stdout.isatty() and desktop:
            webbrowser.open(address)

    serve(Path(path), port, ready)
