"""Stands in for the command `recipe` where a real training would take minutes: it prints training's
events, keeps its steps in a file as a checkpoint, and ends when the test says so."""

from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from runner.recipe import reading
from runner.run.run_folder import folder
from runner.tools import child_process

STEPS = 40
CHECKPOINT, FINISH, COMMANDS = Path("checkpoint"), Path("finish"), Path("commands")
STOPPED = 130


def train(file: str, run_kind: str) -> int:
    """A step every 0.2 s, from the last checkpoint on, and then none until the file `finish` is
    there."""
    home = folder(reading.read(file).data["name"], run_kind)
    home.path.mkdir(parents=True, exist_ok=True)
    home.mark("running", recipe=reading.read(file).data["name"])
    step = int(CHECKPOINT.read_text()) if CHECKPOINT.exists() else 0
    print(f"continues after step {step}")
    child_process.tell("begin", steps=STEPS, step=step)
    try:
        while not FINISH.exists():
            if step < STEPS - 1:
                step += 1
                child_process.tell("step", steps=STEPS, step=step, loss=3 - step / STEPS)
            time.sleep(0.2)
    except KeyboardInterrupt:
        CHECKPOINT.write_text(str(step))
        home.mark("stopped")
        return STOPPED
    home.mark("finished")
    return 0


def chat() -> int:
    """A page that says which process answers."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"chat of process {os.getpid()}".encode())

        def log_message(self, *_: object) -> None:
            """Prints nothing."""

    server = HTTPServer(("127.0.0.1", 0), Answers)
    print("loading …")
    print(f"The page: http://127.0.0.1:{server.server_port}/  (^C ends it)", flush=True)
    server.serve_forever()
    return 0


def main(command: str, *words: str) -> int:
    child_process.watch_parent()
    with COMMANDS.open("a", encoding="utf-8") as commands:
        commands.write(json.dumps([command, *words, os.getpid()]) + "\n")
    if command == "chat":
        return chat()
    return train(words[-1], "run" if command == "run" else "rehearsal")


if __name__ == "__main__":
    try:
        code = main(*sys.argv[1:])
    except KeyboardInterrupt:
        code = STOPPED
    sys.exit(code)
