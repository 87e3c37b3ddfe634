"""Exports of chats, as their apps write them, become conversations: what is learned, what is left
out and counted, and who answers."""

from __future__ import annotations

import json
import shutil
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.check.validate import examine
from runner.commands.cli import _code
from runner.data import chat_exports, chat_logs, rows
from runner.data.row_files import Bad
from runner.recipe.templates import NoText
from runner.scenarios import prepare
from runner.tools.problem import Stop
from tests.conftest import ROOT
from tests.data.test_chat_data import table, wanted

FILES = ROOT / "tests" / "files"
OPEN = {"question": None, "answer": None, "form": None, "system_prompt": None}
# The person who answers; None where the export says it.
ANSWERED_BY = {
    "chatgpt-conversations.json": None,
    "claude-conversations.json": None,
    "discord-channel.json": "Anna",
    "log-of-names.txt": "Museum",
    "slack-day.json": "Anna",
    "telegram-result.json": "Anna",
    "whatsapp-android-english.txt": "Anna",
    "whatsapp-android-german.txt": "Anna",
    "whatsapp-iphone-group.txt": "Anna",
}


def prepared(name: str, folder: Path):
    """The report and the conversations of a file, each as a text with one turn on a line."""
    request = wanted(
        FILES / name,
        **OPEN,
        answered_by=ANSWERED_BY[name],
        max_lost_share=0.0,
        validation_share=0.0,
    )
    report = prepare(request, folder / "out")
    conversations = []
    for row in table(folder / "out", "train"):
        turns = [f"{turn['role']}: {turn['content']}" for turn in row["messages"]]
        conversations.append("\n".join(turns))
    return report, conversations


def test_every_export_here_has_a_person_who_answers():
    assert {*ANSWERED_BY} <= {file.name for file in FILES.iterdir()}


@pytest.mark.parametrize("name", ANSWERED_BY)
def test_an_export_becomes_conversations_and_what_is_left_out_is_counted(
    name, tmp_path, golden_message
):
    report, conversations = prepared(name, tmp_path)
    assert report.lost == 0
    counted = [line for line in report.lines() if line.startswith(("  changed", "  dropped"))]
    golden_message("\n".join([*counted, "", "\n\n".join(conversations)]))


@pytest.mark.parametrize("name", ANSWERED_BY)
def test_a_check_of_an_export_says_what_it_is(name, tmp_path, monkeypatch, capsys, golden_message):
    monkeypatch.chdir(tmp_path)
    shutil.copy(FILES / name, name)
    assert _code(["check", name]) == 1
    shown = capsys.readouterr()
    golden_message(f"{shown.out}\n{shown.err}")


# What a recipe may say of a chat, each with the beginning of its settings.
SAYING = {
    "nobody": "path: chat.txt\n  form: chat_log",
    "somebody else": "path: chat.txt\n  answered_by: Ana",
    "plain text by its ending": "path: chat.txt",
    "plain text": "path: chat.txt\n  form: text",
    "no chat": "path: talks.jsonl\n  answered_by: Anna",
    "prose as a chat": "path: prose.txt\n  answered_by: Anna",
}


@pytest.mark.parametrize("case", SAYING)
def test_a_check_of_a_recipe_names_the_people_of_its_chat(
    case, tmp_path, monkeypatch, golden_message
):
    monkeypatch.chdir(tmp_path)
    shutil.copy(FILES / "whatsapp-android-german.txt", "chat.txt")
    Path("prose.txt").write_text("Bees hum.\n\nFlies do, too.\n", "utf-8")
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    Path("talks.jsonl").write_text(f"{json.dumps({'messages': talk})}\n" * 3, "utf-8")
    Path("recipe.yaml").write_text(
        f"scenario: lora\nname: x\nmodel:\n  base: small\nmachines:\n  gpu: none\ndata:\n  {SAYING[case]}\n",
        "utf-8",
    )
    problems = [
        each
        for each in examine("recipe.yaml")
        if str(each).count("chat") or each.severity == "error"
    ]
    golden_message(
        "\n\n".join(f"{each.severity}: {each.message}\n{each.hint}" for each in problems)
    )


def new_recipe(name: str, *options: str) -> int:
    model = ("--model", "small", "--where", "here", "--gpu", "none")
    return _code(["new", "mine", "--data", name, "--hold-back", "no", *model, *options])


@pytest.mark.parametrize("name", ANSWERED_BY)
def test_a_new_recipe_of_an_export_is_valid_and_prepares_all_of_it(
    name, tmp_path, monkeypatch, capsys
):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert new_recipe(str(FILES / name)) == 0
    shown = capsys.readouterr().out
    text = Path("mine.yaml").read_text("utf-8")
    answerer = ANSWERED_BY[name]
    if answerer:
        assert f"answered_by: {answerer} " in text
        assert f"`{answerer}` answers in this chat" in shown
        assert f"--answered-by {answerer}" in shown
    assert not [problem for problem in examine("mine.yaml") if problem.severity == "error"]
    assert _code(["prepare", "mine.yaml"]) == 0


