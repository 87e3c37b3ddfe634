"""Alias of `runner.parts.nodes.node`, which the scripts of plain machines run by this name."""

from runner.parts.nodes.node import main

if __name__ == "__main__":
    main()
