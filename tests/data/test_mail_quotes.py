"""Replies that quote the mail they answer."""

import pytest

from runner.data import rows
from runner.data.mail_quotes import mail_of, without_reply_mark
from runner.data.reshaping import reshaped
from tests.conftest import ROOT

FILES = ROOT / "tests" / "files"
REPLY = "Dear Anna,\nclose the entrance.\n\nYours, Ben"
ASKED = "My hives look strange.\nWhat should I do?"
QUOTED = "\n".join(f"> {line}" for line in ASKED.split("\n"))


@pytest.mark.parametrize(
    "above",
    [
        "-----Original Message-----\nFrom: Anna Beck <anna@example.org>\nSent: Tuesday, March 5, 2024\nTo: Ben\nSubject: Hives\n",
        "-----Ursprüngliche Nachricht-----\nVon: Anna Beck\nGesendet: Dienstag, 5. März 2024\nAn: Ben\nBetreff: Bienen\n",
        "________________________________\nVon: Anna Beck\nGesendet: Dienstag, 5. März 2024\nAn: Ben\nBetreff: Bienen\n",
        "*From:* Anna Beck\n*Sent:* Tuesday, March 5, 2024\n*To:* Ben\n*Subject:* Hives\n",
        "De : Anna Beck <anna@example.org>\nEnvoyé : mardi 5 mars 2024\nÀ : Ben\nObjet : Ruches\n",
        "De: Anna Beck\nEnviado el: martes, 5 de marzo de 2024\nPara: Ben\nAsunto: Colmenas\n",
        "Da: Anna Beck\nInviato: martedì 5 marzo 2024\nA: Ben\nOggetto: Arnie\n",
        "De: Anna Beck\nEnviada em: terça-feira\nPara: Ben\nAssunto: Colmeias\n",
        "Van: Anna Beck\nVerzonden: dinsdag 5 maart 2024\nAan: Ben\nOnderwerp: Bijen\n",
        "Od: Anna Beck\nWysłano: wtorek, 5 marca 2024\nDo: Ben\nTemat: Ule\n",
        "От: Anna Beck\nОтправлено: 5 марта 2024\nКому: Ben\nТема: Ульи\n",
        "Kimden: Anna Beck\nGönderildi: 5 Mart 2024 Salı\nKime: Ben\nKonu: Kovanlar\n",
        "发件人: Anna Beck\n发送时间: 2024年3月5日\n收件人: Ben\n主题: 蜂箱\n",
    ],
)
def test_a_quoted_mail_below_its_head_is_cut(above):
    assert mail_of(f"{REPLY}\n\n{above}\n{ASKED}\n") == (REPLY, ASKED)
    assert mail_of(f"{REPLY}\r\n\r\n{above}\r\n{ASKED}\r\n".replace("\n", "\r\n")).reply == REPLY


@pytest.mark.parametrize(
    "above",
    [
        "On Tue, Mar 5, 2024 at 9:14 AM Anna Beck <anna@example.org> wrote:",
        "On Tue, Mar 5, 2024 at 9:14 AM Anna Beck\n<anna@example.org> wrote:",
        "Am 05.03.24 um 09:14 schrieb Anna Beck:",
        "Am Di., 5. März 2024 um 09:14 Uhr schrieb Anna Beck <anna@example.org>:",
        "El mar, 5 mar 2024 a las 9:14, Anna Beck (<anna@example.org>) escribió:",
        "Le mar. 5 mars 2024 à 09:14, Anna Beck <anna@example.org> a écrit :",
        "Il giorno mar 5 mar 2024 alle ore 09:14 Anna Beck <anna@example.org> ha scritto:",
        "Em ter., 5 de mar. de 2024 às 09:14, Anna Beck <anna@example.org> escreveu:",
        "Op di 5 mrt 2024 om 09:14 schreef Anna Beck <anna@example.org>:",
        "W dniu 05.03.2024 o 09:14, Anna Beck pisze:",
        "вт, 5 мар. 2024 г. в 09:14, Anna Beck <anna@example.org>: написал:",
        "Anna Beck <anna@example.org>, 5 Mar 2024 Sal, 09:14 tarihinde şunu yazdı:",
        "Anna Beck <anna@example.org> 于2024年3月5日周二 09:14写道：",
    ],
)
def test_quoted_lines_below_who_wrote_them_are_cut(above):
    assert mail_of(f"{REPLY}\n\n{above}\n\n{QUOTED}\n") == (REPLY, ASKED)
    # Some people answer below.
    assert mail_of(f"{above}\n{QUOTED}\n\n{REPLY}\n") == (REPLY, ASKED)


def test_of_a_long_exchange_the_last_mail_asks():
    older = "On Mon, Mar 4, 2024 Ben <ben@example.org> wrote:\n> Hello"
    inner = "\n".join(f"> {line}".rstrip() for line in f"{ASKED}\n\n{older}".split("\n"))
    above = "On Tue, Mar 5, 2024 Anna <anna@example.org> wrote:"
    assert mail_of(f"{REPLY}\n\n{above}\n{inner}") == (REPLY, ASKED)


@pytest.mark.parametrize(
    "text",
    [
        "He wrote:\n> Bees hum.\nThat is true.",
        "From: the garden\nwe see more.",
        "Data: 3\nA: one",
        "Some lines\n\n> of Markdown\n\nand more",
    ],
)
def test_other_texts_stay_as_they_are(text):
    assert mail_of(text) == (text, "")


@pytest.mark.parametrize(
    ("subject", "plain"), [("RE: AW: Hives", "Hives"), ("Re：Hives", "Hives"), ("Hives: a club", "Hives: a club")]
)  # fmt: skip
def test_the_marks_of_a_reply_are_no_part_of_its_subject(subject, plain):
    assert without_reply_mark(subject) == plain


def test_sent_mails_answer_what_they_quote():
    (first, *_) = rows.first(FILES / "sent-mails-of-outlook.csv", None)
    assert first["question"].startswith("hives of garden 0\n\nHello,\nmy hives of garden 0 look")
    assert first["Body"].endswith("again tomorrow.\nYours, Support")


def test_a_table_of_questions_loses_the_quoted_mails_alone():
    quoting = f"{REPLY}\n\nOn 5 March 2024 Anna <a@example.org> wrote:\n{QUOTED}"
    (row, *_) = reshaped([{"Question": ASKED, "Answer": quoting}] * 4)
    assert row == {"Question": ASKED, "Answer": REPLY}


def test_a_mail_that_is_only_forwarded_answers_nothing():
    above = "-----Original Message-----\nFrom: Anna\nSent: Tuesday\nTo: Ben\n\n"
    mails = [{"Subject": "RE: Hives", "Body": f"{REPLY}\n{above}{ASKED}"}] * 4
    (*_, last) = reshaped([*mails, {"Subject": "FW: Hives", "Body": f"{above}{ASKED}"}])
    assert last == {"Subject": "FW: Hives", "Body": "", "question": ""}


def test_only_replies_of_a_box_of_mails_are_rows(tmp_path):
    box = FILES / "sent-mails.mbox"
    first, *others = rows.first(box, None)
    assert first["question"].startswith("hives\n\nHello,")
    assert len(others) == 27
    news = tmp_path / "news.mbox"
    news.write_text("From a@b.c Tue Mar  5 09:14:00 2024\nSubject: News\n\nBees hum.\n", "utf-8")
    assert rows.without_rows(news)
