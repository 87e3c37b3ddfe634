"""Forms of conversations: the same rows in each give the same messages and the same tokens; what is
none is named by line."""

from __future__ import annotations

import csv
import json
import re
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner import catalog
from runner.check.validate import examine
from runner.data import conversation_formats
from runner.recipe.overrides import from_options
from runner.recipe.recipe import CONVERSATIONS
from runner.recipe.templates import NoText
from runner.scenarios import prepare
from runner.scenarios.shared import axolotl
from runner.tools.problem import Stop
from tests.conftest import ROOT, setting_of
from tests.data.test_chat_data import table, wanted, written

PAIRS = [
    ("How do I tie a bowline?", "Make a loop; the rabbit comes out of its hole."),
    ("What is a bight?", "A bend in the rope,\n\nnot a knot."),
    ("What is “tinder”?", "Dry, fine fuel: birch bark; grass."),
    ("How do I put a fire out?", "With water.\nThen with water again."),
    ("Which way is north?", "Left of the rising sun."),
]
OPEN = {"question": None, "answer": None, "form": None}
ROWS = {
    "columns": [{"question": asked, "answer": said} for asked, said in PAIRS],
    "messages": [
        {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]}
        for asked, said in PAIRS
    ],
    "sharegpt": [
        {"conversations": [{"from": "human", "value": asked}, {"from": "gpt", "value": said}]}
        for asked, said in PAIRS
    ],
    "alpaca": [{"instruction": asked, "input": "", "output": said} for asked, said in PAIRS],
    "prompt_completion": [{"prompt": asked, "completion": f" {said}"} for asked, said in PAIRS],
}
ROWS["conversational prompt_completion"] = [
    {"prompt": row["messages"][:1], "completion": row["messages"][1:]} for row in ROWS["messages"]
]
FILES = ["rows.jsonl", "rows.json", "rows.csv", "rows.parquet"]


def told(form: str) -> dict:
    return (
        {"question": "[question]", "answer": "[answer]", "form": "columns"}
        if form == "columns"
        else OPEN
    )


def flat(rows: list[dict]) -> list[dict]:
    """Rows as a table without lists has them: turns as JSON."""
    return [
        {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in row.items()
        }
        for row in rows
    ]


def sides(form: str, name: str, folder, rows=None, **other) -> dict[str, list]:
    rows = rows or ROWS[form]
    path = written(folder, name, flat(rows) if name.endswith("csv") else rows)
    report = prepare(wanted(path, **told(form) | other), folder / "out")
    assert report.form.startswith(form.split()[-1]) and not report.bad_lines
    return {
        side: [row["messages"] for row in table(folder / "out", side)]
        for side in ("train", "validation")
    }


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return sides("columns", "rows.jsonl", tmp_path_factory.mktemp("columns"))


@pytest.fixture(scope="module")
def tokenised(tmp_path_factory):
    """What Axolotl's own strategy makes of messages, with the settings that a recipe gives it:
    tokens, and those trained."""
    from axolotl.prompt_strategies.chat_template import load
    from axolotl.utils.dict import DictDefault

    from runner.data import tokenizers

    template = catalog.chat_template("chatml")
    text = [f"{asked} {said} system user assistant tool" for asked, said in PAIRS]
    tokenizer = tokenizers.train(text, tmp_path_factory.mktemp("tokenizer"), None, template, 400)

    def tokens(
        messages: list[dict], train_on: str = "assistant", thoughts=None, **other
    ) -> tuple[list[int], str]:
        config = DictDefault(
            {"sequence_len": 1024, "chat_template": "chatml", "eot_tokens": [template.end]} | other
        )
        reads = axolotl.datasets("d", CONVERSATIONS, train_on, thoughts=thoughts)["datasets"][0]
        strategy = load(tokenizer, config, reads)
        row = strategy.tokenize_prompt({"messages": messages})
        return row["input_ids"], tokenizer.decode(
            [token for token in row["labels"] if token != -100]
        )

    return tokens


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("form", ROWS)
def test_each_form_in_each_file_gives_the_messages_and_tokens_of_columns(
    form, name, tmp_path, expected, tokenised
):
    found = sides(form, name, tmp_path)
    assert found == expected
    assert [tokenised(row)[0] for row in found["train"]] == [
        tokenised(row)[0] for row in expected["train"]
    ]


