"""Words: the one tokenizer behind search. It feeds the index of either engine, and reads the query.

SQLite and PostgreSQL split text differently (``foo.bar``, ``path/to/file.py``, ``café``, 東京 inside 東京タワー), so
neither tokenizes text itself. Both index the tokens that are made here, and both find the same.

A word is a run of letters and digits. Case is folded, compatibility forms are unified, and accents are removed, because
people type "cafe" for "café" and "uber" for "über". In a history a false match costs less than a missed one. A name in
camel case is also found by its parts. Scripts that write no spaces between words (Chinese, Japanese, Korean, Thai …)
are cut into pairs of neighbouring characters. Everything else separates words and is ignored.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Iterator

from msgspec import Struct

from tape.core.late import late_pattern

__all__ = [
    "ASCII_WORD",
    "EXCERPT",
    "IN_RUN",
    "LONG",
    "LONGEST_WORD",
    "NEAR",
    "NO_WORD",
    "PIECE",
    "VERSION",
    "Word",
    "ascii_tokens",
    "owner_word",
    "pieces",
    "scan",
    "tape_word",
    "vocabulary",
]

VERSION = 2
"""The version of the tokens and of what is text in a message. An index made by another version is rebuilt."""

LONG = 65_536
"""Characters from which on a text is long. Looking for hundreds of words in it would take longer than reading it."""
EXCERPT = 6_144
"""Characters at the beginning of a long text that are kept beside the index. They show what the whole text would."""
LONGEST_WORD = 128
"""Characters of a word that count; a longer one is most likely no word at all."""
_MOST_BYTES = 600_000
"""Bytes of distinct tokens indexed of one text. A tsvector ends at 1 MB, and both engines shall find the same."""
PIECE = 65_536
"""Characters that are cut into words at a time, so that a text of any length takes little memory beside itself."""
NEAR = 256
"""Characters that are cut into words at a time where only the next few words are wanted."""

# Combining marks belong to the word that they are in; without them words in Indic scripts would be split into letters.
_MARK = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed\u0711\u0730-\u074a\u07a6-\u07b0\u0816-\u082d"
    "\u08d3-\u0903\u093a-\u094f\u0951-\u0957\u0962\u0963\u0981-\u0983\u09bc-\u09cd\u09d7\u09e2\u09e3"
    "\u0a01-\u0a03\u0a3c-\u0a51\u0a70\u0a71\u0a81-\u0a83\u0abc-\u0acd\u0ae2\u0ae3\u0b01-\u0b03\u0b3c-\u0b57"
    "\u0b82\u0bbe-\u0bcd\u0bd7\u0c00-\u0c04\u0c3e-\u0c56\u0c81-\u0c83\u0cbc-\u0cd6\u0d00-\u0d03\u0d3b-\u0d4d"
    "\u0d57\u0dca-\u0ddf\u0f18\u0f19\u0f35\u0f37\u0f39\u0f71-\u0f84\u0f86\u0f87\u1ab0-\u1aff\u1dc0-\u1dff\ufe20-\ufe2f"
)
_UNSPACED = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ebd\u0ec0-\u0ece\u1000-\u103f\u1100-\u11ff\u1780-\u17d3"
    "\u2e80-\u2fd5\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303b\u3041-\u3096\u3099\u309a\u309d-\u309f"
    "\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f\u3131-\u318e\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\ua960-\ua97c\uac00-\ud7a3\ud7b0-\ud7fb\uf900-\ufad9\uff66-\uffdc\U00020000-\U0003ffff"
)
ASCII_WORD = re.compile(r"[A-Za-z0-9]+")
_RUNS = late_pattern(rf"(?P<run>[{_UNSPACED}]+)|(?:(?![{_UNSPACED}])[^\W_])(?:(?![{_UNSPACED}])[^\W_]|[{_MARK}])*")
_ACCENTS = re.compile("[\u0300-\u036f]")
IN_RUN = late_pattern(f"[{_UNSPACED}]")
NO_WORD = late_pattern(rf"[^\w{_MARK}{_UNSPACED}]|_")
_CAMEL = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z0-9]+")

# Private-use characters are no letters, so what begins with one can never be a word of a text or a query.
_RESERVED = "\ue000"


class Word(Struct, frozen=True, gc=False):
    """A word of a text: where it is, and every token that matches it."""

    start: int
    end: int
    tokens: tuple[str, ...]
    run: int = 0
    """For scripts without spaces: 1 inside a run, 2 at its end. Only the end is found by a single character."""


def scan(text: str, start: int = 0, size: int = PIECE) -> Iterator[Word]:
    """Yield the words of a text in order, from a place that is not inside a word."""
    for begin, end in [(start, len(text))] if text.isascii() else pieces(text, start, size):
        if text.isascii() or text[begin:end].isascii():
            for match in ASCII_WORD.finditer(text, begin, end):
                yield Word(match.start(), match.end(), ascii_tokens(match[0]))
        else:
            yield from _scan_any(text, begin, end)


def _scan_any(text: str, begin: int, end: int) -> Iterator[Word]:
    """Yield the words of a piece of text that is not plain ASCII."""
    for match in _RUNS.finditer(text, begin, end):
        start, stop = match.span()
        if match["run"] is None:
            tokens = _word_tokens(match[0])
            if tokens[0]:
                yield Word(start, stop, tokens)
            continue
        characters = _fold_run(match[0])
        # When folding changes the length, the place of a character inside the run is lost: mark all of it.
        exact = len(characters) == stop - start
        last = len(characters) - 1
        for at in range(len(characters)):
            token = characters[at : at + 2]
            where = (start + at, start + at + len(token)) if exact else (start, stop)
            yield Word(*where, (token,), 2 if at == last else 1)


def pieces(text: str, start: int = 0, size: int = PIECE) -> Iterator[tuple[int, int]]:
    """Yield where pieces of a text begin and end, each of about a size; none of them cuts a word."""
    while start < len(text):
        end = start + size
        if end < len(text):
            cut = NO_WORD.search(text, end)
            end = cut.start() if cut is not None else len(text)
        yield start, min(end, len(text))
        start = end


def vocabulary(text: str) -> list[str]:
    """Return the distinct tokens of a text, in the order in which they first occur, up to the size of an index row."""
    distinct: dict[str, None] = {}
    size = 0
    for begin, end in pieces(text):
        for tokens in _distinct(text, begin, end):
            for token in tokens:
                if token not in distinct:
                    # A tsvector spends up to eight bytes beside the token itself.
                    size += len(token) * (1 if token.isascii() else 4) + 8
                    if size > _MOST_BYTES:
                        return list(distinct)
                    distinct[token] = None
    return list(distinct)


def _distinct(text: str, begin: int, end: int) -> Iterator[Iterable[str]]:
    """Yield the tokens of the distinct words in a piece of text, in the order in which they first occur."""
    if text.isascii() or text[begin:end].isascii():
        # A fast path for most texts, because the places of the words are not needed.
        yield from map(ascii_tokens, dict.fromkeys(ASCII_WORD.findall(text, begin, end)))
        return
    for word, in_run in {match[0]: match["run"] is not None for match in _RUNS.finditer(text, begin, end)}.items():
        if in_run:
            run = _fold_run(word)
            yield (run[at : at + 2] for at in range(len(run)))
        else:
            tokens = _word_tokens(word)
            if tokens[0]:
                yield tokens


def tape_word(number: int) -> str:
    """Return the token by which the index finds the texts of one tape."""
    return f"{_RESERVED}t{number}"


def owner_word(owner: str) -> str:
    """Return the token by which the index finds the texts of one owner."""
    return f"{_RESERVED}o{owner.encode().hex()}"[: 2 * LONGEST_WORD]


def ascii_tokens(word: str) -> tuple[str, ...]:
    """Return the tokens of a word in ASCII: itself, and the parts of a name in camel case."""
    folded = word.lower()
    if folded == word or len(word) > 64 or word.isupper() or word[1:] == folded[1:]:
        return (folded[:LONGEST_WORD],)
    return (folded, *dict.fromkeys(part.lower() for part in _CAMEL.findall(word) if len(part) < len(word)))


def _word_tokens(word: str) -> tuple[str, ...]:
    if word.isascii():
        return ascii_tokens(word)
    return (_folded(word) if len(word) <= LONGEST_WORD else _fold(word),)


def _fold(word: str) -> str:
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", word).casefold())
    return NO_WORD.sub("", unicodedata.normalize("NFKC", _ACCENTS.sub("", folded)))[:LONGEST_WORD]


def _fold_run(run: str) -> str:
    return NO_WORD.sub("", unicodedata.normalize("NFKC", run).casefold())


# A text has few distinct words, and folding a word takes longer than finding it.
_folded = functools.lru_cache(maxsize=8_192)(_fold)
