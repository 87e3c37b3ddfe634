"""Broken lines: each costs what it costs, and is named by its number."""

from __future__ import annotations

import json
import sys

import pytest

from runner.data import row_files, rows
from runner.data.data_sets import DataSource
from runner.data.report import Report, lines_of, most_lost
from runner.data.row_files import Bad
from runner.tools.problem import Stop
from tests.data.test_chat_data import prepare, table, wanted

HEADER = "topic,question,answer\n"


def read(file, column=None):
    source = DataSource(hub=None, revision=None, subset=None, split="train", path=str(file))
    numbered = list(rows.read(source, column=column))
    good = {number: row for number, row in numbered if not isinstance(row, Bad)}
    bad = {number: row.reason for number, row in numbered if isinstance(row, Bad)}
    assert len(good) + len(bad) == len(numbered)
    return good, bad


QUOTES = {
    "up to a quote behind": ('a,"b,c\nd,"e",f\ng,h,i\n', [2], [3, 4]),
    "up to a quote at an end": ('a,"b,c\nd,e,f"\ng,h,i\n', [2], [3, 4]),
    "up to the end": ("a,b,c\n" + 'd,"e,f\n' + "g,h,i\n" * 5, [3], [2, 4, 5, 6, 7, 8]),
    "two of them": ('a,"b,c\nd,"e,f\ng,h,i\n', [2, 3], [4]),
    "before a row of two lines": ('a,"b,c\nd,"e\ne",f\ng,h,i\n', [2], [3, 5]),
    "in the last line": ('a,b,c\nd,"e,f\n', [3], [2]),
    "inside a text": ('a,"he said "yes" twice",c\nd,e,f\n', [2], [3]),
    "none, in a row of two lines that lacks a column": ('a,"b\nb"\nd,e,f\n', [2], [4]),
    "none, in a text with commas": ('a,"b, b,\nb, b",c\nd,e,f\n', [], [2, 4]),
}


@pytest.mark.parametrize("case", QUOTES)
def test_an_open_quote_costs_its_own_line_and_no_other(case, tmp_path):
    text, bad_lines, good_lines = QUOTES[case]
    (tmp_path / "rows.csv").write_text(HEADER + text)
    good, bad = read(tmp_path / "rows.csv")
    assert (list(bad), list(good)) == (bad_lines, good_lines)


def test_an_open_quote_in_a_large_file_is_found_without_reading_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(row_files, "LONGEST_RECORD", 1000)
    (tmp_path / "rows.csv").write_text(
        HEADER + 'a,"b,c\n' + "d,e,f\n" * 1000 + '"' + "g" * 2000 + '",h,i\n'
    )
    good, bad = read(tmp_path / "rows.csv")
    assert (list(bad), len(good)) == ([2], 1001)


BROKEN = "caf\xe9".encode("latin-1")
GOOD = "café".encode()


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv", "txt"])
def test_wrong_bytes_cost_the_line_that_has_them(ending, tmp_path):
    row = {
        "jsonl": (b"", b'{"q": "%s"}\n', b""),
        "json": (b"[", b'{"q": "%s"}, ', b'{"q": "end"}]'),
        "csv": (b"q,n\n", b"%s,1\n", b""),
        "txt": (b"", b"%s\n\n", b""),
    }[ending]
    file = tmp_path / f"rows.{ending}"
    file.write_bytes(
        row[0] + b"".join(row[1] % word for word in (GOOD, BROKEN, GOOD, BROKEN, GOOD)) + row[2]
    )
    good, bad = read(file, "q")
    first = {"csv": 2}.get(ending, 1)
    step = {"txt": 2}.get(ending, 1)
    assert list(bad) == [first + step, first + 3 * step]
    assert list(good)[:3] == [first, first + 2 * step, first + 4 * step]
    assert good[first]["q"] == "café"
    assert all("UTF-8" in reason for reason in bad.values())


def test_reasons_are_plain(tmp_path, golden_message):
    (tmp_path / "rows.csv").write_bytes(
        HEADER.encode()
        + b'a,"b,c\nd,"e",f\nx,y\n'
        + BROKEN
        + b',b,c\na,"he said "yes"",c\n'
        + "ü,ö,ä\n".encode()
    )
    (tmp_path / "rows.jsonl").write_bytes(b'{"a": "' + BROKEN + b'"}\n{"a": 1\n')
    reasons = [
        (name, *bad)
        for name in ("rows.csv", "rows.jsonl")
        for bad in read(tmp_path / name)[1].items()
    ]
    golden_message("\n".join(f"{name}:{number}: {reason}" for name, number, reason in reasons))


def asked(folder, bad: int, share: float):
    """200 rows, of which so many are broken."""
    good = [
        {"topic": "t", "question": f"q {n}", "answer": f"an answer with the number {n}"}
        for n in range(200 - bad)
    ]
    lines = [
        *map(json.dumps, good),
        *["{broken"] * (bad - 1),
        json.dumps(good[0] | {"answer": " "}),
    ]
    (folder / "rows.jsonl").write_text("\n".join(lines))
    return wanted(folder / "rows.jsonl", max_lost_share=share)


