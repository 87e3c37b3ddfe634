"""`python -m runner.parts.images.trainer [--prepare] CONFIG`: trains a network for small images by
`images.yaml`.

It runs in a stock training image with only this repository on its path. So everything in its pods
imports only the standard library, this package and that image's packages;
`tests/parts/images/test_images.py` lists them.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from runner.tools import child_process
from runner.tools.files import write_json
from runner.tools.problem import Stop
from runner.tools.process import hush
from runner.tools.run_files import LOG, STOPPED


def main(arguments: list[str] | None = None) -> int:
    """Trains; returns 0 if all results exist, 1 if it stopped, with the reason in
    `stopped.json`."""
    parser = argparse.ArgumentParser(prog="python -m runner.parts.images.trainer")
    parser.add_argument(
        "--prepare", action="store_true", help="prepare the images first, if they are not prepared"
    )
    parser.add_argument("config", help="images.yaml, as `recipe render` writes it")
    options = parser.parse_args(arguments)
    child_process.watch_parent()
    hush()
    import yaml

    from runner.parts.images import training

    config = yaml.safe_load(Path(options.config).read_text(encoding="utf-8"))
    run_dir = Path(config["recipe_runner"]["run_dir"])
    # `recipe run` saves the log itself; a pod's own log is deleted with the pod.
    if options.prepare and os.environ.get("RANK", "0") == "0":
        run_dir.mkdir(parents=True, exist_ok=True)
        # In its own session, because torchrun sends SIGTERM to the whole process group before the
        # last lines.
        tee = subprocess.Popen(
            ["tee", "-a", str(run_dir / LOG)], stdin=subprocess.PIPE, start_new_session=True
        )
        assert tee.stdin  # the pipe
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(tee.stdin.fileno(), stream.fileno())
        # `tee` ends when the last copy of its input does, which is when this process has ended.
        tee.stdin.close()
    try:
        training.train(config, prepare_first=options.prepare)
    except Stop as stop:
        write_json(run_dir / STOPPED, {"message": stop.text})
        print(child_process.stop_line(stop.text), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
