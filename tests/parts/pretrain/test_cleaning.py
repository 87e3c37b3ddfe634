"""Where text is cleaned: the same documents from this machine's cores, from a queue of Slurm, and
from Ray."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runner.check.validate import load
from runner.parts.pretrain import architecture, cleaning, executors
from runner.parts.pretrain.architecture import Cleaning, Corpus, CorpusSet
from runner.recipe.overrides import from_options
from runner.run import run_folder
from runner.scenarios import translate
from runner.tools.problem import Stop
from tests.conftest import ROOT, own_time

SEVEN_B = ROOT / "recipes" / "seven-b.yaml"

# A Slurm that runs each task of an array job on this machine, one after the other, in the
# background.
COMMANDS = {
    "sbatch": """
        for word in "$@"; do case $word in --*) ;; *) script=$word ;; esac; done
        echo "$@" >> "$FAKE_SLURM/submitted"
        id=$(wc -l < "$FAKE_SLURM/submitted")
        cp "$script" "$FAKE_SLURM/$id.sh"
        last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$FAKE_SLURM/$id.sh")
        log=$(sed -n 's/^#SBATCH --output=//p' "$FAKE_SLURM/$id.sh")
        echo "Submitted batch job $id"
        grep -q merge_stats "$FAKE_SLURM/$id.sh" && exit 0  # figures for people, which nothing here reads
        touch "$FAKE_SLURM/$id.running"
        (
          for task in $(seq 0 "$last"); do
            [ -e "$FAKE_SLURM/broken" ] && continue
            SLURM_ARRAY_TASK_ID=$task SLURM_JOB_ID=$id SLURM_NODELIST=here RUN_OFFSET=0 bash "$FAKE_SLURM/$id.sh" > "$log" 2>&1
          done
          rm "$FAKE_SLURM/$id.running"
        ) < /dev/null > /dev/null 2>&1 &
    """,
    "srun": """while case $1 in launch*) false ;; esac; do shift; done; exec "$@" """,
    "squeue": """test -e "$FAKE_SLURM/$3.running" && echo "$3 running" """,
    "scontrol": "echo here",
    "scancel": """echo "$@" >> "$FAKE_SLURM/cancelled" """,
}
SLURM = Cleaning(
    executor="slurm", tasks=2, partition="cpu", time="1:00:00", sbatch_args={"account": "lab"}
)


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> Path:
    """A folder with what was submitted to a Slurm of this machine."""
    folder, commands = tmp_path / "slurm", tmp_path / "bin"
    folder.mkdir()
    commands.mkdir()
    for name, text in COMMANDS.items():
        (commands / name).write_text(f"#!/bin/bash\n{text}")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("FAKE_SLURM", str(folder))
    monkeypatch.setattr(executors, "POLL_SECONDS", 0.2)
    return folder


def corpus(*options: str) -> Corpus:
    """The text of seven-b's data stage, on the sample."""
    changes = [
        "stages.0.data.hub=",
        "stages.0.data.path=data/seven-b-text.jsonl",
        "stages.0.data.limit=",
        *options,
    ]
    recipe = load(SEVEN_B, from_options(changes))[0].pretraining
    return architecture.everything(
        recipe, run_folder.folder("cleaning", "rehearsal").place(), ()
    ).text


def texts(folder: Path) -> dict[str, bytes]:
    """Every file of kept and of dropped documents."""
    files = [file for kind in ("text", "dropped") for file in folder.glob(f"{kind}/*")]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def assert_same(folder: Path, text: Corpus, where: Cleaning) -> None:
    here = cleaning.clean(text, folder / "here", Cleaning(tasks=1))
    there = cleaning.clean(text, folder / "there", where)
    assert len(texts(folder / "here")) >= 3
    assert texts(folder / "there") == texts(folder / "here")
    assert (there.documents_in, there.kept, there.dropped) == (
        here.documents_in,
        here.kept,
        here.dropped,
    )


def on_hub(text: Corpus, name: str, limit: int | None) -> Corpus:
    """The same text as a dataset of the hub."""
    return replace(
        text,
        sets=tuple(
            replace(one, path=None, hub=name, subset=None, limit=limit, share=0.5)
            for one in text.sets
        ),
    )


