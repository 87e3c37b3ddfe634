"""How many examples of LLaMA-Factory and TRL `recipe import` can make a recipe of, and what stands
in the way of the rest.

    python -m benchmarks.other_examples llama-factory FOLDER
    python -m benchmarks.other_examples trl FOLDER

FOLDER is a checkout of the project's repository. The files are read only; nothing of them is kept
but these counts.
"""

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # this clone's package, not an installed one

from runner.parts.axolotl_files import commands, others
from runner.recipe import reading
from runner.recipe.document import Document
from runner.tools.problem import Stop

# Settings of LLaMA-Factory's files that do not train.
ASIDE = {"export_dir", "infer_backend", "predict_with_generate"}


def of_llama_factory() -> Iterator[Document]:
    for file in sorted(Path("examples").rglob("*.yaml")):
        document = reading.read(file)
        if others.trainer(document) == "llama-factory" and not ASIDE & document.data.keys():
            yield document


def of_trl() -> Iterator[Document]:
    """Every different command in the pages and scripts that names a model."""
    seen = set()
    files = [
        file
        for home in ("docs/source", "examples", "trl/scripts")
        for file in sorted(Path(home).rglob("*.*"))
    ]
    for text in (file.read_text("utf-8") for file in files if file.suffix in (".md", ".py", ".sh")):
        for command in re.finditer(r"\btrl[ \t]+[a-z]+\b|\b\w+/scripts/\w+\.py\b", text):
            try:
                document = others.command_line(
                    "job.sh", re.split("```|\n\n", text[command.start() :])[0]
                )
            except Stop:  # a variable of the shell
                continue
            if (
                document
                and "model_name_or_path" in document.data
                and str(document.data) not in seen
            ):
                seen.add(str(document.data))
                yield document


def main(trainer: str, folder: str) -> None:
    os.chdir(folder)
    ends, ways = Counter[str](), Counter[str]()
    for document in of_llama_factory() if trainer == "llama-factory" else of_trl():
        made = others.read(document, trainer)
        problems = made.refused or commands.judged(made)
        ends[
            "refused" if made.refused else "imported with a change" if problems else "imported"
        ] += 1
        ways.update({re.sub("`[^`]*/[^`]*`", "`…`", problem.message) for problem in problems})
    print(
        f"{trainer}: {sum(ends.values())} examples; "
        + "; ".join(f"{count} {end}" for end, count in ends.most_common())
    )
    for message, count in ways.most_common():
        print(f"{count:4} {message}")


if __name__ == "__main__":
    main(*sys.argv[1:])
