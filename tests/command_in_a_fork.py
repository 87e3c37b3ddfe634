"""`python -m tests.command_in_a_fork STDOUT STDERR ARGS…`: `recipe ARGS…` with its output in two
files, because a fork has one output for both."""

import os
import sys


def main() -> None:
    sys.stdout.flush()
    for number, file in enumerate(sys.argv[1:3], start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["recipe", *sys.argv[3:]]
    from runner.commands.cli import main as command

    command()


if __name__ == "__main__":
    main()
