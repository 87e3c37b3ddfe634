"""What the doctor says of rows: which lines, how many, and nothing of what is personal in them."""

from __future__ import annotations

import json
import random
from itertools import chain

import pytest

from runner.catalog import chat_template
from runner.data import blocks, chat, doctor, tokenizers
from runner.data.data_sets import PlainText, TextSet
from runner.data.doctor import DrawingExaminer, ExaminedRow
from runner.data.judged import Labels, LabelSet, Preferences, PreferenceSet
from runner.data.report import Report, lines_of
from runner.data.tokenizers import Pretrained
from runner.tools.problem import Stop
from tests.data.test_chat_data import prepare, wanted

WORDS = (
    "The bowline makes a fixed loop at the end of a rope and it does not slip under load yet it comes undone with ease once "
    "the load is gone which is why sailors and climbers and rescue teams have used it for many hundred years"
)


def examined(rows: list[ExaminedRow]) -> Report:
    report = Report()
    examiner = DrawingExaminer(report)
    for each in rows:
        examiner.add(each.line, each.text, each.answer)
    examiner.end()
    return report


def found(rows: list[ExaminedRow]) -> dict[str, tuple[int, ...]]:
    report = examined(rows)
    assert (report.looked_at, report.looked_of) == (len(rows), len(rows))
    return {finding.kind: finding.lines for finding in report.findings}


def row(line: int, answer: str, question: str = "What is it?") -> ExaminedRow:
    return ExaminedRow(line, f"{question}\n{answer}", answer)


def test_rows_that_share_most_of_their_phrases_are_near_duplicates():
    other = "Boil the water for a minute, let it cool, and keep it in a clean bottle that you have rinsed with a part of it."
    rows = [
        row(1, WORDS),
        row(2, other),
        row(3, WORDS + " indeed"),
        row(7, WORDS.upper() + "!"),
        row(9, "Short."),
    ]
    assert found(rows)["near duplicates"] == (3, 7)


def test_short_answers_are_named():
    assert found([row(1, "Yes."), row(2, WORDS), row(5, "42")])["short answers"] == (1, 5)


@pytest.mark.parametrize(
    ("long", "short"),
    [("毎週一回巣箱を見る", "はい"), ("每周看一次", "是的"), ("매주 한 번 봅니다", "네 네")],
)
def test_short_answers_are_counted_in_the_characters_of_their_script(long, short):
    assert found([row(1, long), row(2, short), row(3, WORDS)])["short answers"] == (2,)


def test_a_question_with_different_answers_is_named_whatever_its_capitals():
    rows = []
    pairs = [
        ("Why?", "So."),
        ("why? ", "Because."),
        ("When?", "Now."),
        ("When?", "NOW."),
        ("", "A"),
    ]
    for line, (asked, answer) in enumerate(pairs, 1):
        rows.append(ExaminedRow(line, f"{asked}\n{answer}", answer, asked=asked))
    (several,) = doctor.several_answers(rows)
    assert (several.kind, several.lines) == ("several answers", (1, 2))


def test_preparation_names_the_same_question_with_two_answers(tmp_path, golden_message):
    rows = [{"question": f"What is {n}?", "answer": f"The number {n} of many."} for n in range(4)]
    rows.append({"question": "What is 2?", "answer": "The first prime number."})
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    asked = wanted(tmp_path / "rows.jsonl", question="[question]")
    report = prepare(asked, tmp_path / "out")
    (said,) = [finding for finding in report.findings if finding.kind == "several answers"]
    assert said.lines == (3, 5)
    golden_message(f"{said.count} {said.said}\n{said.remedy}")


@pytest.mark.parametrize(("alike", "one_sided"), [(4, False), (5, True)])
def test_answers_that_begin_alike_in_more_than_a_fifth_are_one_sided(alike, one_sided):
    rows = [
        row(n, f"{'Of course, my' if n < alike else f'number {n} is'} friend {n}")
        for n in range(20)
    ]
    assert found(rows).get("one-sided answers") == (tuple(range(alike)) if one_sided else None)


@pytest.mark.parametrize(("praise", "uneven"), [(11, False), (15, True)])
def test_classes_are_no_beginnings_and_one_of_them_may_be_too_many(praise, uneven):
    rows = [row(n, "praise" if n < praise else "complaint") for n in range(20)]
    findings = found(rows)
    assert "one-sided answers" not in findings
    assert findings.get("uneven classes") == (tuple(range(praise)) if uneven else None)


