"""Which columns hold questions and which answers, as people's tables have them."""

from __future__ import annotations

import pytest

from runner.data.columns import further_pair, likely_pair, question_and_answer

LONG = "They beat their wings {} times a second, and the air between them hums."
ASKS = "Why do bees hum in the month of number {}?"


def table(count: int = 30, **columns: str | list) -> list[dict]:
    """Rows whose values are the texts with the number of the row, or the values in turn."""
    rows = []
    for number in range(count):
        row = {}
        for name, value in columns.items():
            if isinstance(value, list):
                row[name] = value[number % len(value)]
            else:
                row[name] = value.format(number)
        rows.append(row)
    return rows


TABLES = {
    "usual names": (table(question=ASKS, answer=LONG), ("question", "answer")),
    "the other order": (table(answer=LONG, question=ASKS), ("question", "answer")),
    "other words beside a name": (
        table(**{"Customer question": ASKS, "our_answer": LONG, "id": "c{}"}),
        ("Customer question", "our_answer"),
    ),
    "German, with a remark and a person": (
        table(Frage=ASKS, Antwort=LONG, Wer=["Eva", "Jo"], Bemerkung=["", "", "", "", "geprüft"]),
        ("Frage", "Antwort"),
    ),
    "an answer whose name stands over an empty column": (
        table(Frage=ASKS, Antwort=["", "", "", "", LONG], Text=LONG),
        ("Frage", "Text"),
    ),
    "no names, with a question mark": (table(x=LONG, y=ASKS), ("y", "x")),
    "no names and no question marks: the longer text answers": (
        table(x=LONG, y="Tell me about month {}"),
        ("y", "x"),
    ),
    "texts of one length: the order of the file": (
        table(de="Der Hund Nummer {} schläft.", en="The dog number {} is asleep."),
        ("de", "en"),
    ),
    "ids, dates, addresses, files and numbers are none": (
        table(
            id="c{}",
            created="2026-03-01 10:{}",
            url="https://example.org/a-rather-long-address/of/page/{}",
            file="scan-{}.pdf",
            price=[12.5, 3],
            subject="How does {} work?",
            body=LONG,
        ),
        ("subject", "body"),
    ),
    "a kind is no question": (
        table(category=["honey", "wax"], request="Tell me about {}", text=LONG),
        ("request", "text"),
    ),
    "a kind is what is learned if there is nothing else": (
        table(review=LONG, sentiment=["good", "bad"]),
        ("review", "sentiment"),
    ),
    "a label with a usual name": (
        table(text=LONG, answer=["good", "bad"]),
        ("text", "answer"),
    ),
    "numbers are answers if they are called so": (
        table(question=ASKS, answer=[12, 7]),
        ("question", "answer"),
    ),
    "Chinese": (
        table(编号="{}", 问题="蜜蜂 {} 为什么嗡嗡叫？", 答案="它们拍打翅膀,空气随之振动 {}。"),
        ("问题", "答案"),
    ),
    "ChatGPT's list of conversations": (
        table(title="Chat {}", create_time=[1.5e9], mapping=[{"a": {}}], id="c{}"),
        None,
    ),
    "one text": (table(id="{}", text=LONG), None),
    "no rows": ([], None),
}


@pytest.mark.parametrize("rows, pair", TABLES.values(), ids=TABLES)
def test_columns_are_found_by_name_and_by_what_is_in_them(rows, pair):
    names = list(rows[0]) if rows else ["question", "answer"]
    assert question_and_answer(names, rows) == pair


def test_a_name_of_one_letter_is_no_part_of_another_name():
    rows = table(a_b="Tell me about {}", q_c=LONG)
    assert question_and_answer(["a_b", "q_c"], rows) == ("a_b", "q_c")


def test_several_answers_without_a_right_one_are_no_quiz():
    rows = table(question=ASKS, answer_1=LONG, answer_2="It hums {}", level=["easy", "hard"])
    question, answer = likely_pair(list(rows[0]), rows)
    assert question == "[question]"
    assert answer == "[answer_1]"


