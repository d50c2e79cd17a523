"""Words: the one tokenizer behind search. It feeds the index of either engine, and reads the query.

SQLite and PostgreSQL split text differently (``foo.bar``, ``path/to/file.py``, ``café``, 東京 inside 東京タワー), so
neither is asked to: both index the tokens that are made here, and both find the same.

A word is a run of letters and digits. Case is folded, compatibility forms are unified, and accents are taken off,
because people type "cafe" for "café" and "uber" for "über": in a history a hit too many costs a glance, a hit too few
the search. A name in camel case is also found by its parts. Scripts that write no spaces between words (Chinese,
Japanese, Korean, Thai …) are cut into pairs of neighbouring characters. Everything else separates words and is ignored.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from msgspec import Struct

__all__ = ["MARKS", "VERSION", "Query", "Token", "Word", "owner_word", "parse", "snippet", "tape_word", "vocabulary"]

VERSION = 1
"""Of the tokens: an index made by another version is made anew."""

MARKS = ("«", "»")
"""What stands around the words that were found, in a snippet."""

_LONGEST = 128
"""Characters of a word that count; a longer one is most likely no word at all."""
_MOST_BYTES = 600_000
"""Bytes of distinct tokens indexed of one text. A tsvector ends at 1 MB, and both engines shall find the same."""

# Combining marks belong to the word that they stand in; without them the words of India would fall into letters.
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
_ASCII = re.compile(r"[A-Za-z0-9]+")
_RUNS = re.compile(rf"(?P<run>[{_UNSPACED}]+)|(?:(?![{_UNSPACED}])[^\W_])(?:(?![{_UNSPACED}])[^\W_]|[{_MARK}])*")
_ACCENTS = re.compile("[\u0300-\u036f]")
_NO_WORD = re.compile(rf"[^\w{_MARK}{_UNSPACED}]|_")
_CAMEL = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z0-9]+")
_QUOTED = re.compile(r'"([^"]*)"|([^"]+|")')

# Private-use characters are no letters, so what begins with one can never be a word of a text or a query.
_RESERVED = "\ue000"


class Word(Struct, frozen=True, gc=False):
    """One position of a text: where it stands, and every token that finds it."""

    start: int
    end: int
    tokens: tuple[str, ...]
    run: int = 0
    """For scripts without spaces: 1 inside a run, 2 at its end. Only the end is found by a single character."""


class Token(Struct, frozen=True, gc=False):
    """What a query asks for at one position: a token, or all that begin with it."""

    text: str
    prefix: bool = False

    def finds(self, word: Word) -> bool:
        """Whether the word is one that is asked for."""
        if self.prefix:
            return any(token.startswith(self.text) for token in word.tokens)
        return self.text in word.tokens


class Query(Struct, frozen=True):
    """A query: phrases that must all occur, each a sequence of tokens at neighbouring positions."""

    phrases: tuple[tuple[Token, ...], ...]

    def tokens(self) -> list[Token]:
        """Return every distinct token, for an index to look up."""
        return list(dict.fromkeys(token for phrase in self.phrases for token in phrase))

    def match(self, text: str) -> list[tuple[int, int]] | None:
        """Return where the phrases occur in ``text`` as (start, end), in order, or None unless all of them do."""
        if not self.phrases:
            return None
        found: list[tuple[int, int]] = []
        words = list(scan(text))
        for phrase in self.phrases:
            first, *rest = phrase
            spans = [
                (words[at].start, words[at + len(rest)].end)
                for at in range(len(words) - len(rest))
                if first.finds(words[at]) and all(token.finds(words[at + n]) for n, token in enumerate(rest, 1))
            ]
            if not spans:
                return None
            found += spans
        return sorted(set(found))


def scan(text: str) -> Iterator[Word]:
    """Yield the words of a text in order."""
    if text.isascii():
        for match in _ASCII.finditer(text):
            yield Word(match.start(), match.end(), _ascii_tokens(match[0]))
        return
    for match in _RUNS.finditer(text):
        start, end = match.span()
        if match["run"] is None:
            word = match[0]
            tokens = _ascii_tokens(word) if word.isascii() else (_fold(word),)
            if tokens[0]:
                yield Word(start, end, tokens)
            continue
        characters = _fold_run(match[0])
        # When folding changes the length, the place of a character inside the run is lost: mark all of it.
        exact = len(characters) == end - start
        last = len(characters) - 1
        for at in range(len(characters)):
            token = characters[at : at + 2]
            where = (start + at, start + at + len(token)) if exact else (start, end)
            yield Word(*where, (token,), 2 if at == last else 1)


def vocabulary(text: str) -> list[str]:
    """Return the distinct tokens of a text, in the order in which they first occur, up to the size of an index row."""
    found: dict[str, None] = {}
    size = 0
    if text.isascii():
        # Most texts are: no need to know where the words stand.
        each: Iterator[tuple[str, ...]] = map(_ascii_tokens, dict.fromkeys(_ASCII.findall(text)))
    else:
        each = (word.tokens for word in scan(text))
    for tokens in each:
        for token in tokens:
            if token not in found:
                # A tsvector spends up to eight bytes beside the token itself.
                size += len(token) * (1 if token.isascii() else 4) + 8
                if size > _MOST_BYTES:
                    return list(found)
                found[token] = None
    return list(found)


def parse(query: str) -> Query:
    """Read a query: words that must all occur, "quoted phrases", and a trailing * for all that begins so.

    Any string is a query. Whatever is no word, no pair of quotes and no trailing star is ignored.
    """
    phrases: dict[tuple[Token, ...], None] = {}
    for match in _QUOTED.finditer(query):
        quoted, plain = match.groups()
        if quoted is not None:
            phrase = _phrase(quoted, list(scan(quoted)), match.end() < len(query) and query[match.end()] == "*")
            if phrase:
                phrases[phrase] = None
            continue
        words: list[Word] = []
        for word in scan(plain):
            words.append(word)
            if word.run != 1:
                phrases[_phrase(plain, words, False)] = None
                words = []
    return Query(tuple(phrases))


def _phrase(text: str, words: list[Word], starred: bool) -> tuple[Token, ...]:
    """Return the words of one phrase as tokens to find at neighbouring positions."""
    tokens: list[Token] = []
    for at, word in enumerate(words):
        last = at == len(words) - 1
        if last and word.run == 2:
            # The end of a run in the query may stand in the middle of one in the text.
            if at == 0 or words[at - 1].run != 1:
                tokens.append(Token(word.tokens[0], True))
            continue
        starred_here = last and (starred or text[word.end : word.end + 1] == "*")
        tokens.append(Token(word.tokens[0], starred_here))
    return tuple(tokens)


def snippet(text: str, spans: list[tuple[int, int]], width: int = 160) -> str:
    """Return the part of ``text`` around the first words found, on one line, with marks around all that it shows."""
    first = spans[0][0] if spans else 0
    begin = max(0, first - width // 4)
    if begin:
        # Begin at a word, if there is one to begin at before the first hit.
        space = text.find(" ", begin, first)
        begin = space + 1 if space >= 0 else begin
    end = min(len(text), max(begin + width, min(spans[0][1], first + width) if spans else 0))
    if end < len(text):
        space = text.rfind(" ", max(begin, spans[0][1] if spans else 0), end)
        end = space if space > begin else end
    parts: list[str] = []
    at = begin
    for start, stop in _joined(spans):
        start, stop = max(start, at), min(stop, end)
        if start < stop:
            parts += [text[at:start], MARKS[0], text[start:stop], MARKS[1]]
            at = stop
    parts.append(text[at:end])
    shown = " ".join("".join(parts).split())
    return f"{'…' if begin else ''}{shown}{'…' if end < len(text) else ''}"


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans in order, those that overlap as one."""
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def tape_word(number: int) -> str:
    """Return the token by which the index finds the texts of one tape."""
    return f"{_RESERVED}t{number}"


def owner_word(owner: str) -> str:
    """Return the token by which the index finds the texts of one owner."""
    return f"{_RESERVED}o{owner.encode().hex()}"[: 2 * _LONGEST]


def _ascii_tokens(word: str) -> tuple[str, ...]:
    folded = word.lower()
    if folded == word or len(word) > 64 or word.isupper() or word[1:] == folded[1:]:
        return (folded[:_LONGEST],)
    return (folded, *dict.fromkeys(part.lower() for part in _CAMEL.findall(word) if len(part) < len(word)))


def _fold(word: str) -> str:
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", word).casefold())
    return _NO_WORD.sub("", unicodedata.normalize("NFKC", _ACCENTS.sub("", folded)))[:_LONGEST]


def _fold_run(run: str) -> str:
    return _NO_WORD.sub("", unicodedata.normalize("NFKC", run).casefold())
