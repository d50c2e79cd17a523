"""Redaction: one function from JSON to JSON without secrets, also in texts that hold JSON. Pure.

A text is never parsed as a whole and written again: places in it are found and replaced, so that everything else stays
byte for byte the same. This also finds the fields of JSON that is fenced, cut off, encoded several times, or stands
between other words. No nesting, however deep, takes a call per level.
"""

from __future__ import annotations

import base64
import binascii
import bisect
import contextlib
import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol
from urllib.parse import unquote_plus

import msgspec

from tape.errors import InvalidEntry

__all__ = ["REDACTED", "Redact", "Redacting", "Redactor", "redactor"]

REDACTED = "[redacted]"
_DEEPEST = 220
"""Levels of a JSON value that are looked into; what lies deeper is taken out unseen."""
_ENCODED = 6
"""How many times encoded JSON is looked into for patterns, and base64 for anything."""
_SHORTEST_KEPT = 32
_KEPT = 4_000_000
"""Characters of texts that are known to have no secrets."""
_LONGEST_NAME = 200
"""Characters of a field's name as it is written, with its escapes."""

_CREDENTIALS = (
    "authorization", "proxy-authorization", "authentication-info", "proxy-authentication-info", "cookie", "cookie2",
    "cookies", "set-cookie", "set-cookie2", "api-key", "apikey", "x-api-key", "x-api-token", "x-auth-token",
    "x-access-token", "x-goog-api-key", "x-amz-security-token", "x-amz-signature", "x-amz-credential",
    "x-goog-signature", "x-goog-credential", "x-functions-key", "x-csrf-token", "x-xsrf-token", "x-vault-token",
    "private-token", "job-token", "ocp-apim-subscription-key", "subscription-key", "access-token", "auth-token",
    "bearer-token", "refresh-token", "id-token", "session-token", "client-secret", "client-assertion", "secret-key",
    "secret-access-key", "aws-secret-access-key", "aws-session-token", "private-key", "password", "passwd",
    "passphrase", "openai-api-key", "anthropic-api-key",
)  # fmt: skip
"""Headers and fields that hold credentials in every API."""
_PARAMETERS = (
    "key|api_?key|apikey|token|access_?token|auth_?token|refresh_?token|id_?token|client_?secret|secret|password|passwd"
    "|pwd|auth|authorization|sig|signature|x-amz-(?:signature|credential|security-token)|x-goog-(?:signature|credential)"
    "|subscription-key|code_verifier|session_?token"
)
"""Parameters of addresses that hold credentials."""
_PRIVATE_KEY = (
    r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----(?:[^-\"']|-(?!----))*"
    r"(?:-----END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----)?"
)
_TOKENS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        # OpenAI, Anthropic, OpenRouter and others; a digit tells a key from words with hyphens.
        (r"(?<![A-Za-z0-9])sk-(?=[A-Za-z0-9_-]{0,200}\d)[A-Za-z0-9_-]{16,}", REDACTED),
        (r"(?<![A-Za-z0-9])[srp]k_(?:live|test)_[A-Za-z0-9]{10,}", REDACTED),
        (r"(?<![A-Za-z0-9])(?:gh[pousr]_|github_pat_)[A-Za-z0-9_]{20,}", REDACTED),
        (r"(?<![A-Za-z0-9])(?:glpat-|xai-|gsk_|hf_|npm_|pypi-|r8_|pplx-|whsec_|dop_v1_)[A-Za-z0-9_-]{20,}", REDACTED),
        (r"(?<![A-Za-z0-9])A(?:KIA|SIA)[A-Z0-9]{16}(?![A-Za-z0-9])", REDACTED),
        (r"(?<![A-Za-z0-9])(?:xox[a-z]-|xapp-)[A-Za-z0-9-]{10,}", REDACTED),
        (r"(?<![A-Za-z0-9])AIza[A-Za-z0-9_-]{30,}", REDACTED),
        (r"(?<![A-Za-z0-9])ya29\.[A-Za-z0-9_-]{20,}", REDACTED),
        (r"(?<![A-Za-z0-9])SG\.[A-Za-z0-9_-]{16,100}\.[A-Za-z0-9_-]{16,}", REDACTED),
        (r"(?<![A-Za-z0-9])eyJ[A-Za-z0-9_-]{8,1000}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){0,3}", REDACTED),
        (_PRIVATE_KEY, REDACTED),
        (r"(?i:(?<![a-z0-9])bearer[ +]|(?<![a-z0-9])bearer%20)(?=[^\s]{0,200}\d)[A-Za-z0-9._~+/-]{6,}=*", REDACTED),
        (r"(?i:(?<![a-z0-9])bearer )[A-Za-z0-9._~+/-]{24,}=*", REDACTED),
        (r"(?<=://)[^/\s\"'<>?#\\]{1,500}@", ""),
    )
)
"""Forms of tokens that are known by themselves, and the user-info of addresses."""
_PARAMETER = re.compile(rf"(?i)(?:(?<=[?&])|(?<=&amp;)|\A(?=\S+\Z))(?:{_PARAMETERS})=([^&\s\"'<>#\\]+)")
_BASIC = re.compile(r"(?i:(?<![a-z0-9])basic) +([A-Za-z0-9+/_-]{4,}={0,2})")
_HINTS = re.compile(
    r"sk-|k_(?:live|test)_|gh[pousr]_|github_|glpat-|xai-|gsk_|hf_|npm_|pypi-|r8_|pplx-|whsec_|dop_v1_|A[KS]IA|xox|xapp-"
    r"|AIza|ya29|SG\.|eyJ|PRIVATE KEY|[Bb](?:earer|asic)|BEARER|BASIC|://"
)
"""What a text must have for one of the tokens to be in it: one search, for most texts the only one."""