def test_names_of_classes_come_before_names_of_states():
    melding = "Er ligt afval bij de container in straat {}."
    states = {"Wijk": ["Noord", "Centrum"], "Status": ["Afgehandeld", "In behandeling"]}
    rows = table(12, Melding=melding, Soort=["Afval", "Wegen"], **states)
    assert question_and_answer(list(rows[0]), rows) == ("Melding", "Soort")
    rows = table(12, Melding=melding, Status=states["Status"])
    assert question_and_answer(list(rows[0]), rows) == ("Melding", "Status")


def test_several_columns_of_few_values_without_such_names_are_asked_about():
    rows = table(12, Report="There is waste in street {}.", Ring=["a", "b"], Round=["x", "y"])
    assert question_and_answer(list(rows[0]), rows) is None


@pytest.mark.parametrize(
    ("subject", "details", "answer"),
    [
        ("Short description", "Description", "Close notes"),
        ("Betreff", "Beschreibung", "Lösung"),
        ("Asunto", "Descripción", "Notas de resolución"),
        ("Onderwerp", "Omschrijving", "Afhandeling"),
        ("件名", "お問い合わせ内容", "対応内容"),
    ],
)
def test_the_subject_and_the_details_of_a_request_are_its_question(subject, details, answer):
    rows = table(**{subject: "Printer {}", details: "It is empty {}. Why?", answer: LONG})
    assert likely_pair(list(rows[0]), rows) == (f"[{subject}]\n\n[{details}]", f"[{answer}]")


def test_the_words_of_code_ask_for_it():
    program = "def hum_{}(bees):\n    return [bee.hum() for bee in bees]"
    rows = table(12, code=program, docstring="Hum as bee {}.", docstring_tokens="Hum")
    assert question_and_answer(list(rows[0]), rows) == ("docstring", "code")
    of_shop = table(12, code="A-{}", text=LONG, title="Honey {}")
    assert question_and_answer(list(of_shop[0]), of_shop) == ("title", "text")


@pytest.mark.parametrize(
    ("names", "used", "further"),
    [
        (("question_en", "answer_en", "question_de", "answer_de"), 2, ("question_de", "answer_de")),
        (("Frage", "Antwort", "Question", "Answer"), 2, ("Question", "Answer")),
        (("question", "answer", "user", "reply_count"), 2, None),
        (("question", "answer"), 2, None),
    ],
)
def test_another_question_with_its_answer_is_found(names, used, further):
    columns = {name: f"{name} says {{}} and more" for name in names}
    if "user" in columns:
        columns |= {"user": ["anna", "bernd"], "reply_count": [1, 2]}
    rows = table(12, **columns)
    assert further_pair(names, names[:used], rows) == further


def test_a_summary_is_what_is_learned_of_a_text():
    rows = table(12, article=LONG, highlights="Bees hum in garden {}, all of them.")
    assert question_and_answer(list(rows[0]), rows) == ("article", "highlights")


def test_of_two_statements_the_label_is_learned():
    rows = table(12, premise="Bees {} hum.", hypothesis="They {} are loud.", label=[0, 1, 2])
    assert likely_pair(list(rows[0]), rows) == ("[premise]\n\n[hypothesis]", "[label]")


def test_a_language_below_a_translation_is_no_answer_by_its_name():
    rows = [
        {"translation": {"en": f"The bee {n} hums.", "de": f"Biene {n} summt."}} for n in range(12)
    ]
    names = ["translation.en", "translation.de"]
    assert question_and_answer(names, rows) == ("translation.en", "translation.de")


@pytest.mark.parametrize("name", ["role", "author_type", "direction"])
def test_what_kind_of_person_wrote_a_row_is_no_answer(name):
    rows = table(12, title="Why do bees {} hum?", **{name: ["a user writes", "staff writes"]})
    assert question_and_answer(list(rows[0]), rows) is None
