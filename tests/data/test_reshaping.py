"""Rows of which a model learns something else than their cells: quizzes and verdicts."""

import json
from pathlib import Path

import pytest

from runner.data import rows
from runner.data.columns import likely_pair
from runner.data.conversation_formats import ChatSet, NoExchange
from runner.data.judged import PreferenceSet
from runner.data.quizzes import LETTERED, RIGHT
from runner.data.reshaping import reshaped
from runner.recipe.templates import NoText
from tests.conftest import ROOT

FILES = ROOT / "tests" / "files"
COUNT = 12
OPTIONS = ["It hums {}", "It sings {}", "It rests {}"]


def quiz(right, **columns):
    """Rows of a quiz. right: of the rows in turn; columns: templates of their number, lists of them
    or objects."""
    quiz_rows = []
    for number in range(COUNT):
        row = {"question": f"What does bee {number} do?"}
        for name, template in columns.items():
            row[name] = json.loads(json.dumps(template).replace("{}", str(number)))
        row["answer"] = right[number % len(right)]
        quiz_rows.append(row)
    return quiz_rows


SEPARATE = {"option_a": OPTIONS[0], "option_b": OPTIONS[1], "option_c": OPTIONS[2]}


@pytest.mark.parametrize(
    ("right", "columns", "answer"),
    [
        (["B", "A", "C"], SEPARATE, "B) It sings 0"),
        (["(B)", "a", "C"], SEPARATE, "B) It sings 0"),
        (["B) It sings", "A. It hums", "C) It rests"], SEPARATE, "B) It sings 0"),
        ([2, 1, 3], SEPARATE, "B) It sings 0"),
        ([1, 0, 2], SEPARATE, "B) It sings 0"),
        (["A, C", "B"], SEPARATE, "A) It hums 0\nC) It rests 0"),
        ([1, 2], {"ending0": OPTIONS[0], "ending1": OPTIONS[1], "ending2": OPTIONS[2]}, "B) It sings 0"),
        ([1, 0, 2], {"choices": OPTIONS}, "B) It sings 0"),
        ([2, 1, 3], {"choices": OPTIONS}, "B) It sings 0"),
        (["1", "0"], {"choices": json.dumps(OPTIONS)}, "B) It sings 0"),
        (["1", "0"], {"choices": str(OPTIONS)}, "B) It sings 0"),
        (["B", "A"], {"choices": {"text": OPTIONS, "label": ["A", "B", "C"]}}, "B) It sings 0"),
        (["2", "1"], {"choices": {"text": OPTIONS, "label": ["1", "2", "3"]}}, "B) It sings 0"),
    ],
)  # fmt: skip
def test_the_right_option_has_its_letter(right, columns, answer):
    (first, *_) = changed = reshaped(quiz(right, **columns))
    assert first[LETTERED] == "A) It hums 0\nB) It sings 0\nC) It rests 0"
    assert first[RIGHT] == answer
    assert likely_pair(list(first), changed) == (f"[question]\n[{LETTERED}]", f"[{RIGHT}]")


def test_the_right_option_may_be_written_out():
    (first, *_) = reshaped(quiz(["It sings", "It hums"], choices=["It hums", "It sings"]))
    assert first[RIGHT] == "B) It sings"


def test_options_with_marks_are_sorted_because_the_right_one_is_often_first():
    (first, *_) = reshaped(quiz([""], mc1_targets={"choices": ["sings", "hums"], "labels": [1, 0]}))
    assert first[LETTERED] == "A) hums\nB) sings"
    assert first[RIGHT] == "B) sings"


@pytest.mark.parametrize(
    "columns",
    [
        {"answer_1": "It hums {}", "answer_2": "It sings {}"},
        # numpy prints lists without commas, and Python would join their texts
        {"choices": "['It hums' 'It sings']"},
        {"sources": ["a page", "another page"]},
    ],
)
def test_other_rows_are_no_quiz(columns):
    quiz_rows = quiz(["Because its wings are fast."], **columns)
    assert reshaped(quiz_rows) == quiz_rows


def test_a_numbered_column_that_is_called_otherwise_does_not_say_which_option_is_right():
    quiz_rows = quiz(["why"], option_1="It hums {}", option_2="It sings {}", visits=1)
    assert reshaped(quiz_rows) == quiz_rows


