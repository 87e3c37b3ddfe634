"""What people read is plain English: no phrase of a translation, short sentences, one word for one
thing."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
import textstat
import yaml

from tests.conftest import ROOT
from tests.docs.pages import PAGES, README

# Words and constructions that may not come back, each with what to write instead.
INSTEAD = {
    r"(?:is|are|be|was|were) (?:told|said)(?! to\b)": "is printed, reported or shown",
    r"said (?:above|below)": "the problems above",
    r"by hand": "manually",
    r"anew": "again",
    r"nobody (?:has|knows|reads|asks)": "say what is unknown or unused",
    r"stands? in its way": "this machine is ready",
    r"mend(?:s|ed)?": "fix",
    r"goes along": "is copied with it",
    r"(?:goes|go|went) on(?! (?:a|the|hub)\b)": "continue",
    r"in its place": "instead",
    r"in place of": "instead of",
    r"for ever": "without end",
    r"held against": "compared with",
    r"told in money": "as a cost",
    r"lies? (?:beside|below|on|in|there|here|at)": "is",
    r"lie": "is",
    r"stands? (?:beside|below|above|behind|there|here)": "is",
    r"has left (?:no|nothing)": "has no",
    r"what was asked for": "name it",
    r"by all that is known": "as far as this machine can tell",
    r"whose it is": "who owns it",
    r"of whom": "whose",
    r"(?<!there )is no (?:name|number|file|folder|run|recipe|model|list|text|price|count)": "is not a …",
    r"(?:as|than) it stands": "as it is",
    r"of (?:its|their) own accord": "by itself",
    r"without a word": "without a message",
    r"cannot be told": "is unknown",
    r"in vain": "without success",
    r"so many(?! (?:rows|steps|times)\b)": "this many, or N",
    r"has got": "has",
    r"is to be": "must be",
    r"to be had": "available",
    r"what (?:becomes|became) of": "how something is handled or was used",
    r"for want of": "without",
    r"by every default": "with every default",
    r"is waited for": "the command waits for it",
    r"(?:bytes|bits|GiB|GB) an? (?:trained )?(?:number|parameter|weight)": "bytes per number",
    r"by heart": "memorises",
    r"calmer": "steadier",
    r"until it breaks": "until training breaks down",
    r"start of (?:the|all) (?:random )?draws?": "the starting point of the random draw",
    r"some hundred": "about a hundred",
    r"and else (?:0|bf16|none)": "otherwise 0",
    r"(?:is|are) no linear layers": "is not a linear layer",
    r"GPU of NVIDIA": "an NVIDIA GPU",
    r"setting in the way": "the setting that recipes do not have",
    r"each of the model of the one before": "starts from the model of the one before",
    r"behind a gate": "with a gate after it",
    r"has the last word": "decides",
    r"goes? round": "is exchanged",
}
# Words that comments and docstrings may have, but what a user reads not.
READ = {
    r"holds? some(?=[.;])": "contains recipes, rows …",
    r"says? nothing(?! (?:of|about|and)\b)": "means nothing",
    r"(?:something|things?|anything) else than|other things than": "something other than",
    r"(?:has|have|with) no place for": "cannot set",
    r"small letters": "lower-case letters",
    r"unless everybody": "unless they are public",
    r"measured nothing": "was not measured",
    r"1 (?:epochs|CPUs|machines|rows are)": "the singular",
    r"nothing to do(?: if|, if|\.)": "the action, or nothing",
    r"(?:its|the|a|an|any|one|two|every|this|all) processors?": "CPU, or CPU core",
    r"GPU is held": "a GPU is reserved",
    r"; there are NAME": "the row has",
    r"and with them \d": "which loses …",
    r"not there yet": "missing",
    r"tak(?:e|en|es) (?:it |them )?away": "delete",
    r"in the environment wins": "overrides",
    r"asks? nobody": "has no, or needs no",
    r"(?:that|what) (?:jobs|pods|processes) (?:are|is) told": "name it",
    r"nobody comes": "nothing can connect",
    r"refuse where": "stop if",
    r"who pods are": "the account of pods",
    r"one each (?=\d)": "one every …",
    r"at the loss": "when the loss is computed",
    r"\d,? (?:and|or) more than \d": "more than …, at most …",
    r"In all,": "In total,",
}
# Words that messages and pages may have, but comments and docstrings not.
IN_CODE = {
    r"(?:none|empty|raises [a-z]+) where": "if",
    r"nobody": "say what is unknown or unused",
    r"whoever": "name who or what it is",
    r"wants?": "needs",
    r"no-op": "does nothing",
    r"so many": "this many",
}


def compiled(phrases: dict[str, str]) -> dict[re.Pattern[str], str]:
    return {
        re.compile(rf"\b{pattern}\b", re.IGNORECASE): better for pattern, better in phrases.items()
    }


PHRASES, PHRASES_IN_CODE = compiled(INSTEAD | READ), compiled(INSTEAD | IN_CODE)
# A message's sentence has at most so many words, a page's so many.
MOST_WORDS, MOST_WORDS_OF_A_PAGE = 20, 30
# Flesch's reading ease; 60 to 70 is plain English. Names of settings and commands are not counted.
EASE = 60
# A text of this form in the code is a sentence for people.
SENTENCE = re.compile(r"(?:[A-Z`]|NAME).*[.!?]")
FEWEST_WORDS = 4
GOLDEN_MESSAGES = sorted((ROOT / "tests" / "golden" / "messages").rglob("*.txt"))
SCHEMAS = sorted(
    [*(ROOT / "runner").rglob("schema.yaml"), *(ROOT / "runner").rglob("sections.yaml")]
)
RECIPES = sorted((ROOT / "recipes").rglob("*.yaml"))
# The rooms of the code, and the modules beside them.
ROOMS = sorted(
    path
    for path in (ROOT / "runner").iterdir()
    if path.suffix == ".py" or next(path.rglob("*.py"), None)
)
# Made of the code and of other people's words; the sentences are tested where they come from,
# except the first paragraph.
MADE = {"settings.md", "troubles.md", "hardware.md"}
WRITTEN = [page for page in PAGES if page.name not in MADE]
# What `recipe --help` and the help of a command begin with.
VERBS = re.compile(
    "Add|Ask|Chat|Check|Compare|Copy|Create|Download|Edit|Enter|Estimate|Evaluate|Explain|Export|Find|Generate|List|Measure|Merge|"
    "Open|Overrule|Prepare|Print|Prove|Rehearse|Render|Run|Send|Serve|Show|Stop|Talk|Train|Try|Turn|Upload|Write"
)


def prose(page: str) -> str:
    """A page's paragraphs and lists, without code, tables, headings and pictures; names in code are
    one word."""
    page = re.sub(r"```.*?```|<!--.*?-->", "", page, flags=re.DOTALL)
    page = re.sub(r"^(?:\||#|    |!\[).*", "", page, flags=re.MULTILINE)
    page = re.sub(r"^\s*(?:[-*]|\d+\.) ", ". ", page, flags=re.MULTILINE)
    page = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", page)
    return quoted(page).replace("*", "")


def quoted(text: str) -> str:
    """A text with names in code, quotations and brackets as one word or none."""
    text = re.sub(r"`[^`\n]*`|«[^»\n]*»|“[^”\n]*”|\"[^\"\n]*\"", "NAME", text)
    return re.sub(r"\([^()\n]*\)", "", text)


def sentences(text: str) -> Iterator[str]:
    for part in re.split(r"(?<=[.!?])\s+|[:;]\s+|\n\s*\n", text):
        yield " ".join(part.split())


def words(sentence: str) -> int:
    return sum(bool(re.search(r"[A-Za-z]", word)) for word in sentence.split())


def messages(file: Path) -> Iterator[str]:
    """The lines of golden messages that are sentences: no tables, rows of data or emitted files;
    and the sentences in the code, whether or not a test gets them."""
    text = file.read_text("utf-8")
    if file.suffix == ".py":
        yield from sentences_in_code(text)
        return
    for line in text.splitlines():
        said = quoted(line.strip().replace("<tmp>", "").replace("<root>", ""))
        if line.startswith("    ") and not re.search(r" {3,}\S|[│┃━|{}<>]|^\s*(?:#|\d+ \|)", said):
            yield line.strip()


def sentences_in_code(source: str) -> Iterator[str]:
    """The lines of every text in a module that are sentences for people. What an f-string fills in
    is one word; docstrings are tested as such."""
    tree = ast.parse(source)
    skipped = {id(node) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)}
    skipped = {id(part) for node in ast.walk(tree) if id(node) in skipped for part in node.values}
    skipped |= {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "NAME"
                for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        for line in text.splitlines():
            if SENTENCE.fullmatch(line.strip()) and words(line) >= FEWEST_WORDS:
                yield line.strip()


def found(text: str, phrases: dict[re.Pattern[str], str] = PHRASES) -> list[str]:
    return [
        f"{hit[0]!r}: write {better}"
        for pattern, better in phrases.items()
        for hit in pattern.finditer(text)
    ]


def remarks(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings and comments of a module, each with its line."""
    for node in ast.walk(ast.parse(source)):
        documented = isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        )
        if documented and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, " ".join(text.split())
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def described(node: object) -> Iterator[str]:
    """Titles and descriptions of a schema."""
    if isinstance(node, dict):
        yield from (
            node[key]
            for key in ("title", "description", "x-pattern-means")
            if isinstance(node.get(key), str)
        )
        for value in node.values():
            yield from described(value)
    elif isinstance(node, list):
        for value in node:
            yield from described(value)


