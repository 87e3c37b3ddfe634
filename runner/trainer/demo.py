"""`python -m runner.trainer.demo RUN_DIR`: the demo questions, put to the original and to the tuned model."""

from __future__ import annotations

import sys
from pathlib import Path

from runner.tools.files import read_json, write_json, write_text
from runner.tools.quiet import hush, without_scikit_learn
from runner.tools.run_files import ANSWERS, DEMO, DEMO_OUTPUTS
from runner.trainer import parent_watch
from runner.trainer.generation import answers, chats


def main(run_dir: Path) -> None:
    """Writes `demo_outputs/answers.json` and, for people, `demo_outputs/answers.md`."""
    parent_watch.start()
    hush()
    without_scikit_learn()
    demo = read_json(run_dir / DEMO)
    before, after = (list(answers(chat, demo["questions"])) for chat in chats(run_dir, demo))
    categories = demo.get("categories") or {}
    rows = [
        ({"category": categories[question]} if question in categories else {})
        | {"question": question, "before": old, "after": new}
        for question, old, new in zip(demo["questions"], before, after, strict=True)
    ]
    write_json(run_dir / ANSWERS, rows)
    text = [f"# Before and after: {demo['base_model']}", ""]
    last = None
    for row in rows:
        if (category := row.get("category")) != last:
            text += [f"## {category}", ""]
            last = category
        text += [
            f"{'###' if category else '##'} {row['question']}",
            "",
            "**Before**",
            "",
            row["before"],
            "",
            "**After**",
            "",
            row["after"],
            "",
        ]
    write_text(run_dir / DEMO_OUTPUTS / "answers.md", "\n".join(text))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