def test_a_new_recipe_says_who_answers_and_takes_another_person(
    tmp_path, monkeypatch, capsys, golden_message
):
    monkeypatch.chdir(tmp_path)
    shutil.copy(FILES / "whatsapp-iphone-group.txt", "club.txt")
    assert new_recipe("club.txt") == 0
    shown = capsys.readouterr().out
    (said,) = [line for line in shown.split("\n") if "answers in this chat" in line]
    (written,) = [
        line for line in Path("mine.yaml").read_text("utf-8").split("\n") if "answered_by" in line
    ]
    Path("mine.yaml").unlink()
    assert new_recipe("club.txt", "--answered-by", "Cara") == 0
    assert "answers in this chat" not in capsys.readouterr().out
    assert "answered_by: Cara " in Path("mine.yaml").read_text("utf-8")
    Path("mine.yaml").unlink()
    assert new_recipe("club.txt", "--answered-by", "Bob") == 1
    refused = capsys.readouterr().err
    assert not Path("mine.yaml").exists()
    golden_message(f"{said}\n{written}\n{refused}")


def test_preparation_without_a_person_who_answers_is_refused(tmp_path, golden_message):
    request = wanted(FILES / "slack-day.json", **OPEN)
    with pytest.raises(Stop) as stop:
        prepare(request, tmp_path / "out")
    golden_message(stop.value.text.replace(str(FILES), "<files>"))


def test_the_branch_of_chatgpt_that_was_left_is_not_learned():
    row = json.loads((FILES / "chatgpt-conversations.json").read_text("utf-8"))[0]
    texts = [text for _, text in chat_exports.chatgpt(row, None).turns]
    assert "And wasps?" in texts and "And flies?" not in texts
    # Without a current node, the last message without answers ends the branch.
    assert chat_exports.chatgpt({"mapping": row["mapping"]}, None).turns
    # A node that is its own parent ends, too.
    circle = {"mapping": {"a": {"parent": "a", "children": []}}, "current_node": "a"}
    assert not chat_exports.chatgpt(circle, None).turns


