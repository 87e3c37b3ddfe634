"""Conversations in rows of other programs, as rows with `messages`."""

from __future__ import annotations

import pytest

from runner.data.logged_turns import with_messages
from runner.data.row_lists import field_paths

ASKED, ANSWERED = "Why do bees hum?", "They beat their wings."
USER = {"role": "user", "content": ASKED}
ASSISTANT = {"role": "assistant", "content": ANSWERED}
SYSTEM = {"role": "system", "content": "You are a beekeeper."}


@pytest.mark.parametrize(
    ("row", "turns"),
    [
        ({"request": {"messages": [USER]}, "response": {"choices": [{"index": 0, "message": ASSISTANT}]}}, [USER, ASSISTANT]),
        ({"messages": [USER], "response": ANSWERED}, [USER, ASSISTANT]),
        ({"messages": [USER], "choices": [{"message": ASSISTANT}]}, [USER, ASSISTANT]),
        ({"input": [USER], "output": [{"content": [{"type": "output_text", "text": ANSWERED}]}]}, [USER, ASSISTANT]),
        ({"body": {"messages": [USER]}, "response": '{"choices": [{"message": {"content": "They beat their wings."}}]}'}, [USER, ASSISTANT]),
        ({"contents": [{"role": "user", "parts": [{"text": ASKED}]}, {"role": "model", "parts": [{"text": ANSWERED}]}], "systemInstruction": {"parts": [{"text": SYSTEM["content"]}]}}, [SYSTEM, USER, ASSISTANT]),
        ({"system": [{"text": SYSTEM["content"]}], "messages": [USER, ASSISTANT]}, [SYSTEM, USER, ASSISTANT]),
        ({"messages": [{"role": "User", "content": ASKED}, {"role": "Chatbot", "content": ANSWERED}]}, [USER, ASSISTANT]),
        ({"items": [{"from": "human", "value": ASKED}, {"from": "gpt", "value": ANSWERED}]}, [USER, ASSISTANT]),
        ({"dialog": [ASKED, ANSWERED]}, [USER, ASSISTANT]),
        ({"text": f"### Human: {ASKED}### Assistant: {ANSWERED}"}, [USER, ASSISTANT]),
    ],
)  # fmt: skip
def test_a_conversation_of_another_program_is_in_messages(row, turns):
    assert with_messages(row)["messages"] == turns


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [USER, ASSISTANT]},
        {"conversations": [{"from": "human", "value": ASKED}, {"from": "gpt", "value": ANSWERED}]},
        {"prompt": [USER], "completion": [ASSISTANT]},
        {"prompt": [USER], "chosen": [ASSISTANT], "rejected": [ASSISTANT]},
        # A prompt with the reference of rewards.
        {"prompt": [USER], "answer": "42"},
        {"question": ASKED, "answer": ANSWERED},
        {"comments": [{"author": {"login": "anna"}, "body": ASKED}]},
        {"comments": [{"author": "anna", "text": ASKED}]},
        ["no object"],
    ],
)
def test_another_row_stays_as_it_is(row):
    assert with_messages(row) is row


def test_transcripts_of_preferences_become_turns():
    asked = f"\n\nHuman: {ASKED}\n\nAssistant: "
    row = with_messages({"chosen": f"{asked}{ANSWERED}", "rejected": f"{asked}No."})
    assert row["chosen"] == [USER, ASSISTANT]
    assert row["rejected"] == [USER, {"role": "assistant", "content": "No."}]


def test_turns_that_are_read_whole_are_one_column():
    assert field_paths({"chosen": [USER, ASSISTANT], "score": 1}) == ["chosen", "score"]
    assert field_paths({"asked": [USER], "answer": "42"}) == [
        "asked",
        "asked.0.role",
        "asked.0.content",
        "answer",
    ]


def test_the_first_comment_that_repeats_its_ticket_is_no_answer():
    ticket = {"description": ASKED, "comments": [{"body": ASKED}, {"body": ANSWERED}]}
    assert field_paths(ticket) == ["description", "comments", "comments.1.body"]


def test_the_messages_on_a_request_are_turns_without_those_of_colleagues():
    comments = [
        {"author_id": 7, "body": "Thanks, it works.", "public": True},
        {"author_id": 9, "body": "Ask for the log.", "public": False},
        {"author_id": 9, "body": "Glad to hear it.", "public": True},
    ]
    request = {"subject": "Login", "description": "I cannot log in.", "requester_id": 7}
    row = with_messages({**request, "comments": comments})
    assert [(turn["role"], turn["content"]) for turn in row["messages"]] == [
        ("user", "Login\n\nI cannot log in."),
        ("user", "Thanks, it works."),
        ("assistant", "Glad to hear it."),
    ]
    assert row["messages"].notes == 1
    assert row["messages"].fields == ("comments",)


def test_comments_without_a_requester_are_no_conversation():
    row = {"title": "Login", "comments": [{"author": "Eva", "body": "Me too."}]}
    assert with_messages(row) is row