_CLOSING = re.compile(r"[\"'](?:\s|\\+[nrt]){0,50}:")
"""The end of a field's name in quotes."""
_BARE = re.compile(r"(?:(?<=[{,(])|^|(?<=\\n))[ \t]*(?:[>+#-] ?)?([\w.-]{1,100})[ \t]*:(?![/\w])", re.M)
"""The name of a field without quotes: a header, YAML, an object of JavaScript."""
_EQUALS = re.compile(r"(?:(?<=\\)n)?([\w.%\[\]-]{1,100})[ \t]{0,3}=[ \t]{0,3}(?=[^=\s&])")
_PAIR = re.compile(r"[\[,]\s*[\[(]\s*(\\*[\"'])([^\"'\n]{1,200}?)\1\s*,")
_NAMING = ("name", "key")
"""Fields that name a value, which the same object holds in a field "value"."""
_NAME_OR_VALUE = re.compile(
    r"(?P<open>[{(\[])|(?P<close>[})\]])"
    r"|(?P<quote>\\*[\"'])(?i:(?:name|key)(?P=quote)\s*:\s*(?P=quote)(?P<name>[^\"'\\\n]{1,200})|(?P<value>value)(?P=quote)\s*:"
    r"|[^\"'\\\n]*(?P=quote)(?=\s*[,}\]]))"
)
_BREAK = r"(?:\\+r\\+n|\\+n|\r?\n)"
_FORM_PART = re.compile(
    rf"form-data; ?name=\\*\"([^\"\\\r\n]{{1,200}})\\*\"(?:;[^\\\r\n]{{0,300}})?{_BREAK}"
    rf"(?:[^\\\r\n]{{1,300}}{_BREAK}){{0,5}}{_BREAK}"
)
_SPACE = re.compile(r"(?:\s|\\+[nrt])*")
_STRUCTURE = re.compile(r"[\[\](){}\"']")
_WORD = re.compile(r"[^\s,;}\])\"'\\(\[{]*")
_PARAMETER_VALUE = re.compile(r"(?:[^&\s\"'<>#\\]|'(?=\w))*")
_TYPE = re.compile(
    r"(?:Optional\[|typing\.)?(?:str|string|bytes|int|float|bool|boolean|number|any|Any|object|SecretStr|None|null"
    r"|undefined|[Tt]rue|[Ff]alse)(?:\s*[|=,;)\]?}].*)?"
)
"""A type or a constant behind a name: code that declares the field and does not fill it."""
_LINE = re.compile(r"[^\r\n]*?(?=\\+[nr]|[\r\n]|$)")
_PART = re.compile(rf".*?(?={_BREAK}--|\Z)", re.S)
_MEMBER = re.compile(r"[^\r\n,}\"']*")
_ESCAPE = re.compile(r"\\(?:u([dD][89abAB]..)\\u([dD][c-fC-F]..)|u([0-9a-fA-F]{4})|(.))", re.S)
_UNESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{14,}={0,2}")
_OBJECT_LINE = re.compile(r"^(?:data:)?[ \t]*(\{.*\})[ \t\r]*$", re.M)
_PROSE = re.compile(r"(?:[^\W\d_]['\u2019\w-]*[.,:!?]? +(?! )){2}[^=]*")
"""Words behind the name of a field at the beginning of a line: prose."""
_HEAD = 500
"""Characters of a value without quotes by which it is known as code or a type."""
_SCHEMA = {
    "anyOf", "deprecated", "description", "format", "maxLength", "minLength", "nullable", "pattern", "readOnly",
    "title", "type", "writeOnly",
}  # fmt: skip
"""What the JSON schema of a parameter says, and not what it holds."""
_TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")
_PREFIXES = ("", "b", "r", "u", "f", "br", "rb")
"""Letters before a string in Python."""
_VALUES = {
    "escaped line": _LINE, "line": _LINE, "member": _MEMBER, "parameter": _PARAMETER_VALUE, "part": _PART,
}  # fmt: skip
"""Values without quotes, by how the name of the field is written."""
_STREAMED = {"candidates", "choices", "delta", "done"}
"""Fields of events of streams. Other lines of JSON are records, and a record has nothing to do with the next one."""
_NUMBER = re.compile(r"[0-9.eE+-]+")
_INDEX = re.compile("(?:.*_)?index")