def spreadsheet(file, rows: list[list]) -> None:
    from openpyxl import Workbook

    book = Workbook()
    for row in rows:
        book.active.append(row)
    book.save(file)


def file_of(form: str, name: str, folder):
    """The rows of a form as people have them: from spreadsheets, or saved by `datasets`."""
    from datasets import Dataset, DatasetDict

    rows = ROWS[form]
    header, cells = list(rows[0]), [list(row.values()) for row in flat(rows)]
    kind, _, how = name.partition(" ")
    path = folder / f"rows.{kind}"
    if kind in ("csv", "tsv"):
        encoding, mark = {
            "": ("utf-8", ","),
            "semicolons": ("utf-8", ";"),
            "mark": ("utf-8-sig", ";"),
        }.get(how, (how, "\t"))
        with path.open("w", newline="", encoding=encoding) as out:
            csv.writer(out, delimiter=mark, quoting=csv.QUOTE_ALL).writerows([header, *cells])
    elif kind == "xlsx":
        spreadsheet(path, [header, *cells])
    else:
        path = folder / "saved-v1.2"
        saved = Dataset.from_list(rows)
        (DatasetDict({"train": saved}) if how else saved).save_to_disk(str(path))
    return path


KINDS = ["csv semicolons", "csv mark", "csv utf-16", "tsv", "xlsx", "saved", "saved splits"]
FORMS = [form for form in ROWS if " " not in form]
TABLES = [
    (kind, form)
    for kind in KINDS
    for form in FORMS
    if kind in ("csv semicolons", "xlsx", "saved") or form == "messages"
]


@pytest.mark.parametrize(("kind", "form"), TABLES)
def test_spreadsheets_and_saved_folders_give_the_same_messages_and_check_reads_their_columns(
    kind, form, tmp_path, expected, recipe
):
    path = file_of(form, kind, tmp_path)
    asked = ['data.question="[question]"', 'data.answer="[answer]"'] if form == "columns" else []
    problems = recipe(f"data.path={path}", *asked)
    assert {problem.severity for problem in problems} == {"note"}
    told_of = [problem for problem in problems if "because of their columns" in problem.message]
    assert [f"form {form}" in problem.message for problem in told_of] == [True] * (
        form != "columns"
    )
    report = prepare(wanted(path, **told(form)), tmp_path / "out")
    assert report.form.startswith(form) and not report.bad_lines
    found = {side: [row["messages"] for row in table(tmp_path / "out", side)] for side in expected}
    assert found == expected


@pytest.fixture
def recipe(tmp_path):
    """What check says of the survival recipe with other data, its own question and answer left
    out."""

    def problems(*options: str) -> list:
        text = (ROOT / "recipes" / "survival.yaml").read_text("utf-8")
        for line in ("  hub:", "  sample:", "  question:", "  answer:"):
            text = re.sub(rf"^{line}.*\n", "", text, flags=re.MULTILINE)
        file = tmp_path / "recipe.yaml"
        file.write_text(text)
        return examine(file, from_options(options))

    return problems


SENSELESS = {
    "a form and templates": ["data.form=messages", 'data.question="[q]"', 'data.answer="[a]"'],
    "half a pair": ['data.question="[question]"'],
    "columns without templates": ["data.form=columns"],
    "another form than the file's": ["data.form=alpaca"],
    "no such form": ["data.form=chatml"],
    "no such turns": ["data.train_on=user"],
}


@pytest.mark.parametrize("case", SENSELESS)
def test_what_makes_no_sense_is_refused_by_check(case, tmp_path, recipe, golden_message):
    path = written(tmp_path, "rows.jsonl", ROWS["messages"])
    problems = [
        each for each in recipe(f"data.path={path}", *SENSELESS[case]) if each.severity == "error"
    ]
    assert problems
    golden_message("\n\n".join(f"{each.message}\n{each.hint}" for each in problems))


