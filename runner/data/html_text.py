"""Text of HTML: what a person sees, without the marks around it."""

import re
import warnings
from collections.abc import Iterator

# A tag of HTML, not a comparison such as `a < b` or an arrow.
TAG = re.compile(
    r"</?(p|br|div|span|b|i|u|em|strong|a|ul|ol|li|h[1-6]|table|tr|td|img)\b[^<>]*>", re.I
)
ENTITY = re.compile(r"&(nbsp|amp|lt|gt|quot|[aou]uml|szlig|#\d+|#x[0-9a-f]+);", re.I)
ENDS_LINE = ("br", "p", "div", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "table", "ul", "ol")


def holds_html(text: str) -> bool:
    return TAG.search(text) is not None or ENTITY.search(text) is not None


def text_of_html(text: str) -> str:
    """The text without tags and entities, and each block on lines of its own."""
    if not holds_html(text):
        return text
    from bs4 import BeautifulSoup  # few files hold HTML

    content = BeautifulSoup(text, "html.parser")
    for hidden in content(("script", "style")):
        hidden.decompose()
    for element in content(ENDS_LINE):
        element.append("\n")
    lines = []
    for line in content.get_text().replace("\xa0", " ").splitlines():
        lines.append(re.sub(r"[ \t]+", " ", line).strip())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def tables_of_html(text: str) -> Iterator[list[list[str]]]:
    """The lines of cells of each table in HTML, or in Excel's XML of 2003, which names them
    alike."""
    from bs4 import BeautifulSoup, XMLParsedAsHTMLWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", XMLParsedAsHTMLWarning)
        content = BeautifulSoup(text, "html.parser")
    for table in content.find_all("table"):
        if table.find("table"):
            continue  # its cells are tables
        records = []
        for row in table.find_all(["tr", "row"]):
            cells = row.find_all(["td", "th", "cell"])
            records.append([cell.get_text(" ", strip=True) for cell in cells])
        yield records
