"""Feeds of blogs in XML, as RSS, Atom and WordPress's export: a row for each post."""

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from runner.data.html_text import text_of_html
from runner.data.row_files import FilePart, Numbered, RowFile, Unreadable
from runner.tools.files import once_per_file
from runner.tools.problem import Stop

FEED_ENDING = ".xml"
COLUMNS = ("title", "text")
_POSTS = ("item", "entry")
# The elements with a post's words, the likeliest first.
_WORDS = ("encoded", "content", "description", "summary")
# What WordPress writes that a person has not published as a text: menus, pictures, styles.
_KINDS_OF_TEXTS = ("", "post", "page")
_LEFT_BEHIND = ("trash", "auto-draft")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_FEED = re.compile(rb"<(rss|feed|rdf:RDF)[\s>]")
HEAD_BYTES = 4000


@once_per_file
def is_feed(file: Path) -> bool:
    """Whether a file of XML is a feed with posts."""
    if file.suffix.lower() != FEED_ENDING or not file.is_file():
        return False
    with file.open("rb") as content:
        return _FEED.search(content.read(HEAD_BYTES)) is not None


class Feed(RowFile):
    """The posts of a feed, without the marks of HTML."""

    def columns(self, file: Path) -> list[str]:
        if not is_feed(file):
            raise Unreadable("it is not a feed of posts.")
        return list(COLUMNS)

    def rows(self, file: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        number = 0
        try:
            for _, element in ElementTree.iterparse(file):
                if _name_of(element) not in _POSTS:
                    continue
                title, text = _post_of(element)
                element.clear()
                if text:
                    number += 1
                    yield number, dict(zip(COLUMNS, (title, text), strict=True))
        except ElementTree.ParseError as error:
            line, _ = error.position
            raise Stop(
                f"`{file}` is not XML, at line {line}.", "Export it again from its program."
            ) from None


def _name_of(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _post_of(element: ElementTree.Element) -> tuple[str, str]:
    """The title and the text of a post; an empty text for what is none."""
    fields = dict[str, str]()
    for child in element:
        fields.setdefault(_name_of(child), "".join(child.itertext()).strip())
        # An excerpt has the same name as the content, which may be empty.
        if child.tag.endswith("/content/}encoded"):
            fields["encoded"] = "".join(child.itertext()).strip()
    is_text = fields.get("post_type", "") in _KINDS_OF_TEXTS
    if not is_text or fields.get("status") in _LEFT_BEHIND:
        return "", ""
    content = next((fields[name] for name in _WORDS if fields.get(name)), "")
    return fields.get("title", ""), text_of_html(_COMMENT.sub("", content)).strip()