def test_a_file_of_no_form_is_refused_by_check_with_its_columns(tmp_path, recipe, golden_message):
    path = written(tmp_path, "rows.jsonl", [{"q": "Why?", "a": "So."}])
    (problem,) = [each for each in recipe(f"data.path={path}") if each.severity == "error"]
    golden_message(problem)


def test_a_hub_dataset_in_a_form_is_told_by_the_preparation(tmp_path, monkeypatch):
    repository = tmp_path / "owner" / "talks"
    repository.mkdir(parents=True)
    written(repository, "train.jsonl", ROWS["sharegpt"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    report = prepare(wanted(hub="owner/talks", **OPEN), tmp_path / "out")
    assert report.form.startswith("sharegpt, recognised")


def test_a_prompt_that_is_itself_json_or_a_number_is_a_text(tmp_path):
    rows = [{"prompt": prompt, "completion": "3"} for prompt in ('[{"a": 3}]', "[]", "7")] + ROWS[
        "prompt_completion"
    ]
    found = sides("prompt_completion", "rows.jsonl", tmp_path, rows)
    assert {'[{"a": 3}]', "[]", "7"} <= {
        row[1]["content"] for side in found.values() for row in side
    }
    assert (
        conversation_formats.turns("prompt_completion", {"prompt": 7, "completion": 3.5})[1].content
        == "3.5"
    )


TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "So."},
    {"role": "user", "content": "Really?"},
    {"role": "assistant", "content": "Yes."},
]


@pytest.mark.parametrize(
    ("train_on", "trained"),
    [
        ("assistant", "So.<|im_end|>Yes.<|im_end|>"),
        ("last", "Yes.<|im_end|>"),
        ("all", "Be brief.<|im_end|>Why?<|im_end|>So.<|im_end|>Really?<|im_end|>Yes.<|im_end|>"),
    ],
)
def test_the_turns_that_a_recipe_names_are_trained(train_on, trained, tmp_path, tokenised):
    found = sides(
        "messages",
        "rows.jsonl",
        tmp_path,
        [{"messages": TALK}, *ROWS["messages"]],
        train_on=train_on,
    )
    talk = next(row for side in found.values() for row in side if row[0]["content"] == "Be brief.")
    assert tokenised(talk, train_on)[1] == trained


def test_a_row_keeps_its_own_system_turn_and_others_get_the_recipes(tmp_path):
    rows = [{"messages": TALK}, *ROWS["messages"]]
    found = sides("messages", "rows.jsonl", tmp_path, rows, system_prompt="You know.")
    first = [row[0] for side in found.values() for row in side]
    assert {turn["role"] for turn in first} == {"system"}
    assert sorted({turn["content"] for turn in first}) == ["Be brief.", "You know."]
    (tmp_path / "other").mkdir()
    beside = [
        {"system": "Be brief.", "conversations": row["conversations"]} for row in ROWS["sharegpt"]
    ]
    found = sides("sharegpt", "rows.json", tmp_path / "other", beside)
    assert {row[0]["content"] for side in found.values() for row in side} == {"Be brief."}


# What a person can write, by the turns that remain; `u` asks, `a` answers.
UNUSUAL = {"uau": "ua", "uuaa": "ua", "uauauu": "uaua", "aua": "aua", "suuau": "sua"}
SPEAKERS = {"u": "user", "a": "assistant", "s": "system"}


@pytest.mark.parametrize("written_roles", UNUSUAL)
def test_a_question_at_the_end_and_turns_in_a_row_cost_no_conversation(written_roles, tmp_path):
    talk = []
    for number, role in enumerate(written_roles):
        talk.append({"role": SPEAKERS[role], "content": f"{role}{number}"})
    rows = [{"messages": talk}, *ROWS["messages"]]
    found = sides("messages", "rows.jsonl", tmp_path, rows, system_prompt=None)
    (kept,) = [
        row
        for side in found.values()
        for row in side
        if row[0]["content"].split()[0] == talk[0]["content"]
    ]
    assert "".join(turn["role"][0] for turn in kept) == UNUSUAL[written_roles]
    words = "\n\n".join(turn["content"] for turn in kept).split()
    assert words == [turn["content"] for turn in talk][: len(words)]


