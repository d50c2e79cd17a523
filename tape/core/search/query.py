"""Queries: how one is read, and what it finds in a text."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from itertools import islice

from tape.core.search.occurrences import (
    BEGINNING,
    Phrase,
    Token,
    Wanted,
    all_occur,
    anywhere,
    as_written,
    occurrences,
)
from tape.core.search.snippet import WIDTH
from tape.core.search.tokenizer import ASCII_WORD, LONG, NEAR, NO_WORD, Word, ascii_tokens, pieces, scan, vocabulary

__all__ = ["FIRST_WORDS", "MOST_WORDS", "Query", "parse"]

MOST_WORDS = 1_000
"""How many distinct words of a query count; later ones are ignored."""
FIRST_WORDS = 32
"""Words of a query that the index looks up. The others are searched for only in texts that are not long."""
_FEW = 4
"""Up to this many words, each is searched for by itself."""

_WORD = re.compile(r"[A-Za-z0-9]+\*?")
_QUOTED = re.compile(r'"([^"]*)"|([^"]+|")')


class Query:
    """A query: phrases that must all occur, each a sequence of tokens at neighbouring positions."""

    def __init__(self, phrases: Iterator[Phrase]) -> None:
        self._unread = phrases
        self._seen: dict[Phrase, None] = {}
        self.phrases = tuple(self._distinct(FIRST_WORDS))
        """The first phrases of the query, which every text must have."""
        self._wanted = Wanted.of(self.phrases)
        self._longer = [phrase for phrase in self.phrases if len(phrase) > 1]
        # Long words are rare, and sooner found in a text.
        self._longest = sorted(self.phrases, key=lambda phrase: len(phrase[0].text), reverse=True)

    @functools.cached_property
    def others(self) -> tuple[Phrase, ...]:
        """The further phrases, which only texts that are not long must have. They are parsed on first use."""
        return tuple(self._distinct(MOST_WORDS))

    def _distinct(self, most: int) -> Iterator[Phrase]:
        """Yield further phrases until all of them have so many words; the last may go beyond."""
        count = sum(len(phrase) for phrase in self._seen)
        while count < most:
            phrase = next(self._unread, None)
            if phrase is None:
                return
            if phrase not in self._seen:
                self._seen[phrase] = None
                count += len(phrase)
                yield phrase

    def tokens(self) -> list[Token]:
        """Return every distinct token of the phrases, for an index to look up."""
        return list(dict.fromkeys(token for phrase in self.phrases for token in phrase))

    def match(self, text: str, *, indexed: bool = False) -> list[tuple[int, int]] | None:
        """Return where the phrases occur, as (start, end), in the part of ``text`` that a snippet shows.

        None unless all of them occur. In a text from the index, single words are known to occur, so only phrases of
        several words are checked.
        """
        if not self.phrases:
            return None
        if not all_occur(text, self._longer if indexed else self.phrases) or not self._has_others(text):
            return None
        first = self._near_beginning(text)
        if first is None:
            first = anywhere(text, self._longest)
        return None if first is None else self._spans(text, first)

    def match_excerpt(self, text: str) -> list[tuple[int, int]] | None:
        """Return the same for a long text from the index, from its beginning only; None if that is not enough."""
        first = None if self._longer else self._near_beginning(text)
        return None if first is None else self._spans(text, first)

    def _near_beginning(self, text: str) -> int | None:
        """Return where the first of the phrases occurs near the beginning of a text."""
        place, end, phrases = None, min(len(text), BEGINNING), self._longest
        if len(self._wanted.words) > _FEW and text[:end].isascii():
            # With many words, looking up each word of the text is quicker than searching for each of them.
            for word in ASCII_WORD.finditer(text, 0, end):
                if word[0].lower() in self._wanted.words and (word.end() < end or end == len(text)):
                    return word.start()
            phrases = list(self._wanted.others)
        for phrase in phrases:
            start = as_written(text, phrase, 0, end)
            if start is not None:
                place = end = start
        return place

    def _spans(self, text: str, first: int) -> list[tuple[int, int]]:
        """Return where the phrases occur around a place."""
        begin = max(first - WIDTH // 4, 0)
        if begin:
            cut = NO_WORD.search(text, begin, first)
            begin = cut.start() if cut is not None else first
        spans = {(start, end) for _, start, end in occurrences(text, self._wanted, begin, first + WIDTH)}
        return sorted(spans) or [(first, first)]

    def _has_others(self, text: str) -> bool:
        if len(text) > LONG or not self.others:
            return True
        tokens = set(vocabulary(text))
        words = [phrase for phrase in self.others if len(phrase) == 1 and not phrase[0].prefix]
        if not all(phrase[0].text in tokens for phrase in words):
            return False
        return all_occur(text, [phrase for phrase in self.others if len(phrase) > 1 or phrase[0].prefix])


def parse(query: str) -> Query:
    """Read a query: words that must all occur, "quoted phrases", and a trailing * for all that begins so.

    Any string is a query. Whatever is no word, no pair of quotes and no trailing star is ignored, and so is whatever
    follows the first ``MOST_WORDS`` distinct words.
    """
    return Query(_phrases(query))


def _phrases(query: str) -> Iterator[Phrase]:
    """Yield the phrases of a query in order; none is longer than the number of words that the index looks up."""
    for match in _QUOTED.finditer(query):
        quoted, plain = match.groups()
        if quoted is None:
            yield from _plain(plain)
            continue
        phrase = _phrase(quoted, scan(quoted), match.end() < len(query) and query[match.end()] == "*")
        if phrase:
            yield phrase


def _plain(text: str) -> Iterator[Phrase]:
    """Yield the phrases of an unquoted part of a query: of one word each, or of one run without spaces."""
    if text.isascii():
        for begin, end in pieces(text, 0, NEAR):
            # One character more: a piece ends where its last word does, and a star may follow.
            for written in dict.fromkeys(_WORD.findall(text, begin, end + 1)):
                word = written.rstrip("*")
                yield (Token(ascii_tokens(word)[0], word != written),)
        return
    words: list[Word] = []
    for word in scan(text):
        words.append(word)
        if word.run != 1 or len(words) > FIRST_WORDS:
            yield _phrase(text, words, False)
            words = []


def _phrase(text: str, words: Iterable[Word], starred: bool) -> Phrase:
    """Return the words of one phrase, the first of them if it is long, as tokens to find at neighbouring positions."""
    words = list(islice(words, FIRST_WORDS + 1))
    tokens: list[Token] = []
    for at, word in enumerate(words):
        last = at == len(words) - 1
        if last and word.run == 2:
            # The end of a run in the query may be in the middle of a run in the text.
            if at == 0 or words[at - 1].run != 1:
                tokens.append(Token(word.tokens[0], True))
            continue
        starred_here = last and (starred or text[word.end : word.end + 1] == "*")
        tokens.append(Token(word.tokens[0], starred_here))
    return tuple(tokens[:FIRST_WORDS])