PERSONAL = {
    "email addresses": ["write to jane.doe@mail.company.org today", "JOE_9@web.de"],
    "telephone numbers": [
        "call +49 170 1234567",
        "call (555) 123-4567.",
        "555-123-4567",
        "ring 030 / 123 45 67",
        "+14155550123",
    ],
    "postal addresses": [
        "I live at 12 Long Acre Road in town",
        "221B Baker Street",
        "Musterstraße 12, Berlin",
        "12 rue de la Paix",
        "Calle de Alcalá 45",
        "Via Roma 7",
    ],
}
IMPERSONAL = [
    "at 10:30 on 2024-10-12, pages 100-200",
    "ISBN 978-3-16-148410-0",
    "1,000,000 people and 3.14159265",
    "an @ sign, a@b, name@example.com",
    "5 miles down the road",
    "192.168.100.200",
    "0123456789abcdef",
]


@pytest.mark.parametrize("kind", PERSONAL)
def test_likely_personal_data_is_named_by_its_line_and_never_said(kind, tmp_path):
    rows = [
        row(n, text)
        for n, text in enumerate(
            [*PERSONAL[kind], *IMPERSONAL, *chain.from_iterable(PERSONAL.values())], 1
        )
    ]
    lines = found(rows)[kind]
    assert lines[: len(PERSONAL[kind])] == tuple(range(1, len(PERSONAL[kind]) + 1))
    assert len(lines) == 2 * len(PERSONAL[kind])
    report = examined([row(n, f"{PERSONAL[kind][0]} again") for n in range(1, 41)])
    report.write(tmp_path)
    said = "\n".join([*report.lines(), (tmp_path / "report.json").read_text()])
    assert PERSONAL[kind][0][-8:] not in said


def test_rows_in_another_language_are_named():
    german = (
        "Der Palstek ist ein Knoten, mit dem man eine feste Schlaufe macht, die sich nicht zuzieht."
    )
    assert found([row(n, german if n == 4 else WORDS, "") for n in range(1, 8)])["languages"] == (
        4,
    )


def test_of_much_text_a_sample_is_looked_through_and_that_is_said(tmp_path, monkeypatch):
    rows = [
        {"topic": "t", "question": f"Question {n}?", "answer": f"Answer {n}. {WORDS}"}
        for n in range(400)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    monkeypatch.setattr(doctor, "MOST_CHARACTERS", 20_000)
    report = prepare(wanted(tmp_path / "rows.jsonl"), tmp_path / "out")
    assert 40 < report.looked_at < 140
    assert report.looked_of == 400
    assert any("of 400 rows" in line for line in report.lines())
    again = prepare(wanted(tmp_path / "rows.jsonl"), tmp_path / "out")
    assert list(again.lines()) == list(report.lines())


def test_findings_are_said_with_lines_and_a_remedy(tmp_path, golden_message):
    rows = [
        {"topic": "t", "question": f"Question {n}?", "answer": f"As I said, {n}. {WORDS}"}
        for n in range(30)
    ]
    rows[7]["answer"] = "Yes."
    rows[9]["answer"] = "Mail jane@company.org."
    rows[11] = rows[10]
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps(each) + "\n" for each in rows) + "{broken\n"
    )
    report = prepare(wanted(tmp_path / "rows.jsonl"), tmp_path / "out")
    lines = list(report.lines())
    golden_message(
        "\n".join(lines[next(n for n, line in enumerate(lines) if line.startswith("examined")) :])
    )


def test_documents_are_looked_through_as_conversations_are(tmp_path, golden_message):
    """Duplicates, empty and short ones, other languages, personal data: each with its lines and a
    remedy."""
    draw, words = random.Random(1), WORDS.split()
    texts = [" ".join(draw.choices(words, k=40)) for _ in range(100)]
    texts[9] = texts[3]
    texts[20] = texts[4] + " Indeed."
    texts[30] = (
        "Der Palstek ist ein Knoten, mit dem man eine feste Schlaufe macht, die sich nicht zuzieht."
    )
    texts[40] = texts[40] + " Write to jane.doe@mail.company.org."
    texts[50] = "Yes."
    texts[60] = " "
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = tokenizers.train(texts, tmp_path / "tokenizer", None, chat_template("chatml"), 400)
    source = {"hub": None, "revision": None, "subset": None, "split": None, "path": str(file)}
    plain = PlainText(
        sets=(TextSet(**source, text="text"),), validation_share=0.1, max_lost_share=0.02, seed=1, sequence_len=64,
        tokenizer=Pretrained(str(tmp_path / "tokenizer")), effective_batch_size=4, epochs=1, warmup_steps=1, eval_steps=None,
    )  # fmt: skip
    report = blocks.prepare(plain, tmp_path / "out", tokenizer_for=lambda _: tokenizer)
    told = list(report.lines())
    golden_message("\n".join([told[1], *lines_of("examined", report)]))
    again = blocks.prepare(plain, tmp_path / "out", tokenizer_for=lambda _: tokenizer)
    assert list(again.lines()) == told
    rehearsed = blocks.prepare(
        plain, tmp_path / "few", tokenizer_for=lambda _: tokenizer, sample_rows=5
    )
    assert not rehearsed.findings and not rehearsed.looked_at