Redacting = Callable[[Any], Any]


class _Edit(NamedTuple):
    """A place in a text, and its replacement."""

    start: int
    end: int
    replacement: str


class Redact:
    """What must not be kept: fields by their names, texts by patterns, and tokens by their known forms.

    It is called with a JSON value and returns the value without them, each replaced by ``[redacted]``; the value itself
    is not changed. A name matches in any case and spelling: ``api_key``, ``apiKey`` and ``API-Key`` are one. Fields are
    found in objects, in lists of pairs, in JSON inside a text, in parameters of addresses and forms, and in lines such
    as those of headers. ``tokens=False`` leaves the known forms alone: keys of providers, JSON web tokens, private
    keys, bearer and basic credentials, user-info and key parameters of addresses.

    ``Redact.CREDENTIALS`` is the default of adapters: the headers and fields that hold credentials in every API, and
    the known forms.
    """

    CREDENTIALS: ClassVar[Redact]

    def __init__(
        self, fields: Iterable[str] = (), patterns: Iterable[str | re.Pattern[str]] = (), *, tokens: bool = True
    ) -> None:
        self._names = frozenset(_letters(name) for name in _listed(fields, "fields"))
        self._tokens = tokens
        try:
            self._patterns = [re.compile(pattern) for pattern in _listed(patterns, "patterns", re.Pattern)]
        except re.error as error:
            raise InvalidEntry("patterns", f"must be regular expressions: {error.pattern!r}: {error}") from None

        self._unchanged: set[str] = set()
        """Texts without secrets, which need not be searched again."""
        self._kept = 0

    def __repr__(self) -> str:
        return "tape.Redact.CREDENTIALS" if self is Redact.CREDENTIALS else f"tape.Redact({sorted(self._names)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Redact) and self._facts == other._facts

    def __hash__(self) -> int:
        return hash(self._facts)

    @property
    def _facts(self) -> tuple[Any, ...]:
        return self._names, tuple(self._patterns), self._tokens

    def __bool__(self) -> bool:
        return bool(self._names or self._tokens or self._patterns)

    def __call__(self, value: Any) -> Any:
        """Return a JSON value without secrets; bytes are searched as text."""
        try:
            return self._value(value, 0) if self else value
        except RecursionError:
            # The stack is deep already, or the value is deeper than a tape takes.
            return REDACTED

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        return self._text(text, 0) if self else text

    def stream(self, values: Sequence[Any]) -> list[Any]:
        """Return the chunks of a stream without secrets, also without those that are spread over several chunks."""
        return [self(value) for value in self._joined(values)] if self else list(values)

    # -- values

    def _value(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._text(value, 0)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, bytes):
            return _as_text(self.text, value)
        if depth > _DEEPEST:
            return REDACTED
        if isinstance(value, dict):
            return self._object(value, depth)
        if isinstance(value, list | tuple):
            if value and all(map(_is_pair, value)):
                return [[self._value(name, depth), self._member(name, item, depth)] for name, item in value]
            return [self._value(item, depth + 1) for item in value]
        return self._number(value)

    def _object(self, value: dict[str, Any], depth: int) -> dict[str, Any]:
        cleaned: dict[str, Any] = {}
        for name, item in value.items():
            shown = self._text(name, 0)
            while shown in cleaned:
                shown += "'"
            cleaned[shown] = self._member(name, item, depth)
        # A header or a parameter as tools write them: {"name": …, "value": …}.
        if any(
            isinstance(item, str) and _spelled(name) in _NAMING and self._is_field(item) for name, item in value.items()
        ):
            cleaned = {name: REDACTED if _spelled(name) == "value" else item for name, item in cleaned.items()}
        return cleaned

    def _member(self, name: str, item: Any, depth: int) -> Any:
        secret = self._is_field(name) and not _is_schema(item)
        return REDACTED if secret else self._value(item, depth + 1)

    def _number(self, value: Any) -> Any:
        # A number may be a secret, such as that of a card.
        return REDACTED if any(pattern.search(str(value)) for pattern in self._patterns) else value

    def _is_field(self, name: str) -> bool:
        if len(name) > _LONGEST_NAME:
            return False
        # Attributes of traces are paths: ``http.request.header.cookie``.
        return _letters(name) in self._names or ("." in name and _letters(name.rpartition(".")[2]) in self._names)

    # -- texts

    def _text(self, text: str, encoded: int) -> str:
        if text in self._unchanged or (len(text) < 4 and not self._patterns):
            return text
        joined = self._lines(text)
        if edits := self._edits(joined, encoded):
            return _applied(joined, edits)
        if joined is text and _SHORTEST_KEPT <= len(text) <= _KEPT:
            # A conversation is sent again with every call.
            self._kept += len(text)
            if self._kept > _KEPT:
                self._unchanged, self._kept = set(), len(text)
            self._unchanged.add(text)
        return joined

    def _edits(self, text: str, encoded: int = 0) -> list[_Edit]:
        """Return the places to replace, in order and apart from each other."""
        edits = [*self._named(text), *self._matched(text), *self._base64(text, encoded)]
        seen = self._patterns or "\\u" in text or (self._tokens and ("=" in text or _HINTS.search(text)))
        if not seen:
            return _apart(edits)
        # Some libraries write quotes of JSON in JSON as ``\\u0022``.
        quotes = "\\u002" in text
        for level, view in enumerate(_views(text), 1):
            for edit in (*(self._named(view.text) if quotes else ()), *self._matched(view.text)):
                shown = edit.replacement
                for _ in range(level):
                    shown = shown.replace("\\", "\\\\").replace('"', '\\"')
                edits.append(_Edit(view.place(edit.start), view.place(edit.end), shown))
        return _apart(edits)

    def _matched(self, text: str) -> Iterator[_Edit]:
        """Yield what the patterns and the known forms match."""
        if self._tokens:
            if _HINTS.search(text):
                for pattern, replacement in _TOKENS:
                    yield from (_Edit(*match.span(), replacement) for match in pattern.finditer(text))
                for match in _BASIC.finditer(text):
                    if _is_basic(match[1]):
                        yield _Edit(*match.span(), REDACTED)
            if "=" in text:
                yield from (_Edit(*match.span(1), REDACTED) for match in _PARAMETER.finditer(text))
        for own in self._patterns:
            yield from _whole_numbers(text, own)

    def _named(self, text: str) -> Iterator[_Edit]:
        """Yield the values of fields of these names, at any depth."""
        if not self._names:
            return
        done = 0
        for name, at, quote, kind in sorted(self._places(text), key=lambda place: place[1]):
            if at < done or not self._is_name(name):
                continue
            edit = _value_at(text, at, quote, kind)
            if edit is not None:
                done = edit.end
                yield edit

    def _places(self, text: str) -> Iterator[tuple[str, int, str, str]]:
        """Yield what may be the names of fields, each with the place behind it, its quote, and how it is written."""
        if ":" in text:
            for match in _CLOSING.finditer(text):
                closing = match.start()
                quote = text[closing]
                opening = text.rfind(quote, max(0, closing - _LONGEST_NAME), closing)
                slashes = _slashes(text, closing)
                name = text[opening + 1 : closing - slashes]
                if opening >= 0 or closing < _LONGEST_NAME:
                    yield name, match.end(), "\\" * slashes + quote, "json"
            for match in _BARE.finditer(text):
                line = match.start() == 0 or text[match.start() - 1] not in "{,("
                escaped = text[match.start() - 2 : match.start()] == "\\n"
                yield match[1], match.end(), '"', "member" if not line else "escaped line" if escaped else "line"
        if "=" in text:
            for match in _EQUALS.finditer(text):
                yield match[1], match.end(), '"', "parameter"
        if "," in text:
            for match in _PAIR.finditer(text):
                yield match[2], match.end(), match[1], "json"
            if "value" in text.lower():
                yield from self._named_beside(text)
        if "form-data" in text:
            for match in _FORM_PART.finditer(text):
                yield match[1], match.end(), '"', "part"

    def _named_beside(self, text: str) -> Iterator[tuple[str, int, str, str]]:
        """Yield the values that another field of the same object names: ``{"name": …, "value": …}`` in any order."""
        levels: list[tuple[list[str], list[tuple[int, str]]]] = [([], [])]
        for match in _NAME_OR_VALUE.finditer(text):
            names, values = levels[-1]
            if match["open"]:
                levels.append(([], []))
            elif match["name"]:
                if self._is_name(match["name"]):
                    names.append(match["name"])
            elif match["value"]:
                values.append((match.end(), match["quote"]))
            elif match["close"] and len(levels) > 1:
                levels.pop()
                yield from ((names[0], at, quote, "json") for at, quote in values if names)
        for names, values in levels:
            yield from ((names[0], at, quote, "json") for at, quote in values if names)

    def _is_name(self, name: str) -> bool:
        if self._is_field(name):
            return True
        if "\\" in name:
            for _ in range(_ENCODED):
                name = _unescaped(name)
                if self._is_field(name):
                    return True
        return "%" in name and self._is_field(unquote_plus(name))

    def _base64(self, text: str, encoded: int) -> Iterator[_Edit]:
        """Yield what encodes a text with secrets: bytes are kept so in JSON, and pictures in addresses."""
        if encoded >= _ENCODED or len(text) < 16:
            return
        for match in _BASE64.finditer(text):
            word = match[0]
            marks = b"-_" if "-" in word or "_" in word else b"+/"
            try:
                data = base64.b64decode(word + "=" * (-len(word) % 4), marks, validate=True)
            except (ValueError, binascii.Error):
                continue
            held, encoding = _decoded(data)
            if encoding == "latin-1" and "\0" in held:
                # Pictures and sound, not text.
                continue
            cleaned = self._text(held, encoded + 1)
            if cleaned != held:
                made = base64.b64encode(cleaned.encode(encoding), marks).decode()
                yield _Edit(*match.span(), made if len(word) % 4 == 0 else made.rstrip("="))

    # -- streams

    def _lines(self, text: str) -> str:
        """Return a text without secrets that are spread over lines of JSON: events of a server, or JSON lines."""
        if "}\n" not in text and "}\r" not in text:
            return text
        lines: list[tuple[re.Match[str], Any]] = []
        for match in _OBJECT_LINE.finditer(text):
            try:
                value = msgspec.json.decode(match[1])
            except (msgspec.DecodeError, RecursionError):
                continue
            if match[0].startswith("data:") or value.keys() & _STREAMED:
                lines.append((match, value))
        values = [value for _, value in lines]
        if len(lines) < 2:
            return text
        edits = []
        for (match, value), cleaned in zip(lines, self._joined(values), strict=True):
            if cleaned is not value:
                edits.append(_Edit(*match.span(1), _written_as(match[1], value, cleaned)))
        return _applied(text, edits) if edits else text

    def _joined(self, values: Sequence[Any]) -> list[Any]:
        """Return values without secrets that are spread over texts at the same place in several of them."""
        pieces: dict[tuple[Any, ...], list[tuple[int, tuple[Any, ...], str | bytes]]] = {}
        for number, value in enumerate(values):
            for path, place, text in _leaves(value):
                pieces.setdefault(path, []).append((number, place, text))
        changed = list(values)
        for parts in pieces.values():
            texts = [text for _, _, text in parts]
            if len(set(texts)) < 2:
                continue
            for (number, place, text), cleaned in zip(parts, self._pieces(texts), strict=True):
                if cleaned != text:
                    changed[number] = _put(changed[number], place, cleaned)
        return changed

    def _pieces(self, texts: list[Any]) -> list[Any]:
        """Return the pieces of one text without secrets that are spread over several of them."""
        if any(type(text) is not type(texts[0]) for text in texts):
            return texts
        if isinstance(texts[0], str):
            return _cut(texts, self._edits("".join(texts)))
        text, encoding = _decoded(b"".join(texts))
        edits, at, passed = [], 0, 0
        for start, end, replacement in self._edits(text):
            at += len(text[passed:start].encode(encoding))
            size = len(text[start:end].encode(encoding))
            edits.append((at, at + size, replacement.encode(encoding)))
            at, passed = at + size, end
        return _cut(texts, edits)


