"""Chats in texts with headers, and what is left out of notes and subtitles."""

from __future__ import annotations

from datetime import datetime

import pytest

from runner.data import chat_texts, rows
from runner.data.chat_logs import chat_of
from runner.data.row_files import front_lines, plain_text
from tests.conftest import ROOT

FILES = ROOT / "tests" / "files"


@pytest.mark.parametrize(
    ("written", "moment"),
    [
        ("2024-01-02 10:05:00", datetime(2024, 1, 2, 10, 5)),
        ("1/2/2024 10:05 PM", datetime(2024, 1, 2, 22, 5)),
        ("2.1.2024, 10:05", datetime(2024, 1, 2, 10, 5)),
        ("13/1/24 10:05", datetime(2024, 1, 13, 10, 5)),
        ("Jan 02, 2024 10:05:01 AM", datetime(2024, 1, 2, 10, 5)),
        ("02-Jan-24 10:05 AM", datetime(2024, 1, 2, 10, 5)),
        ("2024-1-2 오후 10:05", datetime(2024, 1, 2, 22, 5)),
        ("10:05", None),
        ("Yesterday 10:05", None),
    ],
)
def test_the_time_of_a_message(written, moment):
    seconds = chat_texts.seconds_of(written)
    expected = None
    if moment:
        expected = (moment - datetime(1970, 1, 1)).total_seconds()
    assert seconds == expected


PROSE = "The station was built in 1890. Trains left at 10:05 and at 11:30.\nNobody waited.\n"


@pytest.mark.parametrize("text", [PROSE * 20, "10:05\n11:30\n" * 20, "Anna\nBen\nCarla\n" * 20, ""])
def test_prose_and_lists_are_no_chat(text):
    assert not chat_texts.messages_of(text.split("\n"))


NOTE = "---\ntitle: Bees\ntags:\n  - garden\n---\nBees hum.\n"


def test_the_properties_of_a_note_are_no_text():
    assert plain_text(NOTE) == "Bees hum.\n"
    rule_and_prose = "---\nBees hum, and nobody knows why\n---\n"
    assert not front_lines(rule_and_prose.splitlines())
    assert plain_text(rule_and_prose) == rule_and_prose


def test_subtitles_lose_their_times():
    cues = [f"{n}\n00:00:0{n},000 --> 00:00:0{n},900\nLine {n}.\n" for n in range(1, 5)]
    assert plain_text("\n".join(cues)) == "Line 1.\nLine 2.\nLine 3.\nLine 4."


@pytest.mark.parametrize("name", ["interview-with-voices.vtt", "interview-with-names-once.srt"])
def test_what_a_person_says_in_several_cues_is_one_turn(name):
    chat = chat_of(FILES / name)
    assert chat.likely_answerer == "Bernd"
    assert chat.cut.startswith("It is cut where `Anna` speaks, into parts of about 10 turns.")
    for _, row in chat.rows:
        assert [message["name"] for message in row["chat_log"][:2]] == ["Anna", "Bernd"]
    _, answer = chat.rows[0][1]["chat_log"][:2]
    assert answer["text"].startswith("Well, about hives")
    assert answer["text"].endswith("each morning before breakfast.")


def test_what_many_people_say_is_a_text_with_their_names():
    assert chat_of(FILES / "meeting-of-four.vtt") is None
    text = plain_text((FILES / "meeting-of-four.vtt").read_text("utf-8"))
    first, second, *_ = text.split("\n")
    assert first == "Anna: What do you do about hives in May?"
    assert second.startswith("Bernd: Well, about hives in May there is much to say, because")


def test_an_exchange_stays_whole_however_long_it_is(tmp_path):
    chat = tmp_path / "interview.srt"
    cues = []
    for number in range(4):
        cues.append(f"00:0{number}:00,000 --> 00:0{number}:30,000\nAnna: Why {number}?\n")
        cues.append(f"00:0{number}:30,000 --> 00:0{number}:59,000\nBernd: {'Because. ' * 600}\n")
    chat.write_text("\n".join(cues), "utf-8")
    content = chat_of(chat)
    assert [len(row["chat_log"]) for _, row in content.rows] == [2, 2, 2, 2]


def test_subtitles_of_youtube_lose_their_times():
    cues = [f"0:00:0{n}.000,0:00:0{n}.900\nLine {n}.\n" for n in range(1, 5)]
    assert plain_text("\n".join(cues)) == "Line 1.\nLine 2.\nLine 3.\nLine 4."


@pytest.mark.parametrize(
    ("name", "people", "conversations"),
    [
        ("kakaotalk-of-a-phone.txt", {"김민수", "이영희"}, 2),
        ("line-chat-in-english.txt", {"Anna", "Bernd"}, 2),
        ("line-chat-of-a-computer.txt", {"Anna Beck", "Bernd"}, 2),
        ("signal-messages.jsonl", {"+491701234567", "Me"}, 2),
        ("imessages-below-days.txt", {"+491701234567", "Me"}, 4),
        ("teams-copied-with-clocks.txt", {"Anna Beck", "Bernd Ohm"}, 2),
        ("teams-copied-with-days.txt", {"Anna Beck", "Bernd Ohm"}, 4),
    ],
)
def test_the_people_and_the_conversations_of_a_chat(name, people, conversations):
    chat = chat_of(FILES / name)
    assert set(chat.speakers) == people
    assert len(chat.rows) == conversations
    assert "no times" not in chat.cut


CLIPPINGS = (
    "The Book (Beck, Anna)\n- Your Highlight on page 3 | Added on Monday\n\nBees hum.\n==========\n"
    "The Book (Beck, Anna)\n- Your Bookmark on page 4 | Added on Monday\n\n\n==========\n"
    "The Book (Beck, Anna)\n- Your Note on page 5 | Added on Monday\n\nThey also\ndance.\n==========\n"
)


def test_clippings_lose_their_book_and_place(tmp_path):
    file = tmp_path / "My Clippings.txt"
    file.write_text(f"\ufeff{CLIPPINGS}", "utf-8")
    texts = rows.first(file, None, column="text")
    assert [row["text"] for row in texts] == ["Bees hum.", "They also\ndance."]
    assert plain_text(CLIPPINGS) == "Bees hum.\n\nThey also\ndance."


def test_other_texts_between_rules_are_no_clippings(tmp_path):
    file = tmp_path / "letters.txt"
    file.write_text(
        "Dear Anna\n- first\n\nBees hum.\n==========\nHello\nYes.\n==========\n", "utf-8"
    )
    assert "Dear Anna" in rows.first(file, 1, column="text")[0]["text"]


def test_the_properties_of_hugo_are_no_text():
    note = '+++\ntitle = "Bees"\ntags = [\n  "garden",\n]\n[params]\n  hum = true\n+++\nBees hum.\n'
    assert plain_text(note) == "Bees hum.\n"
