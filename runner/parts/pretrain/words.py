"""Words of text, as datatrove's tokenizers cut it, in a third of the time: spaCy's rules for a language, with its memory on.

datatrove 0.10.1 opens a memory zone of spaCy for each document, in which spaCy's tokenizer (3.8) remembers no word, and has
attributes of each word computed that nobody asks for. Without both the words are the same.
"""

from __future__ import annotations

from typing import Any, cast

from datatrove.utils.word_tokenizers import SpaCyTokenizer, WordTokenizer, load_word_tokenizer, strip_strings

# Distinct words that are remembered before a tokenizer begins anew: some 100 MB in each process.
MOST_WORDS = 500_000
# Chunks between two blanks whose words are remembered; spaCy's own number is 10,000.
MOST_CHUNKS = 200_000


class Quick(SpaCyTokenizer):
    """A tokenizer of datatrove with spaCy's plain rules. language: as spaCy names it."""

    _tokenizer: Any

    def word_tokenize(self, text: str) -> list[str]:
        if self._tokenizer is not None and len(self._tokenizer.vocab) > MOST_WORDS:
            self._tokenizer = None
        new = self._tokenizer is None
        language: Any = self.tokenizer
        if new:
            language.vocab.lex_attr_getters = {}
            language.tokenizer.max_cache_size = MOST_CHUNKS
        # One text breaks spaCy's tokenizer, and datatrove leaves that name out (`SpaCyTokenizer._do_tokenize`).
        try:
            tokens = language.tokenizer(text)
        except Exception:
            tokens = language.tokenizer(text.replace("IS_ALPHA", ""))
        return cast(list[str], strip_strings([token.text for token in tokens]))


def quick(language: str) -> WordTokenizer:
    """datatrove's tokenizer of a language in this process, made quick where it is one of spaCy's plain ones; all of datatrove's
    steps then have it."""
    from spacy.tokenizer import Tokenizer

    found = load_word_tokenizer(language)
    if type(found) is SpaCyTokenizer and type(found.tokenizer.tokenizer) is Tokenizer:
        found._tokenizer = None
        found.__class__ = Quick
    return found