def test_what_is_cut_of_conversations_is_counted_by_line_and_not_lost(tmp_path, golden_message):
    rows = [{"messages": TALK[1:4]}, *ROWS["messages"], {"messages": [TALK[1], *TALK[1:3]]}]
    path = written(tmp_path, "rows.jsonl", rows)
    report = prepare(wanted(path, **OPEN, max_lost_share=0.0), tmp_path / "out")
    assert not report.lost
    golden_message("\n".join(line for line in report.lines() if "changed" in line))


def test_a_turn_with_calls_stays_by_itself():
    turns = [
        conversation_formats.Turn("user", "When?"),
        conversation_formats.Turn("assistant", "Wait.", '{"tool_calls": []}'),
        conversation_formats.Turn("assistant", "At 17:04."),
    ]
    assert conversation_formats.learnable(turns).turns == tuple(turns)


def test_an_input_of_alpaca_stands_below_its_instruction(tmp_path):
    rows = [row | {"input": "In two words."} for row in ROWS["alpaca"]]
    found = sides("alpaca", "rows.jsonl", tmp_path, rows)
    assert all(
        row[1]["content"].endswith("\nIn two words.") for side in found.values() for row in side
    )


CALL = {
    "id": "1",
    "type": "function",
    "function": {"name": "tide", "arguments": {"place": "Brest"}},
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "tide", "parameters": {"type": "object", "required": ["place"]}},
    }
]
CALLING = {
    "messages": [
        {"role": "user", "content": "When is high tide?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "17:04", "tool_call_id": "1"},
        {"role": "assistant", "content": "At 17:04.", "reasoning_content": "The tool says so."},
    ],
    "tools": TOOLS,
}


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_tool_calls_and_reasoning_reach_a_template_that_knows_them(name, tmp_path, tokenised):
    own = wanted()["special_tokens"] | {"axolotl": "tokenizer_default"}
    other = {"function": {"name": "wind", "arguments": {"at": 3}}}
    second = {
        "messages": [*CALLING["messages"][:1], {**CALLING["messages"][1], "tool_calls": [other]}],
        "tools": [],
    }
    found = sides(
        "messages", name, tmp_path, [CALLING, second, *ROWS["messages"]], special_tokens=own
    )
    calling = next(
        row for side in found.values() for row in side if row[-1]["content"] == "At 17:04."
    )
    trained = tokenised(calling, chat_template="qwen3")[1]
    assert (
        '{"name": "tide", "arguments": {"place": "Brest"}}' in trained
        and "The tool says so." in trained
    )
    given = [row.get("tools") for side in found for row in table(tmp_path / "out", side)]
    assert [json.loads(tools) for tools in given if tools] == [TOOLS]


THINKING = "{% for one in messages %}{{ one.role + ':' + one.get('thinking', '') + one.content + '<|im_end|>' }}{% endfor %}"


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_thoughts_are_read_from_the_field_that_a_recipe_names(name, tmp_path, tokenised):
    own = wanted()["special_tokens"] | {"axolotl": "tokenizer_default"}
    thought = {
        "messages": [*TALK[:-1], {**TALK[-1], "thinking": "user asked", "reasoning_content": "no"}]
    }
    for field in ("thinking", "reasoning_content"):
        found = sides(
            "messages",
            name,
            tmp_path,
            [thought, *ROWS["messages"]],
            special_tokens=own,
            thinking_field=field,
        )
        row = next(row for side in found.values() for row in side if row[-1]["content"] == "Yes.")
        assert {key for key in row[-1] if row[-1][key]} == {"role", "content", field}
        trained = tokenised(
            row, thoughts=field, chat_template="jinja", chat_template_jinja=THINKING
        )[1]
        assert ("user askedYes." in trained) == (field == "thinking")
        shutil.rmtree(tmp_path / "out")


def test_system_turns_are_left_out_where_a_recipe_asks_for_it(tmp_path):
    rows = [{"messages": TALK}, {"system": "Rhyme.", **ROWS["messages"][0]}, *ROWS["messages"][1:]]
    for dropped in (False, True):
        found = sides(
            "messages", "rows.jsonl", tmp_path, rows, drop_system=dropped, system_prompt=None
        )
        roles = [turn["role"] for side in found.values() for row in side for turn in row]
        assert roles.count("system") == (0 if dropped else 2)
        shutil.rmtree(tmp_path / "out")


@pytest.mark.parametrize("key", ["tool_calls", "reasoning_content", "tools"])
def test_what_the_template_does_not_write_is_named_and_not_lost_in_silence(
    key, tmp_path, golden_message
):
    row = {
        "tool_calls": {
            "messages": [*CALLING["messages"][:3], {"role": "assistant", "content": "At 17:04."}]
        },
        "reasoning_content": {"messages": [*TALK[:-1], {**TALK[-1], key: "Because."}]},
        "tools": {"messages": TALK, "tools": TOOLS},
    }[key]
    report = prepare(
        wanted(written(tmp_path, "rows.jsonl", [*ROWS["messages"], row]), **OPEN), tmp_path / "out"
    )
    ((number, reason),) = report.bad_lines
    assert number == len(PAIRS) + 1 and key in reason
    golden_message(reason)


def test_no_template_of_the_catalog_that_axolotl_has_writes_tool_calls_or_reasoning():
    """Rows with either are kept out all the same and named, with the tokenizer's own template as
    the remedy."""
    from axolotl.utils.chat_templates import get_chat_template

    from runner.catalog.tables import table as facts

    for name in {template["axolotl"] for template in facts("templates").values()} - {
        "tokenizer_default",
        "jinja",
    }:
        text = get_chat_template(name)
        assert "reasoning_content" not in text and "tool_calls" not in text, name


WRONG = {
    "no role": {"messages": [{"content": "Why?"}, TALK[2]]},
    "an unknown role": {"messages": [{"role": "bystander", "content": "Why?"}, TALK[2]]},
    "an empty answer": {"messages": [TALK[1], {"role": "assistant", "content": " "}]},
    "no content": {"messages": [TALK[1], {"role": "assistant"}]},
    "the human last": {"conversations": [{"from": "human", "value": "Why?"}]},
    "nobody asks": {"messages": [TALK[0], TALK[2]]},
    "another form": {"instruction": "Why?", "output": "So."},
    "no list": {"messages": 3},
    "an empty list": {"messages": []},
    "no objects": {"messages": ["Why?", "So."]},
    "a picture": {"messages": [{"role": "user", "content": [{"type": "image"}]}, TALK[2]]},
    "a sound": {
        "messages": [{"role": "user", "content": [{"type": "input_audio", "text": None}]}, TALK[2]]
    },
    "a part of no kind": {"messages": [{"role": "user", "content": [{"type": "map"}]}, TALK[2]]},
    "a number": {"messages": [{"role": "user", "content": 3}, TALK[2]]},
    "a role that is a list": {"messages": [{"role": ["user"], "content": "Why?"}, TALK[2]]},
    "a system of several": {
        "messages": TALK[1:3],
        "system": [{"text": "Be kind.", "note": "Be brief."}],
    },
    "text that is no JSON": {"messages": "Why?"},
    "a call of nothing": {"messages": [TALK[1], {"role": "assistant", "tool_calls": [{"id": 1}]}]},
    "arguments that are no JSON": {
        "messages": [
            TALK[1],
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
        ]
    },
}


@pytest.mark.parametrize("case", WRONG)
def test_a_row_that_is_no_conversation_is_named_by_its_line_and_kept_out(
    case, tmp_path, golden_message
):
    form = "sharegpt" if "conversations" in WRONG[case] else "messages"
    path = written(tmp_path, "rows.jsonl", [ROWS[form][0], WRONG[case], *ROWS[form][1:]])
    report = prepare(wanted(path, **OPEN), tmp_path / "out")
    ((number, reason),) = report.bad_lines
    assert (number, report.train_rows + report.validation_rows) == (2, len(PAIRS))
    golden_message(reason)


def test_a_column_that_holds_a_list_is_kept_out_and_not_learned_as_python_writes_it(
    tmp_path, golden_message
):
    pairs = [{"q": f"{question}?", "a": answer} for question, answer in PAIRS]
    path = written(
        tmp_path,
        "rows.jsonl",
        [
            pairs[0],
            {"q": "Why?", "a": [{"text": "So.", "note": "Or not."}]},
            *pairs[1:],
            {"q": {"text": 1}, "a": "So."},
        ],
    )
    report = prepare(wanted(path, question="[q]", answer="[a]", max_lost_share=1), tmp_path / "out")
    assert [number for number, _ in report.bad_lines] == [2, len(pairs) + 2]
    golden_message("\n".join(reason for _, reason in report.bad_lines))


def test_rows_of_no_form_and_rows_that_are_all_wrong_end_with_a_sentence(tmp_path, golden_message):
    (tmp_path / "wrong").mkdir()
    with pytest.raises(Stop) as none:
        prepare(
            wanted(written(tmp_path, "rows.jsonl", [{"q": "Why?", "a": "So."}]), **OPEN),
            tmp_path / "out",
        )
    with pytest.raises(Stop) as wrong:
        prepare(
            wanted(written(tmp_path / "wrong", "rows.jsonl", [WRONG["no role"]] * 3), **OPEN),
            tmp_path / "out",
        )
    golden_message(f"{none.value}\n\n{wrong.value}".replace(str(tmp_path), "<folder>"))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "role",
                    "content",
                    "from",
                    "value",
                    "tool_calls",
                    "function",
                    "name",
                    "arguments",
                    "text",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.sampled_from(list(conversation_formats.COLUMNS)), st.data())