def test_a_chat_is_read_once_by_a_check(tmp_path, monkeypatch):
    """An export may have hundreds of megabytes."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(FILES / "telegram-result.json", "result.json")
    Path("recipe.yaml").write_text(
        "scenario: lora\nname: x\nmodel:\n  base: small\nmachines:\n  gpu: none\ndata:\n  path: result.json\n  answered_by: Anna\n",
        "utf-8",
    )
    made = chat_logs._made
    calls = []
    monkeypatch.setattr(chat_logs, "_made", lambda *of, **to: calls.append(1) or made(*of, **to))
    assert not [problem for problem in examine("recipe.yaml") if problem.severity == "error"]
    assert len(calls) == 1


def test_a_check_of_chatgpts_export_reads_its_beginning_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = (FILES / "chatgpt-conversations.json").read_text("utf-8")
    # A file that ends in the middle is noticed by preparation.
    Path("conversations.json").write_text(whole[: len(whole) // 2], "utf-8")
    (problem,) = examine("conversations.json")
    assert problem.message.startswith("This is ChatGPT's export")


# Days and times as WhatsApp writes them, each with strftime's form.
HEADERS = [
    "%d/%m/%Y, %H:%M - ",
    "%d.%m.%y, %H:%M - ",
    "%Y-%m-%d, %H:%M - ",
    "%m/%d/%y, %I:%M %p - ",
    "%m/%d/%y, %I:%M\u202f%p - ",
    "%d/%m/%Y %H:%M - ",
    "%d/%m/%Y à %H:%M - ",
    "[%d.%m.%y, %H:%M:%S] ",
    "[%m/%d/%y, %I:%M:%S %p] ",
    "\u200e[%Y/%m/%d, %H:%M:%S] ",
]
WORDS = st.text(
    st.characters(
        codec="utf-8", exclude_categories=("Cc", "Cf", "Zl", "Zp", "Cs"), exclude_characters="<>"
    ),
    min_size=1,
    max_size=30,
).filter(lambda text: text.strip() == text)
SPOKEN = st.lists(
    st.tuples(st.sampled_from(["Anna", "Ben", "+49 170 123"]), WORDS, st.integers(0, 3000)),
    min_size=1,
    max_size=20,
)


@given(st.sampled_from(HEADERS), SPOKEN)
@settings(max_examples=300, deadline=None)
def test_every_message_of_whatsapp_comes_back_in_order(header, spoken):
    moment = datetime(2024, 3, 28, 9, 30)
    lines = []
    for name, text, minutes in spoken:
        moment += timedelta(minutes=minutes)
        lines.append(f"{moment.strftime(header)}{name}: {text}")
    _, parts = chat_logs._of_text("\n".join(lines), is_alone=False)
    chat = chat_logs._made("a chat", parts.chats, all_encodable=True, is_alone=False)
    found = []
    for _, row in chat.rows:
        for message in row["chat_log"]:
            found += [(message["name"], line) for line in message["text"].split("\n")]
    assert found == [(name, text) for name, text, _ in spoken]
    # A pause of more than half a day separates two conversations, whatever the format of the time.
    pauses = sum(minutes * 60 > chat_logs.PAUSE_SECONDS for _, _, minutes in spoken[1:])
    assert len(chat.rows) == pauses + 1


@given(st.text(max_size=400))
@settings(max_examples=300, deadline=None)
def test_whatever_a_text_holds_each_line_is_in_a_message_or_counted(text):
    _, parts = chat_logs._of_text(text, is_alone=True)
    chats = parts.chats
    chat = chat_logs._made("a chat", chats, all_encodable=False, is_alone=True)
    words = 0
    left_out = 0
    for _, row in chat.rows:
        assert not isinstance(row, Bad)
        words += sum(len(message["text"].split("\n")) for message in row["chat_log"])
        left_out += len(row["left_out"])
    lines = [line for line in text.split("\n") if line.strip()]
    assert words + left_out >= min(1, len(lines))


ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=6)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["messages", "chats", "list", "type", "date", "text", "from", "author", "content", "name",
                 "timestamp", "ts", "user", "mapping", "a", "current_node", "parent", "children", "message",
                 "role", "parts", "content_type", "chat_messages", "sender", "chat_log", "left_out"]
            ),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=20,
)  # fmt: skip


@given(ANYTHING)
@settings(max_examples=400, deadline=None)
def test_whatever_json_holds_it_is_a_chat_or_none(content):
    title, chats = chat_logs._of_json(content)
    if chats:
        chat_logs._made(title, chats, all_encodable=False, is_alone=True)


@given(st.sampled_from(list(chat_exports.EXPORTS)), st.data())
@settings(max_examples=400, deadline=None)
def test_whatever_a_row_of_an_export_holds_it_has_turns_or_a_reason(form, data):
    column = {"chatgpt": "mapping", "claude": "chat_messages", "chat_log": "chat_log"}[form]
    row = {column: data.draw(ANYTHING), "current_node": "a", "left_out": data.draw(ANYTHING)}
    try:
        turns = chat_exports.EXPORTS[form](row, "a").turns
    except NoText:
        return
    assert all(role in ("user", "assistant") for role, _ in turns)


def test_a_long_conversation_is_cut_at_its_longest_pauses():
    messages = []
    for number in range(40):
        # After each tenth message a pause of an hour, else of a minute.
        seconds = 60.0 * number + 3600 * (number // 10)
        messages.append(chat_logs.ChatMessage(number + 1, "Anna", "x" * 399, seconds))
    conversations = list(chat_logs._conversations(messages))
    assert [conversation[0].line for conversation in conversations] == [1, 11, 21, 31]


def test_prose_is_no_chat(tmp_path):
    prose = "Bees hum.\nNote: they also dance.\nWhy? Nobody knows.\n"
    for name, text in {
        "prose.txt": prose,
        "empty.txt": "",
        "headings.txt": "One: a\nTwo: b\n",
    }.items():
        (tmp_path / name).write_text(text, "utf-8")
        assert chat_logs.chat_of(tmp_path / name) is None
        with pytest.raises(Stop):
            rows.first(tmp_path / name, 3)


def test_wrong_bytes_cost_their_conversation_alone(tmp_path):
    text = (
        (FILES / "whatsapp-android-german.txt")
        .read_bytes()
        .replace("schwärmen".encode(), b"schw\xe4rmen")
    )
    (tmp_path / "chat.txt").write_bytes(text)
    bad = [
        line for line, row in chat_logs.chat_of(tmp_path / "chat.txt").rows if isinstance(row, Bad)
    ]
    assert bad == [10]


def test_an_empty_line_separates_conversations_unless_it_is_everywhere(tmp_path):
    log = "A: Hi\nB: Hello\n\nA: Why?\nB: So.\n"
    (tmp_path / "log.txt").write_text(log, "utf-8")
    assert len(chat_logs.chat_of(tmp_path / "log.txt").rows) == 2
    (tmp_path / "spaced.txt").write_text(
        "\n\n".join(log.replace("\n\n", "\n").split("\n")), "utf-8"
    )
    assert len(chat_logs.chat_of(tmp_path / "spaced.txt").rows) == 1
