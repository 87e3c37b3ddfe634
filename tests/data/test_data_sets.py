"""Several data sets in one list: what each gives, what they have in common, and what is said of
each by its name."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace

import pytest
from pydantic import TypeAdapter

from runner.catalog import chat_template
from runner.check.validate import examine, load
from runner.data import blocks, chat, conversation_formats, data_sets, judged
from runner.data.tokenizers import Pretrained
from runner.parts.jobs import kubernetes
from runner.parts.pretrain import cleaning
from runner.parts.pretrain.architecture import Cleaning, CorpusSet
from runner.recipe.overrides import from_options
from runner.recipe.templates import NoText
from runner.run.run_folder import inputs
from runner.scenarios import prepare, translate
from tests.conftest import ROOT
from tests.data.test_chat_data import one_set, table, wanted, written
from tests.data.test_conversation_formats import OPEN, PAIRS, ROWS, told
from tests.data.test_songs import asked_for, song
from tests.parts.pretrain.test_cleaning import corpus


def chats(folder, *sets: dict, **other):
    """The report of preparing several data sets, and the messages of each side."""
    report = prepare(wanted(**other) | {"sets": list(sets)}, folder / "out")
    return report, {
        side: [row["messages"] for row in table(folder / "out", side)]
        for side in ("train", "validation")
    }


def numbered(folder, name: str, count: int, start: int = 0):
    rows = [
        {"question": f"What is {start + number}?", "answer": f"It is {start + number}."}
        for number in range(count)
    ]
    return written(folder, name, rows)


def asking(path, **other):
    return one_set(path, question="[question]", answer="[answer]", **other)


def test_sets_of_every_form_give_what_one_set_in_columns_gives(tmp_path):
    forms = ["columns", "messages", "sharegpt", "alpaca", "prompt_completion"]
    (tmp_path / "whole").mkdir()
    whole, expected = chats(
        tmp_path / "whole", asking(written(tmp_path / "whole", "rows.csv", ROWS["columns"]))
    )
    sets = [
        one_set(written(tmp_path, f"{form}.jsonl", [ROWS[form][index]]), **told(form))
        for index, form in enumerate(forms)
    ]
    report, found = chats(tmp_path, *sets)
    assert found == expected and len(PAIRS) == len(forms)
    assert [one.rows_in for one in report.sets] == [1] * len(forms)
    assert sum(one.train_rows for one in report.sets) == report.train_rows == whole.train_rows
    assert all(form in report.form for form in forms)


def test_a_row_of_two_sets_is_learned_once_and_no_question_is_on_both_sides(tmp_path):
    first, second = numbered(tmp_path, "a.csv", 40), numbered(tmp_path, "b.jsonl", 40, start=20)
    other = [
        {"question": f"What  IS {number}?", "answer": "Something else."} for number in range(60)
    ]
    report, sides = chats(
        tmp_path,
        asking(first),
        asking(second),
        asking(written(tmp_path, "c.json", other)),
        validation_share=0.3,
    )
    assert (report.rows_in, report.duplicates, report.distinct) == (140, 20, 60)
    questions = {
        side: {" ".join(row[1]["content"].split()).casefold() for row in rows}
        for side, rows in sides.items()
    }
    assert not questions["train"] & questions["validation"] and all(questions.values())
    # What stands in both is of the first one.
    assert sum(one.train_rows for one in report.sets) == report.train_rows
    assert report.sets[1].train_rows <= 20 < report.sets[0].train_rows


def test_a_share_is_drawn_by_the_seed_whatever_stands_beside_it(tmp_path):
    rows = asking(numbered(tmp_path, "a.csv", 2000), share=0.25)
    alone, sides = chats(tmp_path, rows)
    taken = {row[-1]["content"] for side in sides.values() for row in side}
    assert 400 < len(taken) < 600 and alone.not_taken == 2000 - len(taken)
    (tmp_path / "beside").mkdir()
    reversed_rows = [
        {"question": f"What is {number}?", "answer": f"It is {number}."}
        for number in reversed(range(2100))
    ]
    turned = asking(written(tmp_path / "beside", "a.csv", reversed_rows), share=0.25)
    _, sides = chats(
        tmp_path / "beside", asking(numbered(tmp_path, "b.csv", 10, start=9000)), turned
    )
    again = {row[-1]["content"] for side in sides.values() for row in side}
    assert taken <= again and len(again - taken) < 100
    (tmp_path / "seed").mkdir()
    _, sides = chats(tmp_path / "seed", rows, seed=7)
    assert {row[-1]["content"] for side in sides.values() for row in side} != taken


def test_what_is_wrong_in_a_set_is_named_by_set_and_line(tmp_path, golden_message):
    good = asking(numbered(tmp_path, "a.csv", 30))
    (tmp_path / "b.jsonl").write_text(
        "\n".join(["{broken", json.dumps(ROWS["messages"][0]), '{"messages": 3}']) + "\n", "utf-8"
    )
    bad = one_set(tmp_path / "b.jsonl", **OPEN)
    (tmp_path / "c.jsonl").write_text('{"question": "Why?"}\n', "utf-8")
    report, _ = chats(tmp_path, good, bad, asking(tmp_path / "c.jsonl"))
    assert [where for where, _ in report.bad_lines] == [
        "1 of sets[1]",
        "3 of sets[1]",
        "1 of sets[2]",
    ]
    golden_message("\n".join(line for line in report.lines() if not line.startswith("bytes")))


def test_songs_of_several_sets_are_drawn_together(tmp_path):
    files = [tmp_path / f"{name}.jsonl" for name in "ab"]
    for number, file in enumerate(files):
        rows = [song(100 * number + index, f"Artist {index}") for index in range(20)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    asked = asked_for(str(files[0]), per_artist=1)
    asked["sets"] = [asked["sets"][0] | {"path": str(file)} for file in files]
    report = prepare(asked, tmp_path / "out")
    assert (report.rows_in, report.distinct, [one.rows_in for one in report.sets]) == (
        40,
        20,
        [20, 20],
    )
    assert (
        all(one.train_rows for one in report.sets)
        and report.dropped["more than 1 songs of one artist"] == 20
    )


def test_preferences_of_two_sets_each_with_its_own_columns(tmp_path):
    first = [
        {"prompt": f"Why {number}?", "chosen": "So.", "rejected": "No."} for number in range(6)
    ]
    second = [{"q": f"How {number}?", "good": "Thus.", "bad": "Nay."} for number in range(6)]
    source = {"hub": None, "revision": None, "subset": None, "split": None}
    sets = [
        source
        | {"path": str(written(tmp_path, "a.jsonl", first))}
        | {name: f"[{name}]" for name in ("prompt", "chosen", "rejected")},
        source
        | {
            "path": str(written(tmp_path, "b.csv", second)),
            "prompt": "[q]",
            "chosen": "[good]",
            "rejected": "[bad]",
        },
    ]
    wished = {
        "sets": sets,
        "system_prompt": None,
        "validation_share": 0.3,
        "seed": 1,
        "sequence_len": 64,
    }
    wished["special_tokens"] = asdict(chat_template("chatml"))
    report = chat.prepare(TypeAdapter(judged.Preferences).validate_python(wished), tmp_path / "out")
    assert report.rows_in == report.train_rows + report.validation_rows == 12
    assert {
        row["chosen"] for side in ("train", "validation") for row in table(tmp_path / "out", side)
    } == {
        "So.",
        "Thus.",
    }


def texts_of(folder, *sets: tuple[str, int, float], **other) -> data_sets.PlainText:
    made = []
    for name, count, share in sets:
        file = folder / f"{name}.jsonl"
        file.write_text(
            "".join(json.dumps({"text": f"{name} {number}"}) + "\n" for number in range(count)),
            "utf-8",
        )
        made.append(
            data_sets.TextSet(
                hub=None,
                revision=None,
                subset=None,
                split=None,
                path=str(file),
                text="text",
                share=share,
            )
        )
    settings = data_sets.PlainText(
        sets=tuple(made), validation_share=None, seed=42, tokenizer=Pretrained("x"), sequence_len=8,
        effective_batch_size=1, epochs=1, warmup_steps=0, eval_steps=None,
    )  # fmt: skip
    return replace(settings, **other)


def test_documents_come_from_each_set_in_turn_so_that_the_first_blocks_hold_some_of_all(tmp_path):
    report = blocks.TextReport()
    text = texts_of(tmp_path, ("a", 4, 1.0), ("b", 2, 1.0), ("c", 1, 1.0))
    assert list(blocks.documents(text, "train", report)) == [
        "a 0",
        "b 0",
        "c 0",
        "a 1",
        "b 1",
        "a 2",
        "a 3",
    ]
    assert list(report.sets.values()) == [4, 2, 1]
    assert all(name.startswith(f"sets[{index}] ") for index, name in enumerate(report.sets))


def test_a_share_of_a_set_of_text_and_the_validation_share_are_drawn_apart(tmp_path):
    text = texts_of(tmp_path, ("a", 1000, 0.3), ("b", 1000, 1.0), validation_share=0.5)
    sides = {
        side: list(blocks.documents(text, side, blocks.TextReport()))
        for side in ("train", "validation")
    }
    counts = {
        (side, name): sum(one.startswith(name) for one in found)
        for side, found in sides.items()
        for name in "ab"
    }
    assert not set(sides["train"]) & set(sides["validation"])
    assert all(100 < counts[side, "a"] < 200 and 430 < counts[side, "b"] < 570 for side in sides), (
        counts
    )


def test_validation_of_a_file_or_a_split_is_read_apart(tmp_path):
    text = texts_of(tmp_path, ("a", 5, 1.0), ("b", 5, 1.0))
    text = replace(text, sets=text.sets[:1], validation_sets=text.sets[1:])
    assert {one[0] for one in blocks.documents(text, "validation", blocks.TextReport())} == {"b"}


@pytest.mark.parametrize("tasks", [1, 3])
def test_a_corpus_of_several_sets_is_cleaned_as_one(tasks, tmp_path):
    loose = {
        "min_words": 0,
        "drop_low_quality": False,
        "drop_repetitive": False,
        "deduplicate": "off",
    }
    sets = []
    for name, column, share in (("a", "text", 1.0), ("b", "words", 0.5)):
        file = tmp_path / f"{name}.jsonl"
        rows = [{column: f"document {number} of {name} has words"} for number in range(200)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{broken\n", "utf-8")
        sets.append(
            CorpusSet(
                hub=None,
                revision=None,
                subset=None,
                split=None,
                path=str(file),
                column=column,
                limit=None,
                share=share,
            )
        )
    text = replace(corpus(), **loose, sets=tuple(sets))
    report = cleaning.clean(text, tmp_path / "out", Cleaning(tasks=tasks, workers=1))
    kept = list(cleaning.documents(tmp_path / "out"))
    counts = [sum(f"of {name} " in one for one in kept) for name in "ab"]
    assert counts[0] == 200 and 70 < counts[1] < 130 and report.documents_in == 402
    assert (
        report.dropped["beyond the `share` of their data set, drawn by the seed"] == 200 - counts[1]
    )
    aside = [
        json.loads(line)
        for file in (tmp_path / "out").glob("dropped/rows-*.jsonl")
        for line in file.open()
    ]
    assert sorted(row["line"] for row in aside) == ["201 of sets[0]", "201 of sets[1]"]


RECIPE = """\
scenario: last-layers
name: mixed
model:
  base: HuggingFaceTB/SmolLM3-3B