@settings(max_examples=300, deadline=None)
def test_whatever_a_row_holds_it_is_a_conversation_or_named(form, data):
    columns = [*conversation_formats.COLUMNS[form], "system", "input"]
    row = {column: data.draw(anything) for column in columns}
    try:
        turns = conversation_formats.learnable(conversation_formats.turns(form, row)).turns
    except NoText:
        return
    assert turns[-1].role == "assistant" and all(turn.content or turn.besides for turn in turns)
    json.dumps([turn.message() for turn in turns])


def test_a_column_of_images_is_left_out_with_a_note(tmp_path, recipe, golden_message):
    rows = [{"messages": TALK, "images": ["plan.png"]}] * 40
    problems = recipe(f"data.path={written(tmp_path, 'rows.jsonl', rows)}")
    (note,) = [one for one in problems if "Training on" in one.message]
    assert (note.severity, setting_of(note)) == ("note", "data.path")
    golden_message(f"{note.message}\n{note.hint}")


def test_a_line_that_asks_axolotl_for_images_is_refused(recipe, golden_message):
    problems = recipe("advanced.axolotl.processor_type=AutoProcessor", "data.path=no.jsonl")
    (error,) = [one for one in problems if "Training on" in one.message]
    golden_message(f"{error.message}\n{error.hint}")


def test_a_mixture_holds_turns_of_both_kinds(tmp_path):
    """A domain that marks its last turns and has reasoning, with general rows that have neither."""
    from runner.scenarios.stages.work import mix

    sides("columns", "rows.jsonl", tmp_path)
    domain = [
        {"messages": [*TALK[:-1], {**TALK[-1], "reasoning_content": f"Because {number}."}]}
        for number in range(4)
    ]
    domain += [{"messages": [{"role": "user", "content": "Who?"}, TALK[2]]}]
    own = wanted()["special_tokens"] | {"axolotl": conversation_formats.OWN, "tokens": ()}
    facts = wanted(written(tmp_path, "domain.jsonl", domain), **OPEN) | {"special_tokens": own}
    prepare(facts | {"train_on": "last"}, tmp_path / "own", tokenizer_for=lambda texts: None)
    assert mix(tmp_path / "own", tmp_path / "out", tmp_path / "mixed", 0.5, 42).startswith("mixed")
    rows = [row["messages"] for row in table(tmp_path / "mixed", "train")]
    assert {row[0]["training"] for row in rows} == {None, False}
    assert all(set(turn) >= {"role", "content", "training"} for row in rows for turn in row)
