"""Broken lines: each costs what it costs, and is named by its number."""

from __future__ import annotations

import pytest

from runner.data import rows
from runner.data.rows import Bad, Source

HEADER = "topic,question,answer\n"


def read(file, column=None):
    source = Source(hub=None, revision=None, subset=None, split="train", path=str(file))
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
    monkeypatch.setattr(rows, "LONGEST_RECORD", 1000)
    (tmp_path / "rows.csv").write_text(HEADER + 'a,"b,c\n' + "d,e,f\n" * 1000 + '"' + "g" * 2000 + '",h,i\n')
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
    file.write_bytes(row[0] + b"".join(row[1] % word for word in (GOOD, BROKEN, GOOD, BROKEN, GOOD)) + row[2])
    good, bad = read(file, "q")
    first = {"csv": 2}.get(ending, 1)
    step = {"txt": 2}.get(ending, 1)
    assert list(bad) == [first + step, first + 3 * step]
    assert list(good)[:3] == [first, first + 2 * step, first + 4 * step]
    assert good[first]["q"] == "café"
    assert all("UTF-8" in reason for reason in bad.values())


def test_reasons_are_plain(tmp_path, golden_message):
    (tmp_path / "rows.csv").write_bytes(
        HEADER.encode() + b'a,"b,c\nd,"e",f\nx,y\n' + BROKEN + b',b,c\na,"he said "yes"",c\n'
    )
    (tmp_path / "rows.jsonl").write_bytes(b'{"a": "' + BROKEN + b'"}\n{"a": 1\n')
    reasons = [(name, *bad) for name in ("rows.csv", "rows.jsonl") for bad in read(tmp_path / name)[1].items()]
    golden_message("\n".join(f"{name}:{number}: {reason}" for name, number, reason in reasons))