class Redactor(Protocol):
    """A ``Redact``, or several of them and functions of the caller's, one after the other."""

    def __call__(self, value: Any) -> Any:
        """Return a JSON value, or bytes, without secrets."""

    def text(self, text: str) -> str:
        """Return a name without secrets. An answer of the caller's function is used only if it is a string."""

    def stream(self, values: Sequence[Any]) -> list[Any]:
        """Return the chunks of a stream without secrets."""


class _Several:
    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Several) and self._parts == other._parts

    def __call__(self, value: Any) -> Any:
        for part in self._parts:
            whole = isinstance(part, Redact | _Several) or not isinstance(value, bytes)
            value = part(value) if whole else _as_text(part, value)
        return value

    def text(self, text: str) -> str:
        for part in self._parts:
            # A function may be made for other values than texts.
            with contextlib.suppress(Exception):
                cleaned = part(text)
                text = cleaned if isinstance(cleaned, str) else text
        return text

    def stream(self, values: Sequence[Any]) -> list[Any]:
        for part in self._parts:
            values = (
                part.stream(values) if isinstance(part, Redact | _Several) else [_Several([part])(v) for v in values]
            )
        return list(values)


def redactor(*redacts: Redactor | Redacting | Iterable[str] | None) -> Redactor | None:
    """Return one redactor for all that callers pass: functions, values of ``Redact``, or names of fields."""
    parts: list[Any] = []
    for redact in redacts:
        if redact is None or redact in parts:
            continue
        if callable(redact):
            parts.append(redact)
        elif isinstance(redact, str) or not isinstance(redact, Iterable):
            problem = "must be a tape.Redact, a function from JSON to JSON, or a list of field names"
            raise InvalidEntry("redact", problem)
        else:
            parts.append(Redact(redact))
    if len(parts) == 1 and isinstance(parts[0], Redact | _Several):
        return parts[0]
    return _Several(parts) if parts else None