def test_documents_of_the_hub_are_those_of_a_file(tmp_path):
    """A folder stands in for the dataset, as the library reads both."""
    (tmp_path / "set").mkdir()
    shutil.copy(ROOT / "recipes/data/seven-b-text.jsonl", tmp_path / "set" / "train.jsonl")
    text = corpus()
    half = replace(text, sets=tuple(replace(one, share=0.5) for one in text.sets))
    found = []
    for name, each in (("file", half), ("hub", on_hub(text, str(tmp_path / "set"), None))):
        report = cleaning.clean(each, tmp_path / name, Cleaning(tasks=1))
        found.append((report.kept, list(cleaning.documents(tmp_path / name))))
    assert found[0] == found[1] and 100 < found[0][0] < 300, "of 469 documents"
    assert (
        cleaning.clean(
            on_hub(text, str(tmp_path / "set"), 10), tmp_path / "few", Cleaning(tasks=2)
        ).kept
        < 10
    )


@pytest.mark.parametrize("limit", [None, 60])
@pytest.mark.parametrize("answers", [0, 1])
def test_a_hub_that_is_lost_before_or_while_documents_are_read_is_said(
    limit, answers, tmp_path, monkeypatch
):
    """The library raises this if its second request cannot be sent."""

    def load_dataset(*_, **__):
        said.append("asked")
        if len(said) > answers:
            raise RuntimeError("Cannot send a request, as the client has been closed.")
        return SimpleNamespace(n_shards=1)

    said: list[str] = []
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(
        Stop,
        match="`somebody/texts` cannot be loaded from the hub: this machine cannot reach the hub",
    ):
        cleaning.clean(on_hub(corpus(), "somebody/texts", limit), tmp_path, Cleaning(tasks=1))


@pytest.mark.parametrize(
    ("kind", "others"),
    [
        pytest.param("jsonl", (4, 16), id="jsonl", marks=pytest.mark.long),
        pytest.param("csv", (4,), id="csv"),
    ],
)
def test_any_number_of_tasks_leaves_the_same_bytes(kind, others, tmp_path):
    """Duplicates in other tasks' parts too: of each kind the first one stays."""
    sample = [
        json.loads(line)["text"]
        for line in (ROOT / "recipes/data/seven-b-text.jsonl").open(encoding="utf-8")
    ][:60]
    near = [text.replace(" the ", " the old ", 1) for text in sample[:20]]
    file = tmp_path / f"text.{kind}"
    if kind == "jsonl":
        lines = [
            json.dumps({"text": text}) for text in [*sample, *sample[30:50], *near, "too short"]
        ]
        file.write_text("\n".join(["{broken", *lines]), encoding="utf-8")
    else:
        pd.DataFrame({"text": [*sample, *sample[30:50], *near, "too short"]}).to_csv(
            file, index=False
        )
    text, left = replace(of_file(file), max_lost_share=0.5), {}
    for tasks in (1, *others):
        report = cleaning.clean(text, tmp_path / str(tasks), Cleaning(tasks=tasks, workers=1))
        left[tasks] = texts(tmp_path / str(tasks))
    assert (
        report.dropped["exact duplicate of a kept document"] >= 15
        and report.dropped["too few words"] >= 1
    )
    assert report.dropped["near duplicate of a kept document"] >= 15
    assert next(cleaning.documents(tmp_path / "4")) == sample[0]
    assert len(left[1]) >= 4 and all(left[tasks] == left[1] for tasks in others)


@pytest.mark.parametrize("language", ["en", "de"])
def test_quick_words_are_those_of_datatrove(language, monkeypatch):
    from datatrove.utils.word_tokenizers import SpaCyTokenizer

    sample = (ROOT / "README.md").read_text("utf-8")[
        :9000
    ] + "Don't :) z.B. Äpfel … 10 km/h, e.g. https://a.b/c?d=e  U.S.A. \u00a0x"
    texts = [*sample.split("\n\n"), sample, "", "IS_ALPHA is a word"]
    slow, quick = SpaCyTokenizer(language), cleaning.words_of(language)
    assert type(quick) is cleaning.QuickWords
    told = [slow.word_tokenize(text) for text in texts]
    assert [quick.word_tokenize(text) for text in texts] == told
    # It begins anew, as after half a million words.
    monkeypatch.setattr(cleaning, "MOST_WORDS", len(quick.tokenizer.vocab) - 1)
    assert quick.word_tokenize(sample) == told[-3]


@pytest.mark.long
def test_slurm_leaves_the_same_files_as_this_machine(slurm, tmp_path):
    assert_same(tmp_path, corpus("stages.0.data.deduplicate=exact"), SLURM)
    scripts = [
        file.read_text() for file in slurm.glob("*.sh") if "merge_stats" not in file.read_text()
    ]
    assert len(scripts) == 4
    for script in scripts:
        assert "#SBATCH --partition=cpu" in script and "#SBATCH --time=1:00:00" in script
        assert "#SBATCH --account=lab" in script and "--qos" not in script


