"""Where words and phrases occur in a text. A phrase is a sequence of tokens at neighbouring positions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct

from tape.core.search.tokenizer import (
    ASCII_WORD,
    IN_RUN,
    LONGEST_WORD,
    NEAR,
    NO_WORD,
    PIECE,
    Word,
    ascii_tokens,
    pieces,
    scan,
)

__all__ = ["BEGINNING", "Phrase", "Token", "Wanted", "all_occur", "anywhere", "as_written", "occurrences"]

BEGINNING = 4_096
"""Characters at the beginning of a text in which the first of the words is looked for."""
_TRIES = 64
"""Places that are checked for one word as it is written: a single letter occurs in every other word."""


class Token(Struct, frozen=True, gc=False):
    """What a query matches at one position: a token, or a prefix of tokens."""

    text: str
    prefix: bool = False

    def finds(self, word: Word) -> bool:
        """Whether the word matches."""
        if self.prefix:
            return any(token.startswith(self.text) for token in word.tokens)
        return self.text in word.tokens


Phrase = tuple[Token, ...]


class Wanted(Struct, frozen=True):
    """Phrases to look for in one pass over the words of a text: plain words in a dict, and all others."""

    words: dict[str, Phrase]
    others: tuple[Phrase, ...]

    @classmethod
    def of(cls, phrases: Iterable[Phrase]) -> Wanted:
        """Return these phrases to be looked for."""
        words: dict[str, Phrase] = {}
        words.update((phrase[0].text, phrase) for phrase in phrases if len(phrase) == 1 and not phrase[0].prefix)
        return cls(words, tuple(phrase for phrase in phrases if len(phrase) > 1 or phrase[0].prefix))


def all_occur(text: str, phrases: Iterable[Phrase]) -> bool:
    """Whether all of the phrases occur in a text."""
    missing = dict.fromkeys(phrase for phrase in phrases if as_written(text, phrase, 0, len(text)) is None)
    for places in _places(text, missing) if missing else ():
        for phrase in places:
            del missing[phrase]
        if not missing:
            break
    return not missing


def anywhere(text: str, phrases: list[Phrase]) -> int | None:
    """Return where any of the phrases occurs: the one that is found first."""
    written = (as_written(text, phrase, 0, len(text)) for phrase in phrases)
    place = next((place for place in written if place is not None), None)
    if place is None:
        pieces = _places(text, dict.fromkeys(phrases))
        place = next((min(places.values()) for places in pieces if places), None)
    return place


def as_written(text: str, phrase: Phrase, start: int, end: int) -> int | None:
    """Return where a phrase begins in a stretch of text, if its first word is written there as in the query.

    Most words are, and finding a string is many times faster than tokenizing a text.
    """
    first = phrase[0].text
    plain = len(phrase) == 1 and not phrase[0].prefix and first.isascii()
    in_run = not first.isascii() and IN_RUN.match(first) is not None
    last = min(end + len(first) - 1, len(text))
    at = start - 1
    for _ in range(_TRIES):
        at = text.find(first, at + 1, last)
        if at < 0:
            return None
        begin = at
        if in_run:
            while begin and at - begin < NEAR and IN_RUN.match(text, begin - 1):
                begin -= 1
        elif at and not NO_WORD.match(text, at - 1):
            continue
        if plain:
            stop = at + len(first)
            if stop == len(text) or NO_WORD.match(text, stop):
                return at
            continue
        occurrence = next(occurrences(text, Wanted.of((phrase,)), begin, at + 1), None)
        if occurrence is not None:
            return occurrence[1]
    return None


def _places(text: str, phrases: dict[Phrase, None]) -> Iterator[dict[Phrase, int]]:
    """Yield, for each piece of a text, where the phrases begin in it. The caller may remove phrases meanwhile."""
    # Small pieces of a text that is not all ASCII are mostly ASCII.
    for begin, end in pieces(text, 0, PIECE if text.isascii() else BEGINNING):
        piece = text[begin:end]
        places: dict[Phrase, int] = {}
        if piece.isascii():
            lower = piece.lower()
            for phrase in phrases:
                place = _ascii_place(text, begin, piece, lower, phrase)
                if place is not None:
                    places[phrase] = place
        else:
            for phrase, start, _ in occurrences(text, Wanted.of(phrases), begin, end, BEGINNING):
                places.setdefault(phrase, start)
                if len(places) == len(phrases):
                    break
        yield places


def _ascii_place(text: str, offset: int, piece: str, lower: str, phrase: Phrase) -> int | None:
    """Return where a phrase begins in a piece of ASCII text, which is passed in lower case as well."""
    first = phrase[0]
    if len(phrase) > 1:
        # Finds the first two words side by side, or the first at the end. Every match is then checked exactly.
        second = f"[a-z0-9]{{0,64}}?{phrase[1].text}"
        after = "[a-z0-9]*+" if len(first.text) >= LONGEST_WORD else "[a-z0-9]{0,64}+"
        pair = re.compile(rf"{first.text}{after}(?:[^a-z0-9]++{second}|[^a-z0-9]*+\Z)")
        wanted = Wanted.of((phrase,))
    at = -1
    while True:
        if len(phrase) > 1:
            match = pair.search(lower, at + 1)
            at = match.start() if match is not None else -1
        else:
            at = lower.find(first.text, at + 1)
        if at < 0:
            return None
        begin = at
        while begin and lower[begin - 1].isalnum():
            begin -= 1
        word = ASCII_WORD.match(piece, begin)
        if word is None:
            continue
        if len(phrase) == 1:
            if first.finds(Word(begin, word.end(), ascii_tokens(word[0]))):
                return offset + begin
        elif next(occurrences(text, wanted, offset + begin, offset + begin + 1), None) is not None:
            return offset + begin
        at = word.end()


def occurrences(
    text: str, wanted: Wanted, begin: int, stop: int, size: int = NEAR
) -> Iterator[tuple[Phrase, int, int]]:
    """Yield the phrases that begin between two places, the first of which cuts no word: which, where from, where to."""
    words, others = wanted.words, wanted.others
    begun: list[tuple[Phrase, int, int]] = []
    for word in scan(text, begin, size):
        if word.start >= stop and not begun:
            return
        following = [(phrase, at + 1, start) for phrase, at, start in begun if phrase[at].finds(word)]
        if word.start < stop:
            for token in word.tokens:
                if token in words:
                    yield words[token], word.start, word.end
            following += [(phrase, 1, word.start) for phrase in others if phrase[0].finds(word)]
        for phrase, at, start in following:
            if at == len(phrase):
                yield phrase, start, word.end
        begun = [match for match in following if match[1] < len(match[0])]