def test_of_a_long_stream_no_more_is_held_than_is_looked_at_and_equal_texts_come_together(
    monkeypatch,
):
    monkeypatch.setattr(doctor, "MOST_CHARACTERS", 5000)
    drawn = DrawingExaminer(Report())
    for line in range(2000):
        drawn.add(line, f"Text {line % 1000} {WORDS}")
        assert drawn.characters <= 5000
    lines = [each.line for _, each in drawn.held]
    assert drawn.of == 2000 and len(lines) >= 8 and lines == sorted(lines)
    assert {line % 1000 for line in lines if line < 1000} == {
        line % 1000 for line in lines if line >= 1000
    }


def test_preferences_are_looked_through_as_conversations_are(tmp_path, golden_message):
    """What training cuts of long ones, beside what holds for conversations; unequal answers alone
    are kept."""
    draw, words = random.Random(1), WORDS.split()

    def said(count: int) -> str:
        return " ".join(draw.choices(words, k=count))

    rows = [{"q": f"{said(8)}?", "good": said(12), "bad": said(9)} for _ in range(60)]
    rows[3]["bad"] = rows[3]["good"]
    rows[5]["good"] = " "
    rows[7] = rows[6]
    rows[11]["good"] = "Yes."
    rows[13]["bad"] += " Write to jane.doe@mail.company.org."
    rows[17]["bad"] = said(200)
    rows[19] = {**rows[18], "good": rows[18]["good"] + "!"}
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = tokenizers.train(
        map(str, rows), tmp_path / "tokenizer", None, chat_template("chatml"), 400
    )
    source = {"hub": None, "revision": None, "subset": None, "split": None, "path": str(file)}
    asked = Preferences(
        sets=(PreferenceSet(**source, prompt="[q]", chosen="[good]", rejected="[bad]"),), system_prompt="Be brief.",
        validation_share=0.1, max_lost_share=0.1, seed=1, sequence_len=128, special_tokens=chat_template("chatml"),
        tokenizer=Pretrained(str(tmp_path / "tokenizer")),
    )  # fmt: skip
    report = chat.prepare(asked, tmp_path / "out", tokenizer_for=lambda _: tokenizer)
    assert report.token_lengths["max"] > 200 and report.train_rows + report.validation_rows == 57
    golden_message(
        "\n".join(
            line for line in report.lines() if not line.startswith(("tokens", "bytes", "rows in"))
        )
    )
    kept = list(chat.prepare(asked, tmp_path / "out", tokenizer_for=lambda _: tokenizer).lines())
    assert kept == list(report.lines())


def test_labels_are_judged(tmp_path, golden_message):
    """Rare ones, with the weight that makes up for them, and an answer with both; bad answers may
    be short and alike."""

    def report(rows: list[dict]) -> str:
        file = tmp_path / f"{len(rows)}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        source = {"hub": None, "revision": None, "subset": None, "split": None, "path": str(file)}
        asked = Labels(
            sets=(LabelSet(**source, completion="[completion]", label="[label]"),), system_prompt=None,
            validation_share=0.1, max_lost_share=0.1, seed=1, sequence_len=128, special_tokens=chat_template("chatml"),
        )  # fmt: skip
        lines = chat.prepare(asked, tmp_path / f"out{len(rows)}").lines()
        return "\n".join(
            line for line in lines if not line.startswith(("tokens", "bytes", "rows in"))
        )

    draw, words = random.Random(1), WORDS.split()
    rows = [
        {
            "prompt": f"Is it {number}?",
            "completion": " ".join(draw.choices(words, k=12)),
            "label": True,
        }
        for number in range(80)
    ]
    bad = [
        {"prompt": f"Why {number}?", "completion": "No idea.", "label": False}
        for number in range(20)
    ]
    golden_message(
        report([*rows, *bad, {**rows[3], "label": "false"}, {**rows[4], "completion": ""}])
    )
    swapped = [{**row, "label": not row["label"]} for row in [*rows, *bad]]
    golden_message(next(line for line in report(swapped).split("\n") if "kto_" in line), "swapped")
    with pytest.raises(Stop) as stopped:
        report(rows)
    golden_message(str(stopped.value), "one label")