data:
  question: "[question]"
  answer: "[answer]"
  sets:
    - path: mine.csv
    - path: chats.jsonl
      form: messages
      share: 0.25
machines:
  gpu: NVIDIA-L40S
openshift:
  namespace: somewhere
  claims:
    - {name: results, mount: /results}
"""


@pytest.fixture
def recipe(tmp_path):
    """A recipe of two data sets, with lines replaced; gives its path."""

    def make(*changes: tuple[str, str]):
        numbered(tmp_path, "mine.csv", 60)
        written(tmp_path, "chats.jsonl", [ROWS["messages"][0]] * 40)
        text = RECIPE
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new, 1)
        (tmp_path / "recipe.yaml").write_text(text, "utf-8")
        return tmp_path / "recipe.yaml"

    return make


def key_of(problem) -> str:
    """The key of the line that a problem points at; in a list it stands behind the dash."""
    return re.search(r"(\w+):", problem.source)[1]


WRONG = {
    "no such file": (("chats.jsonl", "nowhere.jsonl"), ["path"]),
    "a column that is not there": (('"[question]"', '"[query]"'), ["path"]),
    "another form": (("form: messages", "form: alpaca"), ["path"]),
    "a form and templates": (
        ("form: messages", 'form: messages\n      question: "[q]"'),
        ["question", "question"],
    ),
    "half a pair": (("form: messages", 'question: "[q]"'), ["question", "question"]),
    "nothing": (("    - path: mine.csv", "    - share: 0.5"), ["share"]),
    "two sources": (("- path: mine.csv", "- path: mine.csv\n      hub: someone/rows"), ["path"]),
    "a file beside the list": (
        ("  sets:", "  path: mine.csv\n  split: test\n  sets:"),
        ["path", "split"],
    ),
    "the same file": (
        ("- path: chats.jsonl\n      form: messages", "- path: ./mine.csv"),
        ["path"],
    ),
    "no rows": (("0.25", "0"), ["share"]),
    "more rows than there are": (("0.25", "1.5"), ["share"]),
    "a share of nothing": (("0.25", "a quarter"), ["share"]),
    "an empty list": (
        (RECIPE[RECIPE.index("  sets:") : RECIPE.index("machines:")], "  sets: []\n"),
        ["sets"],
    ),
    "an unknown setting": (("form: messages", "form: messages\n      weight: 3"), ["weight"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_makes_no_sense_is_refused_at_the_line_of_its_set(case, recipe, golden_message):
    change, places = WRONG[case]
    problems = [one for one in examine(recipe(change)) if one.severity == "error"]
    assert [key_of(one) for one in problems] == places
    golden_message(problems)


def test_shares_that_look_like_a_mix_are_noted(recipe, golden_message):
    noted = [
        one
        for one in examine(recipe(("- path: mine.csv", "- path: mine.csv\n      share: 0.75")))
        if key_of(one) == "share"
    ]
    assert [one.severity for one in noted] == ["note"]
    golden_message(noted)


def test_the_same_dataset_of_the_hub_may_stand_twice_with_other_splits(recipe):
    sets = RECIPE[RECIPE.index("    - path: mine") : RECIPE.index("machines:")]
    twice = "    - {{hub: someone/rows, form: messages}}\n    - {{hub: someone/rows, form: messages, split: {}}}\n"
    assert [
        one for one in examine(recipe((sets, twice.format("test")))) if one.severity == "error"
    ] == []
    (problem,) = [
        one for one in examine(recipe((sets, twice.format("train")))) if one.severity == "error"
    ]
    assert "`data.sets[1]` is the same data as `data.sets[0]`" in problem.message


def test_every_room_knows_all_sets(recipe, tmp_path):
    from runner.parts.openshift.transfer import files
    from runner.parts.planner import row_counts as rows

    opened, _, _ = load(recipe())
    assert list(opened.local_files()) == [
        (("data", "sets", 0, "path"), "mine.csv"),
        (("data", "sets", 1, "path"), "chats.jsonl"),
    ]
    place = kubernetes.place(opened)
    assert set(files(opened, place).paths) == {"mine.csv", "chats.jsonl"}
    plan = translate(opened, place)
    data = plan.stage("data").config["data"]
    assert [one["path"] for one in data["sets"]] == [
        f"/results/mixed/files/{name}" for name in ("mine.csv", "chats.jsonl")
    ]
    here = translate(opened, replace(place, files_dir=None))
    known = rows.of(opened, here, here.stages[-1], tmp_path)
    assert (known.training, known.validation) == (63, 7) and known.tokens > 0
    # The content of each file counts, and the share.
    before = inputs(here, here.stage("data"))
    (tmp_path / "chats.jsonl").write_text("{}\n", "utf-8")
    after = inputs(here, here.stage("data"))
    assert {name for name in before if before[name] != after[name]} == {
        "data.sets.1.path (its content)"
    }
    other, _, _ = load(recipe(), from_options(["data.sets[1].share=0.5"]))
    assert translate(other, place).stage("train").keys != plan.stage("train").keys
    assert other.fingerprint != opened.fingerprint


def test_one_set_in_a_list_is_the_set_itself(recipe):
    sets = RECIPE[RECIPE.index("  sets:") : RECIPE.index("machines:")]
    listed, _, _ = load(recipe((sets, "  sets:\n    - path: mine.csv\n")))
    plain, _, _ = load(recipe((sets, "  path: mine.csv\n")))
    plans = [translate(one, kubernetes.place(one)) for one in (listed, plain)]
    assert plans[0].stage("data").config == plans[1].stage("data").config
    assert plans[0].stage("train").keys == plans[1].stage("train").keys
    named = inputs(plans[1], plans[1].stage("data"))
    assert {"data.path", "data.share", "data.question"} <= set(named)


def test_a_recipe_of_several_sets_is_shown_copied_and_read_again(recipe, tmp_path, recipe_command):
    path = recipe(("      share: 0.25", "      share: 0.25\n      sample: chats.jsonl"))
    shown = recipe_command("show", path).stdout
    (tmp_path / "shown.yaml").write_text(shown, "utf-8")
    assert load(tmp_path / "shown.yaml")[0].settings == load(path)[0].settings
    assert re.search(r"- .*\n(.*\n)*      share: 0.25 +# line 12", shown)
    (tmp_path / "copy").mkdir()
    done = recipe_command("new", "my-mix", "--from", path, cwd=tmp_path / "copy")
    assert done.returncode == 0, done.stderr
    assert {"mine.csv", "chats.jsonl"} <= {file.name for file in (tmp_path / "copy").iterdir()}
    checked = recipe_command("check", "my-mix.yaml", cwd=tmp_path / "copy")
    assert checked.returncode == 0, checked.stdout


def test_a_rehearsal_takes_each_sets_sample_or_its_file_and_asks_for_one_where_there_is_none(
    recipe, golden_message
):
    from runner.scenarios.shared import rehearsal
    from runner.tools.problem import Stop

    with_sample, _, _ = load(
        recipe(("    - path: mine.csv", "    - hub: someone/rows\n      sample: mine.csv"))
    )
    made = rehearsal.before_data(with_sample, None)
    assert [(str(one.setting), one.after) for one in made] == [
        ("data.sets[0].hub", None),
        ("data.sets[0].path", "mine.csv"),
    ]
    without, _, _ = load(recipe(("    - path: mine.csv", "    - hub: someone/rows")))
    with pytest.raises(Stop) as stop:
        rehearsal.before_data(without, None)
    assert stop.value.problems[0].line == 9
    golden_message(stop.value)
    given = rehearsal.before_data(without, str(ROOT / "recipes/data/survival-sample.jsonl"))
    assert [one.setting for one in given if one.after is None] == [
        "data.hub",
        "data.sets",
        "data.validation_split",
        "data.validation_path",
    ]


def test_axolotl_tokenises_in_as_many_processes_as_are_worth_their_start(tmp_path):
    import pyarrow
    from pyarrow import parquet

    from runner.data import tokenizers

    sets = {"datasets": [12_000], "test_datasets": [4_000, 0]}
    config = {}
    for name, counts in sets.items():
        config[name] = [{"path": str(tmp_path / f"{name}{count}.parquet")} for count in counts]
        for data, count in zip(config[name], counts, strict=True):
            parquet.write_table(pyarrow.table({"n": range(count)}), data["path"])
    config["datasets"].append({"path": "somebody/on-the-hub"})
    assert [tokenizers.processes(config, most) for most in (8, 2)] == [3, 2]
    assert tokenizers.processes({"datasets": config["test_datasets"]}, 8) == 0


def test_answers_that_are_turns_give_their_text(golden_message):
    """The forms of TRL: a prompt in turns, or in the turns before the answers."""
    one = judged.PreferenceSet(
        hub=None,
        revision=None,
        subset=None,
        split=None,
        path="x",
        prompt="[prompt]",
        chosen="[chosen]",
        rejected="[rejected]",
    )
    asked, good = {"role": "user", "content": "Where?"}, {"role": "assistant", "content": "Here. "}
    bad = {"role": "assistant", "content": "No."}
    turn = conversation_formats.Turn("user", "Where?")
    wished = judged.Answered((turn,), answers={"chosen": "Here.", "rejected": "No."})
    assert one.item({"prompt": "Where?", "chosen": [good], "rejected": [bad]}) == wished
    assert one.item({"prompt": [asked], "chosen": [good], "rejected": [bad]}) == wished
    implicit = replace(one, prompt="[chosen]")
    assert implicit.item({"chosen": [asked, good], "rejected": [asked, bad]}) == wished
    whole = implicit.item(
        {
            "chosen": [asked, good, asked, good],
            "rejected": [asked, good, asked, bad],
            "system": "Hm.",
        }
    )
    assert [turn.content for turn in whole.turns] == ["Hm.", "Where?", "Here.", "Where?"]
    assert (whole.answers, whole.group) == (wished.answers, wished.group)
    assert (
        one.item({"prompt": "Where?", "chosen": [good], "rejected": [good]})
        == "both answers are the same"
    )
    wrong = [
        (implicit, {"chosen": [asked, good, asked, good], "rejected": [asked, bad]}),
        (one, {"prompt": [asked, good], "chosen": [good], "rejected": [bad]}),
        (one, {"prompt": "Where?", "chosen": [asked], "rejected": [bad]}),
        (one, {"prompt": "Where?", "chosen": [good | {"name": "Ann"}], "rejected": [bad]}),
    ]
    said = []
    for rows, row in wrong:
        with pytest.raises(NoText) as reason:
            rows.item(row)
        said.append(str(reason.value))
    golden_message("\n".join(said))


def test_an_answer_with_a_label_is_found_by_the_columns_of_its_row(golden_message):
    """TRL's forms, and those that Axolotl has for KTO."""
    one = judged.LabelSet(
        **dict.fromkeys(("hub", "revision", "subset", "split")),
        path="x",
        completion="[completion]",
        label="[label]",
    )
    asked, good = {"role": "user", "content": "Where?"}, {"role": "assistant", "content": "Here."}
    turn = conversation_formats.Turn("user", "Where?")
    wished = judged.Answered((turn,), answers={"completion": "Here.", "label": True})
    for row in (
        {"prompt": "Where?", "completion": "Here.", "label": True},
        {"prompt": [asked], "completion": [good], "label": "TRUE"},
        {"instruction": "Where?", "completion": "Here. ", "label": 1, "system": None},
        {"question": "Where?", "completion": "Here.", "label": "yes", "system": ""},
        {"completion": [asked, good], "label": 1.0, "rating": 5},
        {"prompt": "Where?", "completion": json.dumps([good]), "label": "1"},
    ):
        assert one.item(row) == wished
    told = one.item(
        {"system": "Be brief.", "prompt": "Where?", "completion": "Here.", "label": "false"}
    )
    assert told.turns[0] == ("system", "Be brief.", "") and told.answers["label"] is False
    assert one.item({"prompt": "Where?", "completion": " ", "label": True}) == "a part is empty"
    with pytest.raises(KeyError, match="label"):
        one.item({"prompt": "Where?", "completion": "Here."})
    with pytest.raises(NoText) as said:
        one.item({"prompt": "Where?", "completion": "Here.", "label": "perhaps"})
    golden_message(str(said.value))
