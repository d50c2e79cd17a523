"""Words: the one tokenizer behind search. It feeds the index of either engine, and reads the query.

SQLite and PostgreSQL split text differently (``foo.bar``, ``path/to/file.py``, ``café``, 東京 inside 東京タワー), so
neither is asked to: both index the tokens that are made here, and both find the same.

A word is a run of letters and digits. Case is folded, compatibility forms are unified, and accents are taken off,
because people type "cafe" for "café" and "uber" for "über": in a history a hit too many costs a glance, a hit too few
the search. A name in camel case is also found by its parts. Scripts that write no spaces between words (Chinese,
Japanese, Korean, Thai …) are cut into pairs of neighbouring characters. Everything else separates words and is ignored.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import islice

from msgspec import Struct

__all__ = [
    "EXCERPT",
    "FIRST_WORDS",
    "LONG",
    "MARKS",
    "MOST_WORDS",
    "VERSION",
    "WIDTH",
    "Query",
    "Token",
    "Word",
    "owner_word",
    "parse",
    "snippet",
    "tape_word",
    "vocabulary",
]

VERSION = 1
"""Of the tokens: an index made by another version is made anew."""

MARKS = ("«", "»")
"""What stands around the words that were found, in a snippet."""

MOST_WORDS = 1_000
"""Distinct words of a query that count: its first ones."""
FIRST_WORDS = 32
"""Words of a query that the index is asked for. The others are looked for only in texts that are not long."""
LONG = 65_536
"""Characters from which on a text is long. Looking for hundreds of words in it would take longer than reading it."""
EXCERPT = 6_144
"""Characters at the beginning of a long text that are kept beside the index. They show what the whole text would."""
WIDTH = 160
"""About how many characters of a text a snippet shows."""

_LONGEST = 128
"""Characters of a word that count; a longer one is most likely no word at all."""
_MOST_BYTES = 600_000
"""Bytes of distinct tokens indexed of one text. A tsvector ends at 1 MB, and both engines shall find the same."""
_PIECE = 65_536
"""Characters that are cut into words at a time, so that a text of any length takes little memory beside itself."""
_NEAR = 256
"""Characters that are cut into words at a time where only the next few words are wanted."""
_BEGINNING = 4_096
"""Characters at the beginning of a text in which the first of the words is looked for."""
_FEW = 4
"""How many words are looked for one by one."""
_TRIES = 64
"""Places in a text that are looked at for one word as it is written: a single letter stands in every other word."""

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
_ASKED = re.compile(r"[A-Za-z0-9]+\*?")
_RUNS = re.compile(rf"(?P<run>[{_UNSPACED}]+)|(?:(?![{_UNSPACED}])[^\W_])(?:(?![{_UNSPACED}])[^\W_]|[{_MARK}])*")
_ACCENTS = re.compile("[\u0300-\u036f]")
_IN_RUN = re.compile(f"[{_UNSPACED}]")
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


Phrase = tuple[Token, ...]


class Wanted(Struct, frozen=True):
    """Phrases to look for in one pass over the words of a text: plain words by what they are, and all others."""

    words: dict[str, Phrase]
    others: tuple[Phrase, ...]

    @classmethod
    def of(cls, phrases: Iterable[Phrase]) -> Wanted:
        """Return these phrases to be looked for."""
        words: dict[str, Phrase] = {}
        words.update((phrase[0].text, phrase) for phrase in phrases if len(phrase) == 1 and not phrase[0].prefix)
        return cls(words, tuple(phrase for phrase in phrases if len(phrase) > 1 or phrase[0].prefix))


class Query:
    """A query: phrases that must all occur, each a sequence of tokens at neighbouring positions."""

    def __init__(self, asked: Iterator[Phrase]) -> None:
        self._asked = asked
        self._seen: dict[Phrase, None] = {}
        self.phrases = tuple(self._distinct(FIRST_WORDS))
        """What is asked for first, which every text must have."""
        self._wanted = Wanted.of(self.phrases)
        self._longer = [phrase for phrase in self.phrases if len(phrase) > 1]
        # Long words are rare, and sooner found in a text.
        self._longest = sorted(self.phrases, key=lambda phrase: len(phrase[0].text), reverse=True)

    @functools.cached_property
    def others(self) -> tuple[Phrase, ...]:
        """What is asked for beyond that, which only texts that are not long must have; read when one is met."""
        return tuple(self._distinct(MOST_WORDS))

    def _distinct(self, most: int) -> Iterator[Phrase]:
        """Yield further phrases until all of them have so many words; the last may go beyond."""
        count = sum(len(phrase) for phrase in self._seen)
        while count < most:
            phrase = next(self._asked, None)
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

        None unless all of them occur. In a text that the index led to, single words are known to occur; only phrases of
        several are looked up again.
        """
        if not self.phrases:
            return None
        if not _all_occur(text, self._longer if indexed else self.phrases) or not self._has_others(text):
            return None
        first = self._near_beginning(text)
        if first is None:
            first = _anywhere(text, self._longest)
        return None if first is None else self._spans(text, first)

    def match_excerpt(self, text: str) -> list[tuple[int, int]] | None:
        """Return the same of a long text that the index led to, from its beginning; None if that cannot tell."""
        first = None if self._longer else self._near_beginning(text)
        return None if first is None else self._spans(text, first)

    def _near_beginning(self, text: str) -> int | None:
        """Return where the first of the phrases stands near the beginning of a text."""
        place, end, phrases = None, min(len(text), _BEGINNING), self._longest
        if len(self._wanted.words) > _FEW and text[:end].isascii():
            # To look each word up is quicker than to look for each of many.
            for word in _ASCII.finditer(text, 0, end):
                if word[0].lower() in self._wanted.words and (word.end() < end or end == len(text)):
                    return word.start()
            phrases = list(self._wanted.others)
        for phrase in phrases:
            found = _as_written(text, phrase, 0, end)
            if found is not None:
                place = end = found
        return place

    def _spans(self, text: str, first: int) -> list[tuple[int, int]]:
        """Return where the phrases occur around a place."""
        begin = max(first - WIDTH // 4, 0)
        if begin:
            cut = _NO_WORD.search(text, begin, first)
            begin = cut.start() if cut is not None else first
        spans = {(start, end) for _, start, end in _occurrences(text, self._wanted, begin, first + WIDTH)}
        return sorted(spans) or [(first, first)]

    def _has_others(self, text: str) -> bool:
        if len(text) > LONG or not self.others:
            return True
        tokens = set(vocabulary(text))
        words = [phrase for phrase in self.others if len(phrase) == 1 and not phrase[0].prefix]
        if not all(phrase[0].text in tokens for phrase in words):
            return False
        return _all_occur(text, [phrase for phrase in self.others if len(phrase) > 1 or phrase[0].prefix])


def scan(text: str, start: int = 0, size: int = _PIECE) -> Iterator[Word]:
    """Yield the words of a text in order, from a place on that cuts no word."""
    for begin, end in [(start, len(text))] if text.isascii() else _pieces(text, start, size):
        if text.isascii() or text[begin:end].isascii():
            for match in _ASCII.finditer(text, begin, end):
                yield Word(match.start(), match.end(), _ascii_tokens(match[0]))
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


def _pieces(text: str, start: int = 0, size: int = _PIECE) -> Iterator[tuple[int, int]]:
    """Yield where pieces of a text begin and end, each of about a size; none of them cuts a word."""
    while start < len(text):
        end = start + size
        if end < len(text):
            cut = _NO_WORD.search(text, end)
            end = cut.start() if cut is not None else len(text)
        yield start, min(end, len(text))
        start = end


def vocabulary(text: str) -> list[str]:
    """Return the distinct tokens of a text, in the order in which they first occur, up to the size of an index row."""
    found: dict[str, None] = {}
    size = 0
    for begin, end in _pieces(text):
        for tokens in _distinct(text, begin, end):
            for token in tokens:
                if token not in found:
                    # A tsvector spends up to eight bytes beside the token itself.
                    size += len(token) * (1 if token.isascii() else 4) + 8
                    if size > _MOST_BYTES:
                        return list(found)
                    found[token] = None
    return list(found)


def _distinct(text: str, begin: int, end: int) -> Iterator[Iterable[str]]:
    """Yield the tokens of the distinct words in a piece of text, in the order in which they first occur."""
    if text.isascii() or text[begin:end].isascii():
        # Most texts are: no need to know where the words stand.
        yield from map(_ascii_tokens, dict.fromkeys(_ASCII.findall(text, begin, end)))
        return
    for word, in_run in {match[0]: match["run"] is not None for match in _RUNS.finditer(text, begin, end)}.items():
        if in_run:
            run = _fold_run(word)
            yield (run[at : at + 2] for at in range(len(run)))
        else:
            tokens = _word_tokens(word)
            if tokens[0]:
                yield tokens


def _all_occur(text: str, phrases: Iterable[Phrase]) -> bool:
    """Whether all of the phrases occur in a text."""
    left = dict.fromkeys(phrase for phrase in phrases if _as_written(text, phrase, 0, len(text)) is None)
    for places in _places(text, left) if left else ():
        for phrase in places:
            del left[phrase]
        if not left:
            break
    return not left


def _anywhere(text: str, phrases: list[Phrase]) -> int | None:
    """Return where a phrase is found soonest."""
    written = (_as_written(text, phrase, 0, len(text)) for phrase in phrases)
    place = next((found for found in written if found is not None), None)
    if place is None:
        pieces = _places(text, dict.fromkeys(phrases))
        place = next((min(places.values()) for places in pieces if places), None)
    return place


def _as_written(text: str, phrase: Phrase, start: int, end: int) -> int | None:
    """Return where a phrase begins in a stretch of text, if its first word is written there just as it is asked for.

    Most words are, and a string is found in another many times faster than a text is cut into words.
    """
    first = phrase[0].text
    plain = len(phrase) == 1 and not phrase[0].prefix and first.isascii()
    in_run = not first.isascii() and _IN_RUN.match(first) is not None
    last = min(end + len(first) - 1, len(text))
    at = start - 1
    for _ in range(_TRIES):
        at = text.find(first, at + 1, last)
        if at < 0:
            return None
        begin = at
        if in_run:
            while begin and at - begin < _NEAR and _IN_RUN.match(text, begin - 1):
                begin -= 1
        elif at and not _NO_WORD.match(text, at - 1):
            continue
        if plain:
            stop = at + len(first)
            if stop == len(text) or _NO_WORD.match(text, stop):
                return at
            continue
        found = next(_occurrences(text, Wanted.of((phrase,)), begin, at + 1), None)
        if found is not None:
            return found[1]
    return None


def _places(text: str, phrases: dict[Phrase, None]) -> Iterator[dict[Phrase, int]]:
    """Yield for each piece of a text where the phrases that the caller has not taken away meanwhile begin in it."""
    # Most pieces of a text that is not all ASCII are, if they are small.
    for begin, end in _pieces(text, 0, _PIECE if text.isascii() else _BEGINNING):
        piece = text[begin:end]
        places: dict[Phrase, int] = {}
        if piece.isascii():
            lower = piece.lower()
            for phrase in phrases:
                place = _ascii_place(text, begin, piece, lower, phrase)
                if place is not None:
                    places[phrase] = place
        else:
            for phrase, start, _ in _occurrences(text, Wanted.of(phrases), begin, end, _BEGINNING):
                places.setdefault(phrase, start)
                if len(places) == len(phrases):
                    break
        yield places


def _ascii_place(text: str, offset: int, piece: str, lower: str, phrase: Phrase) -> int | None:
    """Return where a phrase begins in a piece of ASCII, of which every token is a part, given also in lower case."""
    first = phrase[0]
    if len(phrase) > 1:
        # The first two words side by side, or the first at the end: whatever is found so is looked at closely.
        second = f"[a-z0-9]{{0,64}}?{phrase[1].text}"
        after = "[a-z0-9]*+" if len(first.text) >= _LONGEST else "[a-z0-9]{0,64}+"
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
        word = _ASCII.match(piece, begin)
        if word is None:
            continue
        if len(phrase) == 1:
            if first.finds(Word(begin, word.end(), _ascii_tokens(word[0]))):
                return offset + begin
        elif next(_occurrences(text, wanted, offset + begin, offset + begin + 1), None) is not None:
            return offset + begin
        at = word.end()


def _occurrences(
    text: str, wanted: Wanted, begin: int, stop: int, size: int = _NEAR
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
        begun = [one for one in following if one[1] < len(one[0])]


def parse(query: str) -> Query:
    """Read a query: words that must all occur, "quoted phrases", and a trailing * for all that begins so.

    Any string is a query. Whatever is no word, no pair of quotes and no trailing star is ignored, and so is whatever
    follows the first ``MOST_WORDS`` distinct words.
    """
    return Query(_asked(query))


def _asked(query: str) -> Iterator[Phrase]:
    """Yield the phrases of a query in order; none is longer than the words that the index is asked for."""
    for match in _QUOTED.finditer(query):
        quoted, plain = match.groups()
        if quoted is None:
            yield from _plain(plain)
            continue
        phrase = _phrase(quoted, scan(quoted), match.end() < len(query) and query[match.end()] == "*")
        if phrase:
            yield phrase


def _plain(text: str) -> Iterator[Phrase]:
    """Yield what the part of a query that is not quoted asks for: phrases of one word, or of one run without spaces."""
    if text.isascii():
        for begin, end in _pieces(text, 0, _NEAR):
            # One character more: a piece ends where its last word does, and a star may follow.
            for asked in dict.fromkeys(_ASKED.findall(text, begin, end + 1)):
                word = asked.rstrip("*")
                yield (Token(_ascii_tokens(word)[0], word != asked),)
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
            # The end of a run in the query may stand in the middle of one in the text.
            if at == 0 or words[at - 1].run != 1:
                tokens.append(Token(word.tokens[0], True))
            continue
        starred_here = last and (starred or text[word.end : word.end + 1] == "*")
        tokens.append(Token(word.tokens[0], starred_here))
    return tuple(tokens[:FIRST_WORDS])


def snippet(text: str, spans: list[tuple[int, int]], width: int = WIDTH) -> str:
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


def _word_tokens(word: str) -> tuple[str, ...]:
    if word.isascii():
        return _ascii_tokens(word)
    return (_folded(word) if len(word) <= _LONGEST else _fold(word),)


def _fold(word: str) -> str:
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", word).casefold())
    return _NO_WORD.sub("", unicodedata.normalize("NFKC", _ACCENTS.sub("", folded)))[:_LONGEST]


def _fold_run(run: str) -> str:
    return _NO_WORD.sub("", unicodedata.normalize("NFKC", run).casefold())


# A text has far fewer words than it has places for them, and folding one takes longer than finding it.
_folded = functools.lru_cache(maxsize=8_192)(_fold)
