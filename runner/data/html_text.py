"""Text of HTML: what a person sees, without the marks around it."""

import re

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