@pytest.mark.long
def test_slurm_finds_the_same_near_duplicates_as_this_machine(slurm, tmp_path):
    assert_same(tmp_path, corpus("stages.0.data.deduplicate=near"), SLURM)


@pytest.mark.long
def test_ray_finds_the_same_near_duplicates_as_this_machine(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path[1:]]))
    where = Cleaning(executor="ray", tasks=2, workers=2, mem_per_cpu_gb=1)
    assert_same(tmp_path, corpus("stages.0.data.deduplicate=near"), where)


def test_tasks_that_fail_are_named_and_tried_again_by_the_same_command(slurm, tmp_path):
    text = corpus("stages.0.data.deduplicate=off")
    (slurm / "broken").touch()
    with pytest.raises(Stop) as stop:
        cleaning.clean(text, tmp_path / "data", SLURM)
    assert "The cleaning step `1-filtered` has ended with 2 of 2 tasks not done" in stop.value.text
    (slurm / "broken").unlink()
    assert cleaning.clean(text, tmp_path / "data", SLURM).kept > 400


def test_a_job_that_is_still_queued_is_waited_for_and_not_submitted_again(slurm, tmp_path):
    logs = tmp_path / "logs"
    (logs / "completions").mkdir(parents=True)
    (logs / "job.json").write_text('{"job": "7"}')
    (slurm / "7.running").touch()

    def end():
        time.sleep(0.7)
        for task in range(2):
            (logs / "completions" / f"{task:05d}").touch()
        (slurm / "7.running").unlink()

    thread = threading.Thread(target=end)
    thread.start()
    executors.Slurm(SLURM, 2).run("step", [], 2, logs)
    thread.join()
    assert not (slurm / "submitted").exists()


def test_a_stopped_command_takes_its_job_out_of_the_queue(slurm, tmp_path, monkeypatch):
    def interrupted(seconds):
        raise KeyboardInterrupt

    own_time(monkeypatch, executors, sleep=interrupted)
    (slurm / "broken").touch()
    with pytest.raises(KeyboardInterrupt):
        executors.Slurm(SLURM, 2).run("step", [], 2, tmp_path / "logs")
    assert (slurm / "cancelled").read_text().strip() == json.loads(
        (tmp_path / "logs" / "job.json").read_text()
    )["job"]


def test_without_slurm_or_ray_it_is_said_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Stop, match=r"no `sbatch` and `squeue`"):
        executors.chosen(SLURM, None)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Stop) as stop:
        executors.chosen(Cleaning(executor="ray", tasks=2), None)
    assert 'pip install "ray[default]"' in stop.value.text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("stages.0.data.cleaning.executor=slurm",),
            "`executor: slurm` also needs `tasks`, `partition` and `time`.",
        ),
        (("stages.0.data.cleaning.executor=ray",), "`executor: ray` also needs `tasks`."),
        (
            ("stages.0.data.cleaning.partition=cpu",),
            "`partition` has no effect with `executor: local`.",
        ),
        (("stages.0.data.cleaning.executor=pods",), "`executor: pods` also needs `pods`."),
        (
            (
                "stages.0.data.cleaning.executor=pods",
                "stages.0.data.cleaning.pods=4",
                "stages.0.data.cleaning.tasks=3",
            ),
            "3 tasks leave some of 4 pods without work.",
        ),
        (("stages.0.data.cleaning.executor=sge",), "`executor` cannot be `sge`."),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_check_knows_what_an_executor_needs(options, words):
    with pytest.raises(Stop) as stop:
        load(SEVEN_B, from_options(options))
    assert any(words in problem.message for problem in stop.value.problems), stop.value.problems


def test_slurm_is_a_change_of_few_lines_and_cleans_nothing_anew(tmp_path):
    from runner.plan import Place
    from runner.run.run_folder import inputs

    def stage(*options: str):
        recipe, _, _ = load(SEVEN_B, from_options(options))
        plan = translate(
            recipe, Place(f"{tmp_path}/c", f"{tmp_path}/d", str(tmp_path), f"{tmp_path}/s")
        )
        return plan, plan.stages[0]

    one = stage()
    other = stage(
        "stages.0.data.cleaning.executor=slurm",
        "stages.0.data.cleaning.tasks=200",
        "stages.0.data.cleaning.partition=cpu",
        "stages.0.data.cleaning.time=24:00:00",
    )
    assert other[1].config["cleaning"]["time"] == "24:00:00"
    assert inputs(*one) == inputs(*other)