PREFERENCES = PreferenceSet(
    hub=None,
    revision=None,
    subset=None,
    split=None,
    path="rows",
    prompt="[prompt]",
    chosen="[chosen]",
    rejected="[rejected]",
)
ANSWERED = {"chosen": "Bees need hives because the winter is long.", "rejected": "I do not know about hives."}  # fmt: skip


@pytest.mark.parametrize(
    "name", ["votes-between-two-chats.jsonl", "preferences-of-an-api.jsonl", "votes-in-columns.csv"]
)
def test_a_verdict_says_which_answer_is_chosen(name):
    first, *others = rows.first(FILES / name, None)
    item = PREFERENCES.item(first)
    assert item.question == "Why do bees need hives?"
    assert item.answers == ANSWERED
    assert len(others) > 2


def test_rows_without_a_better_answer_give_no_pair():
    votes = rows.first(Path(FILES / "votes-between-two-chats.jsonl"), None)
    ties = [vote for vote in votes if vote["winner"].startswith("tie")]
    assert ties
    for vote in ties:
        with pytest.raises(NoText, match="rows without a better answer"):
            PREFERENCES.item(vote)


def test_a_vote_about_several_answers_gives_no_pair():
    talks = {}
    for place, words in zip("ab", ("yes", "no"), strict=True):
        talks[f"conversation_{place}"] = [
            {"role": "user", "content": "Do bees sleep?"},
            {"role": "assistant", "content": words},
            {"role": "user", "content": "Are you sure?"},
            {"role": "assistant", "content": words},
        ]
    (vote,) = reshaped([{**talks, "winner": "model_a"}])
    with pytest.raises(NoText, match="conversations with several answers"):
        PREFERENCES.item(vote)


ASKED = "Why do bees need hives?"
SYSTEM = ("system", "You help beekeepers.")
TALK = (("user", ASKED), ("assistant", ANSWERED["chosen"]))
REQUEST = "Hives look strange\n\nMy hives look strange since Monday. What should I do?"
REPLY = "Please close the entrance and look at the hives again."
THANKS = ("user", "Thanks, it helped.")


@pytest.mark.parametrize(
    ("name", "turns"),
    [
        ("log-of-an-api.csv", (SYSTEM, *TALK)),
        ("log-of-an-api.parquet", (SYSTEM, *TALK)),
        ("log-with-texts-of-json.jsonl", (SYSTEM, *TALK)),
        ("messages-and-completions.csv", (SYSTEM, *TALK)),
        ("responses-with-instructions.jsonl", (SYSTEM, *TALK)),
        ("traces-of-a-chain.jsonl", TALK),
        ("traces-in-a-table.csv", (SYSTEM, *TALK)),
        ("issues-of-jira.json", (("user", REQUEST), ("assistant", REPLY), THANKS)),
        ("helpdesk-conversations.json", (("user", "How do I reset my password?"), ("assistant", "Open the account page, choose Security and follow the link in the mail."))),
        ("issues-with-comments.json", ()),
    ],
)  # fmt: skip
def test_the_turns_of_a_log_or_a_request(name, turns):
    first, *_ = rows.first(FILES / name, 1)
    assert tuple((turn["role"], turn["content"]) for turn in first["messages"]) == turns


def test_others_than_the_maintainers_of_an_issue_ask_too():
    issue = rows.first(FILES / "issues-with-comments.json", 3)[-1]
    assert [turn["role"] for turn in issue["messages"]] == ["user", "user", "assistant", "user"]


def test_an_issue_without_an_answer_is_left_out_and_not_lost():
    conversations = ChatSet(
        hub=None, revision=None, subset=None, split=None, path="rows", form="messages"
    )
    first, *_ = rows.first(FILES / "issues-with-comments.json", 1)
    with pytest.raises(NoExchange, match="rows without an answer"):
        conversations.conversation("chatml", first)


@pytest.mark.parametrize("name", ["messages-of-tickets.csv", "messages-from-staff.csv"])
def test_a_table_says_what_kind_of_person_wrote_a_message(name):
    first, *_ = rows.first(FILES / name, 1)
    assert [message["name"] for message in first["chat_log"]] == ["customer", "agent", "customer"]