def name(path) -> str:
    return str(path.relative_to(ROOT))


MESSAGES = [
    *GOLDEN_MESSAGES,
    *(file for file in sorted((ROOT / "runner").rglob("*.py")) if next(messages(file), None)),
]


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_a_page_has_no_phrase_of_a_translation(page):
    assert found(prose(page.read_text("utf-8"))) == []


@pytest.mark.parametrize("file", SCHEMAS, ids=name)
def test_descriptions_of_settings_have_none(file):
    texts = list(described(yaml.safe_load(file.read_text("utf-8"))))
    assert texts and [hit for text in texts for hit in found(quoted(text))] == []


@pytest.mark.parametrize("file", RECIPES, ids=name)
def test_comments_of_recipes_have_none(file):
    comments = re.findall(r"(?:^|\s)#(.*)", file.read_text("utf-8"))
    assert [hit for text in comments for hit in found(quoted(text))] == []


def test_comments_of_emitted_files_have_none():
    files = [
        file
        for folder in ("openshift", "tests/golden")
        for file in (ROOT / folder).rglob("*.[sy]*")
    ]
    comments = {
        line for file in files for line in re.findall(r"(?:^|\s)# (.*)", file.read_text("utf-8"))
    }
    assert (
        len(comments) > 100
        and [hit for text in sorted(comments) for hit in found(quoted(text))] == []
    )