@pytest.mark.parametrize(
    ("bad", "share", "stops"),
    [(5, 0.01, False), (6, 0.01, True), (6, 0.03, False), (3, 0.0, True)],
)
def test_more_bad_rows_than_are_allowed_end_it(bad, share, stops, tmp_path, golden_message):
    if not stops:
        report = prepare(asked(tmp_path, bad, share), tmp_path / "out")
        assert (report.lost, report.train_rows + report.validation_rows) == (bad, 200 - bad)
        return
    with pytest.raises(Stop) as stop:
        prepare(asked(tmp_path, bad, share), tmp_path / "out")
    assert stop.value.code == 1
    assert not list((tmp_path / "out").glob("*.parquet"))
    assert [line for line, _ in Report.read(tmp_path / "out").bad_lines] == list(
        range(200 - bad + 1, 200)
    )
    golden_message(stop.value)


def test_what_was_prepared_before_is_not_taken_for_rows_that_are_refused(tmp_path):
    prepare(asked(tmp_path, 1, 0.01), tmp_path / "out")
    for _ in range(2):
        with pytest.raises(Stop):
            prepare(asked(tmp_path, 7, 0.01), tmp_path / "out")
    assert prepare(asked(tmp_path, 7, 0.1), tmp_path / "out").lost == 7


@pytest.mark.parametrize(
    ("of", "share", "most"),
    [(144, 0.01, 5), (2000, 0.01, 20), (30, 0.01, 3), (9, 0.01, 0), (30, 0.5, 15), (144, 0, 0)],
)
def test_of_a_small_file_a_few_rows_may_be_lost(of, share, most):
    assert most_lost(share, of) == most


class Letters:
    name_or_path = "letters"

    def __call__(self, texts, add_special_tokens):
        return {"input_ids": [list(text) for text in texts]}


@pytest.mark.parametrize("twin", [False, True])
def test_rows_that_are_too_long_are_lost_unless_a_twin_has_counted(twin, tmp_path, golden_message):
    rows = [
        {"topic": "t", "question": f"q {n}", "answer": "letters " * (1 + 40 * (n == 7))}
        for n in range(20)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tokenizer = Letters()
    if twin:
        tokenizer.said_as = "a twin"
    settings = wanted(tmp_path / "rows.jsonl", max_lost_share=0.0, sequence_len=300)
    if twin:
        report = prepare(settings, tmp_path / "out", tokenizer_for=lambda texts: tokenizer)
        (finding,) = [finding for finding in report.findings if finding.kind == "too long"]
        assert (report.lost, finding.lines) == (0, (8,))
        golden_message("\n".join(lines_of("finding", finding)))
        return
    with pytest.raises(Stop) as stop:
        prepare(settings, tmp_path / "out", tokenizer_for=lambda texts: tokenizer)
    golden_message(stop.value)


def test_a_large_file_is_read_by_several_processes_to_the_same_rows(tmp_path, monkeypatch):
    from runner.data import items

    settings = asked(tmp_path, 6, 1.0)
    (tmp_path / "rows.jsonl").write_text(((tmp_path / "rows.jsonl").read_text() + "\n") * 2)
    reports, sides = [], []
    for size in (items.PART_BYTES, 2000):
        monkeypatch.setattr(items, "PART_BYTES", size)
        out = tmp_path / f"out{size}"
        reports.append(prepare(settings, out))
        sides.append([table(out, side)[:] for side in ("train", "validation")])
    assert sides[0] == sides[1]
    assert list(reports[0].lines()) == list(reports[1].lines())
    assert (reports[0].lost, reports[0].duplicates) == (12, 194)
    assert not list(tmp_path.glob("out*/.rows*"))


LINES = (
    '{"q": "caf\\u00e9 \\ud83d\\ude00", "n": [1, -0.0, 1e22, {"m": null}]}',
    '{"q": 9223372036854775808, "n": -9223372036854775809}',
    '{"n": [{"m": 123456789012345678901234567890}]}',
    '{"q": NaN, "n": -Infinity}',
    '{"q": 1e400}',
    '{"q": 1, "q": 2}',
    '{"q": "\\ud83d"}',
    '{"q": "a\tb"}',
    '{"q": "a"} {"q": "b"}',
    '{"q": "a"},',
    '{"q": "a"',
    '["q"]',
    "null",
    '{"q": ' + "[" * 5000 + "]" * 5000 + "}",
)


def test_lines_are_the_same_rows_with_and_without_orjson(tmp_path, monkeypatch):
    (tmp_path / "rows.jsonl").write_bytes("\n".join(LINES).encode() + b"\n" + BROKEN)
    quickly = read(tmp_path / "rows.jsonl")
    monkeypatch.setitem(sys.modules, "orjson", None)
    assert repr(read(tmp_path / "rows.jsonl")) == repr(quickly)
    assert (
        list(quickly[0]) == [1, 2, 3, 4, 5, 6]
        and quickly[0][3]["n"][0]["m"] == 123456789012345678901234567890
    )