def dataset(folder: Path, *rows: int, limit: int | None = None) -> Corpus:
    """A dataset of the hub that lies here, in a file for each number of rows."""
    folder.mkdir()
    for number, count in enumerate(rows):
        lines = (
            json.dumps({"text": f"file {number} row {row} and some more words"}) + "\n"
            for row in range(count)
        )
        (folder / f"train-{number}.jsonl").write_text("".join(lines))
    loose = {
        "min_words": 0,
        "drop_low_quality": False,
        "drop_repetitive": False,
        "deduplicate": "off",
    }
    source = {
        "path": None,
        "hub": str(folder),
        "subset": None,
        "split": "train",
        "revision": None,
        "column": "text",
    }
    return replace(corpus(), **loose, sets=(CorpusSet(**source, limit=limit),))


@pytest.mark.parametrize(
    ("rows", "limit", "read", "said"),
    [
        ((50, 50, 50), 30, 30, None),
        ((50,), 16, 16, None),
        ((10,) * 10, 40, 40, None),
        ((50, 4, 50), 30, 24, "  fewer than limit             6   files share `data.limit`, and some hold less; raise it for more"),
    ],
    ids=["files", "one file", "more files than tasks", "a short file"],
)  # fmt: skip
def test_a_limit_is_reached_however_many_files_a_dataset_has(rows, limit, read, said, tmp_path):
    text = dataset(tmp_path / "hub", *rows, limit=limit)
    report = cleaning.clean(text, tmp_path / "out", Cleaning(tasks=8, workers=1))
    assert (report.documents_in, report.kept) == (read, read)
    assert [line for line in report.lines() if "fewer" in line] == ([said] if said else [])


def read_bytes() -> int:
    """What this process has asked the system to read so far, bytes."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


def of_file(file: Path, limit: int | None = None) -> Corpus:
    one = replace(corpus().sets[0], path=str(file), limit=limit)
    return replace(corpus(), sets=(one,))


def by_tasks(text: Corpus, dropped: Path, tasks: int) -> tuple[list[list], int]:
    """What each task yields or keeps aside, as (id, text) and lines, and the bytes that all of them
    have read."""

    one = text.sets[0]
    parts = cleaning.parts_of(one, tasks)
    began, given = read_bytes(), []
    for rank in range(tasks):
        reader = cleaning.CorpusRows(text, 0, dropped / str(tasks), parts)
        given.append(
            [(document.id, document.text) for document in reader.run(rank=rank, world_size=tasks)]
        )
    return given, read_bytes() - began


def written(folder: Path, kind: str, count: int) -> Path:
    texts = [
        f"document {number} says {'many words ' * (number % 40)}ünd Ärger"
        for number in range(count)
    ]
    file = folder / f"text.{kind}"
    if kind == "jsonl":
        lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
        lines[3], lines[count // 2], lines[-2] = "{broken", "", '{"text": 4}'
        file.write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    elif kind == "csv":
        file.write_text(
            "text\n" + "".join(f'"{text}\nnext line"\n' for text in texts), encoding="utf-8"
        )
    elif kind == "json":
        file.write_text(json.dumps([{"text": text} for text in texts]), encoding="utf-8")
    else:
        table = pa.table({"text": texts, "other": list(range(count))})
        pq.write_table(table, file, row_group_size=count // 12)
    return file


@pytest.mark.parametrize("limit", [None, 1, 500, 10**6])
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "csv", "json"])
def test_any_number_of_tasks_reads_the_same_documents(kind, limit, tmp_path):
    text, aside = of_file(written(tmp_path, kind, 1200), limit), tmp_path / "d"
    one = by_tasks(text, aside, 1)[0][0]
    assert len(one) == min(1200, limit or 1200) - (
        0 if kind != "jsonl" else {None: 3, 10**6: 3, 500: 1, 1: 0}[limit]
    )
    kept_aside = [json.loads(line) for line in dropped_lines(aside / "1")]
    for tasks in (2, 3, 7, 50):
        parts = by_tasks(text, aside, tasks)[0]
        assert [document for part in parts for document in part] == one
        assert [json.loads(line) for line in dropped_lines(aside / str(tasks))] == kept_aside
        if kind == "jsonl" and limit is None:
            sizes = [sum(len(text) for _, text in part) for part in parts]
            assert max(sizes) < 1.3 * min(sizes)


def dropped_lines(folder: Path) -> list[str]:
    return [
        line for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()
    ]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_all_tasks_together_read_a_file_once(kind, tmp_path):
    file = written(tmp_path, kind, 20_000 if kind == "jsonl" else 100_000)
    text, aside = of_file(file), tmp_path / "d"
    by_tasks(text, aside, 1)  # imports
    for tasks in (1, 8):
        assert by_tasks(text, aside, tasks)[1] < 1.5 * file.stat().st_size