@pytest.mark.parametrize("room", ROOMS, ids=name)
def test_docstrings_and_comments_have_none(room):
    files = [room] if room.is_file() else sorted(room.rglob("*.py"))
    hits = [
        f"{name(file)}:{line}: {hit}"
        for file in files
        for line, text in remarks(file.read_text("utf-8"))
        for hit in found(quoted(text), PHRASES_IN_CODE)
    ]
    assert hits == []


@pytest.mark.parametrize("file", MESSAGES, ids=name)
def test_messages_have_none(file):
    lines = list(messages(file))
    assert lines and [f"{hit}: {line}" for line in lines for hit in found(quoted(line))] == []


@pytest.mark.parametrize("file", MESSAGES, ids=name)
def test_a_sentence_of_a_message_has_at_most_20_words(file):
    said = [one for line in messages(file) for one in sentences(quoted(line)) if one.endswith(".")]
    assert said and [one for one in dict.fromkeys(said) if words(one) > MOST_WORDS] == []


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_a_page_is_easy_to_read(page):
    text = prose(page.read_text("utf-8"))
    assert [one for one in sentences(text) if words(one) > MOST_WORDS_OF_A_PAGE] == []
    assert textstat.flesch_reading_ease(text) >= EASE


def test_all_messages_together_are_easy_to_read():
    said = " ".join(line for file in MESSAGES for line in messages(file) if line.endswith("."))
    assert len(said) > 10_000 and textstat.flesch_reading_ease(quoted(said)) >= EASE


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page != README and page.parent.name == "docs"], ids=name
)
def test_the_first_paragraph_of_a_page_says_who_it_is_for(page):
    first = next(
        part
        for part in page.read_text("utf-8").split("\n\n")[1:]
        if not part.startswith(("<!--", "#"))
    )
    assert re.match(r"For (?:people|anyone|everybody) ", first), first


def test_help_begins_with_a_verb():
    from runner.commands.cli import cli, commands

    for command, (told, _) in commands().items():
        text = cli.get_command(None, command).help or ""
        assert VERBS.fullmatch(told.split()[0]), told
        assert VERBS.fullmatch(text.split()[0]), text


# The terms of which each has one name only, and which the glossary explains.
TERMS = "recipe setting section stage run rehearsal twin held-out_rows checkpoint gate plan suggestion claim machine GPU_memory"


def test_one_word_stands_for_one_thing():
    """The glossary's last table has the words that are used, and those that are not."""
    meanings, others = (ROOT / "docs/glossary.md").read_text("utf-8").split("## One word")
    explained = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", meanings, re.M))
    assert [term for term in TERMS.split() if term.replace("_", " ") not in explained] == []
    assert "PersistentVolumeClaim" in explained["claim"] and "node" in explained["machine"]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", others, re.M)
    unused = [
        word.strip()
        for use, other in rows
        if use not in ("use", "---")
        for word in other.split(",")
    ]
    assert len(unused) >= 8
    texts = {
        name(page): prose(page.read_text("utf-8")) for page in WRITTEN if page.name != "glossary.md"
    }
    texts |= {name(file): "\n".join(map(quoted, messages(file))) for file in MESSAGES}
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, unused))})\b", re.IGNORECASE)
    assert {place: hits for place, text in texts.items() if (hits := pattern.findall(text))} == {}