def _decoded(data: bytes) -> tuple[str, str]:
    """Return bytes as text, and its encoding: UTF-16 with its mark, UTF-8, or else Latin-1, which takes any bytes."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        encoding = "utf-16-le" if data[:1] == b"\xff" else "utf-16-be"
        with contextlib.suppress(UnicodeDecodeError):
            return data.decode(encoding), encoding
    try:
        return data.decode(), "utf-8"
    except UnicodeDecodeError:
        return data.decode("latin-1"), "latin-1"


def _as_text(redact: Redacting, data: bytes) -> Any:
    """Return bytes without secrets, which are searched as text."""
    text, encoding = _decoded(data)
    cleaned = redact(text)
    if cleaned == text:
        return data
    return cleaned.encode(encoding) if isinstance(cleaned, str) else cleaned


def _listed(values: Any, field: str, also: type = str) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidEntry(field, "must be a list of strings, not a single one")
    listed = list(values)
    if not all(isinstance(value, str | also) for value in listed):
        raise InvalidEntry(field, "must be a list of strings")
    return listed


def _spelled(name: str) -> str:
    return name.lower() if len(name) <= len("value") else ""


@functools.lru_cache(4_096)
def _letters(name: str) -> str:
    """Return a name in one spelling."""
    return re.sub(r"[\W_]+", "", name.casefold())


def _is_pair(item: Any) -> bool:
    return isinstance(item, list | tuple) and len(item) == 2 and isinstance(item[0], str)


def _is_basic(credentials: str) -> bool:
    """Whether a word behind "Basic" is a user and a password."""
    try:
        return ":" in base64.b64decode(credentials + "=" * (-len(credentials) % 4), b"+/").decode()
    except (ValueError, binascii.Error):
        return False


# -- escapes


def _slashes(text: str, quote: int) -> int:
    """Return how many backslashes stand before a quote: none in JSON, one in JSON encoded twice, then three."""
    start = quote
    while start and text[start - 1] == "\\":
        start -= 1
    return quote - start


def _character(match: re.Match[str]) -> str:
    if match[1]:
        try:
            return bytes.fromhex(match[1] + match[2]).decode("utf-16-be", "surrogatepass")
        except ValueError:
            return match[0]
    return chr(int(match[3], 16)) if match[3] else _UNESCAPED.get(match[4], match[4])


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_character, text)


class _View(NamedTuple):
    """A text with its escapes resolved, and the place of each part in the text itself."""

    text: str
    here: list[int]
    there: list[int]
    before: _View | None

    def place(self, at: int) -> int:
        """Return the place in the text itself."""
        index = bisect.bisect_right(self.here, at) - 1
        there = self.there[index] + at - self.here[index]
        return there if self.before is None else self.before.place(there)


def _views(text: str) -> Iterator[_View]:
    """Yield a text with its escapes resolved once, twice, and so on."""
    before: _View | None = None
    for _ in range(_ENCODED):
        if "\\" not in text:
            return
        parts, here, there, length, last = [], [0], [0], 0, 0
        for match in _ESCAPE.finditer(text):
            character = _character(match)
            length += match.start() - last
            parts += [text[last : match.start()], character]
            here += [length, length + len(character)]
            there += [match.start(), match.end()]
            length, last = length + len(character), match.end()
        if not parts:
            return
        text = "".join([*parts, text[last:]])
        before = _View(text, here, there, before)
        yield before


# -- places in a text


def _value_at(text: str, at: int, quote: str, kind: str) -> _Edit | None:
    """Return the edit that takes out the value of a field, which begins at this place or behind it."""
    if kind in ("json", "member"):
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
    elif "line" in kind:
        while text[at : at + 1] in (" ", "\t"):
            at += 1
    if text.startswith(REDACTED, at):
        return None
    # Of a parameter only the letters before a quote count. Its word may go on to the end of the text.
    word = _WORD.match(text, at, {"part": at, "parameter": at + 3}.get(kind, len(text)))
    assert word is not None
    slashes = 0
    while text[word.end() + slashes : word.end() + slashes + 1] == "\\":
        slashes += 1
    opening = word.end() + slashes
    mark = "" if kind == "part" else text[opening : opening + 1]
    if mark and mark in "\"'" and word[0].lower() in _PREFIXES:
        end, _ = _string_end(text, opening + 1, mark, slashes)
        return _Edit(opening + 1, end, REDACTED) if end > opening + 1 else None
    if mark and mark in "{[(" and not slashes and (kind in ("json", "member") or not word[0]):
        end = _container_end(text, opening, quote)
        return None if _holds_schema(text[opening:end], quote) else _Edit(at, end, f"{quote}{REDACTED}{quote}")
    if kind == "json":
        end = word.end()
        return _Edit(at, end, f"{quote}{REDACTED}{quote}") if end > at else None
    head = _VALUES[kind].match(text, at, at + _HEAD)
    assert head is not None
    # Code and types are known by their beginning, so that a value which stays is not read to its end.
    code = kind == "parameter" and ("(" in head[0] or "[" in head[0])
    if code or _TYPE.fullmatch(head[0].rstrip()):
        return None
    rest = _VALUES[kind].match(text, at)
    assert rest is not None
    end = at + len(rest[0].rstrip())
    if kind == "escaped line":
        end = min(end, _literal_end(text, at, end))
    if "line" in kind and _PROSE.fullmatch(rest[0].strip()):
        return None
    return _Edit(at, end, REDACTED) if end > at else None


def _string_end(text: str, at: int, mark: str, slashes: int) -> tuple[int, int]:
    """Return where the content of a string ends, and where the text goes on behind its quote.

    A quote with fewer backslashes before it ends the outer string: this one was cut off.
    """
    period = 2 * (slashes + 1)
    while (found := text.find(mark, at)) >= 0:
        run = min(_slashes(text, found), found - at)
        if run < slashes:
            return found - run, found - run
        if run % period == slashes:
            return found - slashes, found + 1
        at = found + 1
    return len(text), len(text)


def _literal_end(text: str, at: int, end: int) -> int:
    """Return where the string ends that holds a line which begins behind an escaped line break."""
    line = text.rfind("n", 0, text.rfind(":", 0, at))
    while line > 0 and text[line - 1] != "\\":
        line = text.rfind("n", 0, line)
    slashes = _slashes(text, line)
    opening = line
    while (opening := max(text.rfind('"', 0, opening), text.rfind("'", 0, opening))) >= 0:
        if _slashes(text, opening) < slashes:
            break
    mark = text[opening] if opening >= 0 else '"'
    while (found := text.find(mark, at, end)) >= 0:
        if _slashes(text, found) < slashes:
            return found - _slashes(text, found)
        at = found + 1
    return end


def _container_end(text: str, at: int, quote: str) -> int:
    """Return where an object or a list ends that begins at this place; the end of the text if it is cut off."""
    slashes, marks = len(quote) - 1, quote[-1] if quote[-1] == '"' else "\"'"
    depth = 0
    while (match := _STRUCTURE.search(text, at)) is not None:
        at, mark = match.end(), match[0]
        if mark in "\"'":
            if mark not in marks:
                continue
            run = _slashes(text, match.start())
            if run < slashes:
                return match.start() - run
            _, at = _string_end(text, at, mark, run)
        elif mark in "{[(":
            depth += 1
        else:
            depth -= 1
            if depth <= 0:
                return at
    return len(text)


def _whole_numbers(text: str, pattern: re.Pattern[str]) -> Iterator[_Edit]:
    """Yield the edits that take out what a pattern matches: of a number in JSON all of it, so that it stays JSON."""
    last, quote, whole = 0, '"', False
    for match in pattern.finditer(text):
        start, end = match.span()
        if start == end:
            continue
        if not _NUMBER.fullmatch(text, start, end):
            yield _Edit(start, end, REDACTED)
            continue
        if start >= last:
            # A number of which nothing was matched before. Later matches in it are not measured again.
            first, before_it = start, last
            while first > before_it and _NUMBER.match(text[first - 1]):
                first -= 1
            opening = text.rfind('"', before_it, first)
            if opening >= 0:
                quote = "\\" * _slashes(text, opening) + '"'
            last = _NUMBER.match(text, start).end()  # type: ignore[union-attr]
            before, after = text[max(0, first - 50) : first].rstrip()[-1:], text[last : last + 50].lstrip()[:1]
            whole = bool(before and before in ":[," and after and after in ",}]")
            if whole:
                yield _Edit(first, last, f"{quote}{REDACTED}{quote}")
        if not whole:
            yield _Edit(start, end, REDACTED)


def _apart(edits: list[_Edit]) -> list[_Edit]:
    """Return edits in their order; those that overlap become one."""
    made: list[_Edit] = []
    for edit in sorted(edits, key=lambda edit: (edit.start, -edit.end)):
        if made and edit.start < made[-1].end:
            last = made[-1]
            if edit.end > last.end:
                made[-1] = _Edit(last.start, edit.end, last.replacement or edit.replacement)
        elif edit.end > edit.start:
            made.append(edit)
    return made


def _applied(text: str, edits: list[_Edit]) -> str:
    parts, last = [], 0
    for start, end, replacement in edits:
        parts += [text[last:start], replacement]
        last = end
    return "".join([*parts, text[last:]])


def _is_schema(item: Any) -> bool:
    """Whether a value declares a field, as the parameters of a tool do, and does not fill it."""
    if not isinstance(item, dict) or not item.keys() <= _SCHEMA:
        return False
    alternatives = item.get("anyOf")
    if isinstance(alternatives, list):
        return all(isinstance(one, dict) and one.keys() == {"type"} and one["type"] in _TYPES for one in alternatives)
    return isinstance(item.get("type"), str) and item["type"].lower() in _TYPES


def _holds_schema(text: str, quote: str) -> bool:
    if len(text) > 2_000 or "type" not in text:
        return False
    for _ in range((len(quote) - 1).bit_length()):
        text = _unescaped(text)
    try:
        return _is_schema(json.loads(text))
    except (ValueError, RecursionError):
        return False


# -- pieces of a text


def _leaves(
    value: Any, path: tuple[Any, ...] = (), place: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...], str | bytes]]:
    """Yield the texts of a value: at which place of its stream each stands, and where in the value."""
    if isinstance(value, str | bytes):
        yield path, place, value
    elif len(place) > _DEEPEST:
        return
    elif isinstance(value, dict):
        # The number of a part keeps parallel parts of an answer separate.
        numbers = tuple(item for name, item in value.items() if type(item) is int and _INDEX.fullmatch(name))
        for name, item in value.items():
            yield from _leaves(item, (*path, numbers, name), (*place, name))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index), (*place, index))


def _put(value: Any, place: tuple[Any, ...], text: Any) -> Any:
    """Return a copy of a value with another text at a place."""
    if not place:
        return text
    if isinstance(value, dict):
        return {name: _put(item, place[1:], text) if name == place[0] else item for name, item in value.items()}
    return [_put(item, place[1:], text) if index == place[0] else item for index, item in enumerate(value)]


def _cut(texts: list[Any], edits: Sequence[tuple[int, int, Any]]) -> list[Any]:
    """Return the pieces of a text after the edits of the whole. A replacement goes into the first piece it touches."""
    made, begin, number = [], 0, 0
    for text in texts:
        end, parts, last = begin + len(text), [], begin
        while number < len(edits) and edits[number][0] < end:
            start, stop, replacement = edits[number]
            parts.append(text[last - begin : max(start, begin) - begin])
            if start >= begin:
                parts.append(replacement)
            last = min(stop, end)
            if stop > end:
                break
            number += 1
        parts.append(text[last - begin :])
        made.append(text[:0].join(parts))
        begin = end
    return made


def _written_as(text: str, value: Any, cleaned: Any) -> str:
    """Return JSON of a value in the layout of the text that it was read from."""
    for escaped in (False, True):
        for separators in ((",", ":"), (", ", ": ")):
            write = functools.partial(json.dumps, ensure_ascii=escaped, separators=separators)
            if write(value) == text:
                return write(cleaned)
    return json.dumps(cleaned, ensure_ascii=text.isascii())


Redact.CREDENTIALS = Redact(_CREDENTIALS)
