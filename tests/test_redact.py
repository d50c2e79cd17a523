"""``tape.Redact`` takes secrets out of values, texts, streams, runs and reports. All else stays as it is."""

from __future__ import annotations

import asyncio
import base64
import functools
import itertools
import json
import random
import re
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.backends import Backend
from support.sizes import heavy, size

import tape
from tape.core.redact import redactor
from tape.web.report.redact import Redaction
from tape.web.report.report import write

REDACTED = "[redacted]"
Shape = Callable[[str], str]


def whole(secret: str) -> str:
    return json.dumps({"user": 'ann \u00e9 "q"', "n": 1.50, "password": secret, "tail": [1, {"kept": None}]})


def events(secret: str) -> str:
    pieces = [secret] if secret == REDACTED else [secret[:6], secret[6:]]
    texts = ['{"pass', 'word": "', *pieces, '"}'] if secret != REDACTED else ['{"pass', 'word": "', REDACTED, "", '"}']
    return "".join(f"data: {json.dumps({'index': 0, 'delta': {'text': text}})}\n\n" for text in texts)


SHAPES: dict[str, Shape] = {
    "compact": lambda s: json.dumps({"a": [1, 2.0], "password": s, "z": "kept"}, separators=(",", ":")),
    "spaced": whole,
    "indented": lambda s: json.dumps({"deep": {"password": s}, "z": "kept"}, indent=2),
    "odd spacing": lambda s: f'{{ "password"\n:\t"{s}" ,"b":1E3,"b":2 }}  ',
    "fenced": lambda s: f"Here it is:\n```json\n{whole(s)}\n```\nAnything else?",
    "lines": lambda s: f"{whole('x' + s)}\n{whole(s)}\r\n{whole(s)}\n".replace("x" + s, s),
    "after words": lambda s: f'I called it with {whole(s)} and it\'s fine: "ok"',
    "byte order mark": lambda s: "\ufeff" + whole(s),
    "encoded twice": lambda s: json.dumps(whole(s)),
    "encoded three times": lambda s: json.dumps({"x": json.dumps([whole(s)])}),
    "quotes as escapes": lambda s: whole(s).replace('"', "\\u0022"),
    "named twice": lambda s: f'{{"password": "{s}", "x": 1, "password": "{s}"}}',
    "another case": lambda s: f'{{"Pass_Word": "{s}", "PASSWORD": "{s}", "pass-word": "{s}"}}',
    "escapes in the name": lambda s: f'{{"p\\u0061ssw\\u006frd": "{s}", "x": "\\u00e9"}}',
    "escapes in the name, twice": lambda s: json.dumps(f'{{"p\\u0061ssword": "{s}"}}'),
    "object": lambda s: f'{{"k": 1, "password": "{s}"}}',
    "form": lambda s: f"user=ann+x&password={s}&z=%20",
    "address": lambda s: f"GET https://api.example/v1?user=ann&password={s}#top failed",
    "headers": lambda s: f"POST / HTTP/1.1\r\nHost: x\r\nPassword: {s}\r\nAccept: */*\r\n\r\n",
    "yaml": lambda s: f"user: ann\npassword: {s}\nport: 1",
    "python": lambda s: repr({"it's": 1, "password": s, "z": ("kept", None)}),
    "settings": lambda s: f"user = ann\npassword = {s}\nport = 1",
    "call": lambda s: f"Login(user='ann', password='{s}', n=1)",
    "pairs": lambda s: json.dumps([["user", "ann"], ["password", s], ["n", "1"]]),
    "name and value": lambda s: json.dumps([{"name": "password", "value": s, "n": 1}]),
    "part of a form": lambda s: f'--b\r\nContent-Disposition: form-data; name="password"\r\n\r\n{s}\r\n--b--\r\n',
    "base64": lambda s: base64.b64encode(whole(s).encode()).decode(),
    "events": events,
}
"""Texts that hold a field "password", each made of its value."""
CUT = (
    "compact",
    "spaced",
    "fenced",
    "after words",
    "byte order mark",
    "encoded twice",
    "encoded three times",
    "python",
)
"""Those that may be cut off in the middle of the value."""


def secrets(seed: int = 0) -> Iterator[str]:
    """Yield words that are nowhere else, of no known form."""
    made = random.Random(seed)
    for number in itertools.count():
        yield f"Zq{number}x{made.getrandbits(64):016x}"


def planter() -> tuple[Callable[[], str], list[str]]:
    """Return a function that makes secrets, and the list of those that it made."""
    names, planted = secrets(), list[str]()

    def plant() -> str:
        planted.append(next(names))
        return planted[-1]

    return plant, planted


class TestTexts:
    """A field is found in every shape in which a text holds JSON, and nothing else changes."""

    @pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
    def test_a_field_is_found_and_the_rest_is_the_same(self, shape: Shape) -> None:
        """The text is what it would be with ``[redacted]`` for a value, byte for byte."""
        clean, secret = tape.Redact(["password"]), next(secrets())
        assert clean.text(shape(secret)) == shape(REDACTED)
        assert clean({"a": [shape(secret)]}) == {"a": [shape(REDACTED)]}
        assert clean(json.loads(json.dumps(shape(REDACTED)))) == shape(REDACTED)

    @pytest.mark.parametrize("name", CUT)
    def test_a_text_that_is_cut_off_shows_no_part_of_a_value(self, name: str) -> None:
        """Wherever it is cut, what stands before the value stays and nothing of the value does."""
        clean, secret = tape.Redact(["password"]), next(secrets())
        text = SHAPES[name](secret)
        at = text.index(secret)
        for end in range(at + 1, at + len(secret) + 4):
            cleaned = clean.text(text[:end])
            assert cleaned.startswith(text[:at] + REDACTED)
            assert secret[:2] not in cleaned

    @pytest.mark.parametrize("value", ["12345678", '[1, {"a": "]}"}]', '{"a": {"b": ["Zq"]}}', '"a\\\\"', '"\\"Zq"'])
    def test_values_of_every_kind_are_taken_out_whole(self, value: str) -> None:
        """Numbers, lists, objects and texts with quotes leave JSON behind, also when it is encoded again."""
        text, expected = f'{{"password": {value}, "z": "kept"}}', '{"password": "[redacted]", "z": "kept"}'
        clean = tape.Redact(["password"])
        for _ in range(4):
            assert clean.text(text) == expected
            text, expected = json.dumps(text), json.dumps(expected)

    @pytest.mark.parametrize(
        "shape",
        [
            lambda s: {"name": "password", "description": "d", "value": s},
            lambda s: {"value": s, "name": "password"},
            lambda s: {"key": "password", "type": "text", "value": s},
            lambda s: {"Key": "password", "Value": s},
            lambda s: {"name": "password", "description": "a } b", "value": s},
            lambda s: {"name": None, "key": "password", "value": s},
            lambda s: {"name": "a", "tags": [{"x": 1}], "key": "password", "n": {"value": "kept"}, "value": s},
        ],
    )
    def test_a_value_is_found_whose_name_stands_beside_it(self, shape: Callable[[str], Any]) -> None:
        """In any order and case, with other fields between; in objects and in texts, encoded and with spaces."""
        clean, secret = tape.Redact(["password"]), next(secrets())
        held, expected = [shape(secret), {"name": "user", "value": "kept"}], shape(REDACTED)
        assert clean(held) == [expected, held[1]]
        for written in (
            json.dumps,
            repr,
            lambda value: json.dumps(json.dumps(value)),
            functools.partial(json.dumps, indent=1),
        ):
            assert clean.text(written(held)) == written([expected, held[1]])

    @pytest.mark.parametrize(
        "token",
        [
            "sk-abcdefghij0123456789", "sk-proj-" + "aB3_" * 10, "sk-ant-api03-" + "aB3-" * 20, "ghp_" + "a1B2" * 9,
            "github_pat_" + "a1_B" * 12, "AKIAIOSFODNN7EXAMPLE", "xoxb-123456789012-abcdefABCDEF", "AIza" + "Sy_a" * 9,
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSMeKKF2QT4", "Bearer abc123def456", "Basic dXNlcjpwYXNz",
            "-----BEGIN RSA PRIVATE KEY-----\nMIIEow+/=\nAAAA\n-----END RSA PRIVATE KEY-----", "gsk_" + "aB3d" * 8,
            "hf_" + "abcD" * 8, "glpat-" + "aB3_" * 6, "sk_live_" + "aB3d" * 6,
        ],
    )  # fmt: skip
    def test_known_forms_of_tokens_are_found_anywhere(self, token: str) -> None:
        """In words, in JSON, behind an escape, in base64, in names of fields; and not with ``tokens=False``."""
        clean = tape.Redact()
        assert clean.text(f"use {token} now") == "use [redacted] now"
        for levels in range(4):
            text = expected = ""
            text, expected = f"line\n{token}", f"line\n{REDACTED}"
            for _ in range(levels):
                text, expected = json.dumps({"k": text}), json.dumps({"k": expected})
            assert clean.text(text) == expected
        assert clean({token: 1}) == {REDACTED: 1}
        assert token not in base64.b64decode(clean.text(base64.b64encode(f"a {token} b".encode()).decode())).decode()
        assert tape.Redact(tokens=False)({"k": token}) == {"k": token}

    def test_credentials_of_addresses_are_left_out(self) -> None:
        """User-info goes, parameters with keys lose their value, and the rest of the address stays."""
        text = 'to "https://ann:p%40ss@db.example:5432/x?api_key=K1&b=2&access_token=T2#f" failed'
        expected = 'to "https://db.example:5432/x?api_key=[redacted]&b=2&access_token=[redacted]#f" failed'
        assert tape.Redact().text(text) == expected

    @pytest.mark.parametrize(
        "text",
        [
            "", "a", "{}", "[[]]", "Basic idea: bearer of news, risk-management-of-everything, task-1234567890123456",
            "max_tokens=10&n=1", "def f(key=len, *, token: str = None): ...",
            "class A:\n    password: str\n    token: str | None = None\n", "sorted(xs, key=len)", "a@b.example // c@d",
            json.dumps({"required": ["password", "user"], "properties": {"user": {"type": "string"}}}),
            json.dumps({"properties": {"password": {"type": "string", "title": "Password"}, "n": {"type": "integer"}}}),
            json.dumps(json.dumps({"api_key": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "K"}})),
            "Cookies: these are small files.\nPassword: must have eight characters or more", '["password", "user"]',
            json.dumps({"usage": {"total_tokens": 3, "cached_tokens": 1}, "logprobs": [{"token": " a", "bytes": [1]}]}),
            json.dumps({"type": "thinking", "signature": "EqQBCgIYAhIM", "thinking": "hm"}), "\\" * 50, "\"'" * 50,
            base64.b64encode(bytes(range(256))).decode(), "0123456789abcdef" * 4, "key", "https://x.example/@ann",
        ],
    )  # fmt: skip
    def test_what_is_no_secret_stays(self, text: str) -> None:
        """Prose, code, schemas, usage and pictures are the same afterwards, with the credentials that adapters know."""
        assert tape.Redact.CREDENTIALS.text(text) == text
        assert tape.Redact.CREDENTIALS({"k": [text, 1, 1.5, True, None]}) == {"k": [text, 1, 1.5, True, None]}

    def test_a_value_of_a_form_goes_on_behind_an_apostrophe(self) -> None:
        """A quote ends a value only where no letter follows."""
        clean = tape.Redact(["password"])
        assert clean.text("user=ann&password=o'Zq&z=1") == "user=ann&password=[redacted]&z=1"
        assert clean.text("said 'password=Zq', n=1") == "said 'password=[redacted]', n=1"

    def test_a_line_is_taken_out_to_its_end(self) -> None:
        """Also with quotes in it, as it stands, in JSON, encoded twice, and as Python writes it; but no further."""
        lines = "GET / HTTP/1.1\r\n{}: {}\r\nAccept: */*"
        text, expected = lines.format("Password", 'Digest user="x", response="Zq"'), lines.format("Password", REDACTED)
        clean = tape.Redact(["password"])
        for written in (str, json.dumps, lambda value: json.dumps(json.dumps({"a": value, "b": "it\nis"})), repr):
            assert clean.text(written(text)) == written(expected)
        last = json.dumps({"a": "x\nPassword: Zq", "b": "y\nz"})
        assert clean.text(last) == last.replace("Zq", REDACTED)

    def test_a_schema_that_is_filled_is_no_schema(self) -> None:
        """A default, an example, or any other word beside those of a schema makes it a value."""
        clean = tape.Redact(["password"])
        for filled in (
            {"type": "string", "default": "Zq"},
            {"type": "Zq"},
            {"title": "Zq"},
            {"type": "string", "x": "Zq"},
        ):
            assert clean({"password": filled}) == {"password": REDACTED}
            assert clean.text(json.dumps({"password": filled})) == json.dumps({"password": REDACTED})
        assert clean({"password": {"type": "string"}}) == {"password": {"type": "string"}}

    def test_a_pattern_is_found_with_escapes_and_in_numbers(self) -> None:
        """Patterns see what an escape stands for; a number in JSON is taken out whole, so that it stays JSON."""
        clean = tape.Redact(patterns=["p\u00e4ss\\w+", r"4\d{15}"], tokens=False)
        assert clean.text(json.dumps(json.dumps("my p\u00e4ssword"))) == json.dumps(json.dumps("my [redacted]"))
        assert clean.text('{"card": 4111111111111111, "n": 4}') == '{"card": "[redacted]", "n": 4}'
        assert clean({"card": 4111111111111111, "n": 4}) == {"card": REDACTED, "n": 4}

    def test_hostile_texts_take_no_recursion_and_little_time(self) -> None:
        """Deep, long and repeated beginnings of what it looks for are read in time that grows with their length."""
        clean = tape.Redact(["password", "x"], ["Zq"])
        both = tape.Redact.CREDENTIALS
        parts = [
            '{"a":',
            "[",
            '"',
            "\\",
            "'",
            '"password":',
            "sk-",
            "-eyJ",
            "-----BEGIN PRIVATE KEY-----",
            '\\":',
            "://",
        ]
        parts += [
            '"\\"password\\":\\"',
            "password=",
            "data: {}\n",
            'form-data; name="',
            "[[",
            "a=b&",
            '{"password":[{"',
        ]
        for part in parts:
            text = part * (200_000 // len(part))
            begun = time.process_time()
            clean.text(text)
            both.text(text)
            assert time.process_time() - begun < 10, part
        deep: Any = "kept"
        for _ in range(5_000):
            deep = {"a": deep}
        assert "kept" not in json.dumps(clean(deep))

    @pytest.mark.parametrize(
        "made",
        [
            lambda n: "password=a&" * n,
            lambda n: "password=a(" * n,
            lambda n: "password=str=" * n,
            lambda n: "password: " + "so " * n + "=",
            lambda n: '"name":"password","value":{' * n,
            lambda n: "7" * 16 * n,
            lambda n: "[" + "7777777777777777," * n + "0]",
            lambda n: "".join(f'data: {{"delta":"password=a{i}& "}}\n' for i in range(n // 4)),
        ],
        ids=["parameters", "code", "types", "prose", "names", "digits", "numbers", "events"],
    )
    def test_four_times_the_text_takes_about_four_times_the_time(self, made: Callable[[int], str]) -> None:
        """Also where every place looks like the beginning of a secret that goes on to the end of the text."""

        def seconds(text: str) -> float:
            took = []
            for _ in range(3):
                clean = tape.Redact(["password"], [r"\d{16}"])
                begun = time.process_time()
                clean.text(text)
                took.append(time.process_time() - begun)
            return min(took)

        assert seconds(made(8_000)) < 9 * max(seconds(made(2_000)), 0.002)

    def test_wrong_arguments_are_refused(self) -> None:
        """A text instead of a list, a field that is not a text, and an invalid pattern."""
        for wrong in ({"fields": "password"}, {"fields": [1]}, {"patterns": "x"}, {"patterns": ["("]}):
            with pytest.raises(tape.InvalidEntry):
                tape.Redact(**wrong)


def _document(made: random.Random, depth: int, secret: str) -> Any:
    """Return a JSON value with secret fields, and with texts that look like JSON or hold it."""
    chance = made.random()
    if depth <= 0 or chance < 0.35:
        odd = [
            'it\'s "q" \\',
            "\u00e9\n",
            '{"',
            "[",
            "a: b",
            '":',
            12,
            1.5,
            None,
            True,
            "",
            "p=1",
            "x\\",
            '\\"',
            "'",
            "&",
        ]
        return made.choice(odd)
    if chance < 0.6:
        return [_document(made, depth - 1, secret) for _ in range(made.randrange(4))]
    if chance < 0.7:
        return json.dumps(_document(made, depth - 1, secret), ensure_ascii=made.random() < 0.5)
    values = [
        secret,
        [secret, "]"],
        {"a": secret + '"}\\'},
        secret + '"\\',
        "\\" + secret,
        json.dumps({"q": secret}),
        5,
    ]
    fields = [
        made.choice(["a", "b", "password", "PassWord", "x y", "pass-word", "\u00e9"]) for _ in range(made.randrange(4))
    ]
    return {
        name: made.choice(values) if "pass" in name.lower() else _document(made, depth - 1, secret) for name in fields
    }


class TestDocuments:
    """A text and the value that it encodes are redacted alike."""

    @heavy
    def test_any_document_is_the_same_as_a_text(self) -> None:
        """Encoded up to three times it stays JSON, of the value without secrets; cut anywhere it shows none."""
        clean = tape.Redact(["password"], tokens=False)
        for seed in range(size(300, 5_000)):
            made, secret = random.Random(seed), f"Zq{seed}z"
            value = _document(made, 5, secret)
            text, expected = json.dumps(value, indent=made.choice([None, 1])), clean(value)
            for level in range(1, 4):
                cleaned = read = clean.text(text)
                for _ in range(level):
                    read = json.loads(read)
                assert (read, clean.text(cleaned)) == (expected, cleaned), seed
                text = json.dumps(text)
            for end in made.sample(range(len(text)), min(5, len(text))):
                assert secret not in clean.text(text[:end]), (seed, end)


class TestStreams:
    """A secret that is spread over the chunks of a stream is found."""

    @pytest.mark.parametrize("size", [1, 2, 3, 7])
    def test_wherever_the_chunks_are_cut(self, size: int) -> None:
        """In texts, bytes and objects, by field and by form, the chunks together are what they would be at once."""
        clean, secret = tape.Redact(["password"]), next(secrets())
        token = "sk-ant-api03-abcdef0123456789"
        text = f"before {token} and {whole(secret)} \u20ac behind"
        expected = f"before {REDACTED} and {whole(REDACTED)} \u20ac behind"
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        data = text.encode()
        assert "".join(clean.stream(pieces)) == expected
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        assert b"".join(clean.stream(parts)) == expected.encode()
        chunks = [{"id": "c", "choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces]
        cleaned = clean.stream(chunks)
        assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in cleaned) == expected
        assert len(cleaned) == len(chunks)

    def test_records_in_lines_have_nothing_to_do_with_each_other(self) -> None:
        """Only events of a stream are read together: in other lines of JSON each is a whole."""
        clean = tape.Redact(patterns=[r"\w+@\w+\.org"])
        lines: list[dict[str, Any]] = [{"user": "ann"}, {"user": "bob@x.org"}]
        assert clean.text("\n".join(map(json.dumps, lines))) == '{"user": "ann"}\n{"user": "[redacted]"}'
        lines = [{"done": False, "text": "ann"}, {"done": True, "text": "bob@x.org"}]
        assert "ann" not in clean.text("\n".join(map(json.dumps, lines)))

    def test_parallel_parts_are_told_apart(self) -> None:
        """Parts with different indexes are joined separately, even when they alternate."""
        clean, texts = tape.Redact(["password"]), ('{"password": "Zq1"}', '{"kept": "Zq2"}')
        chunks = [
            {"index": index, "delta": text[at : at + 3]}
            for at in range(0, 20, 3)
            for index, text in enumerate(texts)
            if text[at : at + 3]
        ]
        cleaned = clean.stream(chunks)
        both = ["".join(chunk["delta"] for chunk in cleaned if chunk["index"] == index) for index in (0, 1)]
        assert both == ['{"password": "[redacted]"}', '{"kept": "Zq2"}']


class Planting:
    """An agent that carries secrets wherever a run can carry one. ``of`` makes each secret."""

    def __init__(self, of: Callable[[], str]) -> None:
        self._of = of

    def field(self) -> dict[str, Any]:
        """An object with a secret field, in one of several spellings."""
        return {"n": 1, "Pass-Word": self._of(), "pairs": [["password", self._of()], ["a", "b"]]}

    def shapes(self) -> dict[str, str]:
        return {name: shape(self._of()) for name, shape in SHAPES.items()}

    def input(self) -> Any:
        return {"password": self._of(), "shapes": self.shapes(), "list": [self.field()]}

    def run(self, run: tape.Run) -> None:
        """Call models, tools and values with secrets in requests, results, chunks and errors."""
        ask = run.model(lambda messages, system=None, **options: {"answer": self.shapes(), "f": self.field()})
        messages: list[Any] = [{"role": "user", "content": text} for text in self.shapes().values()]
        prompt = f"{'long ' * 100}{whole(self._of())} and "
        for _ in range(3):
            ask(list(messages), system=prompt, password=self._of(), extra=self.field())
            arguments = whole(self._of())
            messages.append({"role": "assistant", "tool_calls": [{"function": {"arguments": arguments}}]})
            # The secret starts in the part shared with the previous request and ends in the part added to it.
            prompt += '{"password": "' + self._of()
        read = run.tool(lambda text, raw: raw, name="read", effect="read")
        for shape in SHAPES.values():
            read(shape(self._of()), shape(self._of()).encode())
        read(b"\xff " + whole(self._of()).encode(), {"data": SHAPES["form"](self._of()).encode()})

        def stream(parts: list[Any]) -> Iterator[Any]:
            yield from parts

        for name in ("spaced", "fenced", "encoded twice", "after words"):
            secret = self._of()
            text = SHAPES[name](secret)
            at = text.index(secret)
            cuts = [text[: at - 4], text[at - 4 : at], secret, text[at + len(secret) :]]
            list(run.model(lambda name, cuts=cuts: stream(cuts), name="text stream")(name))
            list(run.model(lambda name, cuts=cuts: stream([c.encode() for c in cuts]), name="bytes stream")(name))
            list(run.tool(lambda name, cuts=cuts: stream([{"delta": {"t": c}} for c in cuts]), name="look")(name))
        for shape in SHAPES.values():
            # The text of an error with several arguments writes them as Python does.
            failed: list[Any] = [shape(self._of())] if shape is events else [shape(self._of()), self.field()]

            def failing(arguments: list[Any] = failed) -> None:
                raise LookupError(*arguments)

            with pytest.raises(LookupError):
                run.tool(failing, name="failing", effect="read")()
        run.value("config", self.field)()
        run.snapshot("sha", f"https://ann:{self._of()}@git.example/repo?token={self._of()}")
        with pytest.raises(RuntimeError):
            run.model(self._failing, name="failing model")(self.field())

    def _failing(self, facts: Any) -> None:
        raise RuntimeError(f"no answer to {whole(self._of())}")


def shown(chat: tape.Tape) -> str:
    """Return all that a tape keeps as one text."""
    return "\n".join(f"{entry.key} {entry.payload} {entry.meta}" for entry in chat.entries())


def kept(chat: tape.Tape) -> list[Any]:
    """Return what a tape keeps of its runs, without ids, times and keys that differ in every run."""
    entries = []
    for entry in chat.entries():
        if entry.kind != "event":
            continue
        data = dict(entry.payload.data)  # type: ignore[union-attr]
        for name in ("run", "took", "key", "worker"):
            data.pop(name, None)
        if "chunks" in data:
            data["chunks"] = [record for _, record in data["chunks"]]
        entries.append((entry.payload.name, data))  # type: ignore[union-attr]
    return entries


class TestRuns:
    """What a run keeps has none of the secrets that it carried."""

    def test_no_secret_is_on_the_tape_and_the_rest_is_the_same(self, store: tape.Store) -> None:
        """Of more than 300 secrets none is kept. The tape is that of a run which had ``[redacted]`` in their place."""
        plant, planted = planter()
        for id, of in (("secret", plant), ("plain", lambda: REDACTED)):
            planting = Planting(of)
            with tape.record(store.tape(id), "nightly", input=planting.input(), redact=["password", "token"]) as run:
                assert run.input["password"] != REDACTED or id == "plain"
                planting.run(run)
        assert len(planted) > 300
        tapes = [store.tape(id) for id in ("secret", "plain")]
        text = shown(tapes[0])
        text += "\n".join(
            base64.b64decode(word).decode("latin-1")
            for word in re.findall(r"[A-Za-z0-9+/]{24,}=*", text)
            if len(word) % 4 == 0
        )
        assert [secret for secret in planted if secret in text] == []
        assert kept(tapes[0]) == kept(tapes[1])

    def test_no_secret_is_in_a_report_of_a_tape_that_has_them(self, store: tape.Store) -> None:
        """The same run is recorded as it is, and reported by name of a field, or by a pattern."""
        plant, planted = planter()
        chat = store.tape("chat")
        planting = Planting(plant)
        with tape.record(chat, "nightly", input=planting.input()) as run:
            planting.run(run)
        chat.append(role="user", content="\n".join(planting.shapes().values()), meta=planting.field())
        chat.append(role="tool", content=whole(plant()))
        chat.recorded_context()
        chat.handoff("h", summary=whole(plant()), state=planting.field())
        chat.recorded_context()
        chat.set_block("persona", SHAPES["fenced"](plant()))
        chat.recorded_context()
        assert len(planted) > 300
        for redaction in (Redaction(fields=["password", "token"]), Redaction([r"Zq\d+x[0-9a-f]{16}"])):
            text = unpacked(store, "chat", redaction)
            assert [secret for secret in planted if secret in text or secret[-12:] in text] == []
            assert text.count(REDACTED) > 100

    def test_tokens_cut_by_a_delta_or_a_chunk_are_found_by_a_pattern(self, store: tape.Store) -> None:
        """A report sees whole requests and whole streams, where a tape keeps only what each adds."""
        chat, first = store.tape("chat"), "x" * 400
        with tape.record(chat) as run:
            ask = run.model(lambda prompt: iter(["the Zq", "abcde", "fg end"]))
            for prompt in (f"{first} Zqabc", f"{first} Zqabcdefg", f"{first} Zqabcdefg and more"):
                list(ask(prompt))
        assert any("keep" in str(entry.payload) for entry in chat.entries(name="run.call"))
        text = unpacked(store, "chat", Redaction([r"Zq[a-g]{7}"]))
        assert not re.search("defg|abcde|fg end", text)
        assert "Zqabc" in text

    def test_outputs_of_streamed_tools_are_taken_out(self, store: tape.Store) -> None:
        """What a tool of a run yields is its output, as what it returns; what a model yields stays."""
        chat = store.tape("chat")
        with tape.record(chat) as run:
            list(run.tool(lambda: iter(["tool", "said"]), name="t", effect="read")())
            list(run.model(lambda: iter(["model", "spoke"]))())
        text = unpacked(store, "chat", Redaction(tool_outputs=True))
        assert "said" not in text
        assert "spoke" in text

    @pytest.mark.parametrize(
        "shape",
        [
            lambda text: json.dumps(text),
            lambda text: f"it said {json.dumps(json.dumps(text))} and more",
            lambda text: f'say "a"{text}',
            lambda text: json.dumps({"note": json.dumps(json.dumps(text))}),
            lambda text: "{" * 1_100 + text,
            lambda text: '{"a":' * 400 + text + "}" * 400,
        ],
        ids=["twice", "between words", "behind a string", "in an object", "behind brackets", "deep"],
    )
    def test_outputs_of_tools_are_found_in_every_text(self, shape: Shape) -> None:
        """Also in JSON that is encoded again, and behind many brackets that begin none."""
        redaction, output = Redaction(tool_outputs=True), next(secrets())
        cleaned = redaction({"text": shape(json.dumps({"role": "tool", "content": output}))})["text"]
        assert output not in cleaned
        assert REDACTED in cleaned
        plain = shape(json.dumps({"role": "user", "content": "kept"}))
        assert plain.count("{") > 300 or redaction({"text": plain}) == {"text": plain}

    def test_a_replay_and_a_resumed_run_match_what_was_redacted(self, store: tape.Store) -> None:
        """Both redact what they are asked, so the requests are equal; a resumed run gets its whole input again."""
        chat, secret = store.tape("chat"), next(secrets())
        given = {"password": secret, "q": 1}

        def agent(run: tape.Run) -> Any:
            return run.model(lambda facts, text: {"password": secret, "said": whole(secret)})(run.input, whole(secret))

        with pytest.raises(KeyboardInterrupt), tape.record(chat, id="r", input=given, redact=["password"]) as run:
            assert agent(run) == {"password": secret, "said": whole(secret)}
            raise KeyboardInterrupt
        with tape.record(chat, id="r", input=given, redact=["password"], resume=True) as resumed:
            assert resumed.input == given
            assert agent(resumed) == {"password": REDACTED, "said": whole(REDACTED)}
        with tape.replay(chat, "r", redact=["password"]) as again:
            assert again.input == {"password": REDACTED, "q": 1}
            assert agent(again) == {"password": REDACTED, "said": whole(REDACTED)}
        assert again.report.ok
        assert secret not in shown(chat)

    def test_a_copy_on_a_fork_is_redacted(self, store: tape.Store) -> None:
        """A replay that writes to a fork with ``redact`` leaves out what the recorded run kept."""
        chat, secret = store.tape("chat"), next(secrets())

        def agent(run: tape.Run) -> None:
            run.tool(lambda: {"password": secret}, name="one", effect="read")()
            list(run.model(lambda: iter([whole(secret)[:40], whole(secret)[40:]]))())
            with pytest.raises(ValueError, match="password"):
                run.tool(self._raising, name="two", effect="read")()

        self._secret = secret
        with tape.record(chat, input={"password": secret}) as run:
            agent(run)
        fork = chat.fork(at=1)
        with tape.replay(chat, run.id, into=fork, redact=["password"]) as again:
            agent(again)
        assert secret in shown(chat)
        assert secret not in shown(fork)

    def _raising(self) -> None:
        raise ValueError(whole(self._secret))

    def test_names_lanes_and_ids_have_no_secrets(self, store: tape.Store) -> None:
        """Names of runs, tools and lanes lose them; an id of a run with one is refused before anything is written."""
        chat, clean = store.tape("chat"), tape.Redact(patterns=["Zq[0-9]+"])

        def agent(run: tape.Run) -> None:
            with run.lane("lane Zq2"):
                run.tool(lambda: 1, name="tool Zq3", effect="read")()

        with tape.record(chat, "of Zq1", redact=clean) as run:
            agent(run)
        with tape.replay(chat, run.id, redact=clean) as again:
            agent(again)
        assert again.report.ok
        assert "Zq" not in shown(chat)
        head = chat.info().head
        with pytest.raises(tape.InvalidEntry), tape.record(chat, id="Zq4", redact=clean):
            pass
        assert chat.info().head == head

    def test_bytes_stay_bytes(self, store: tape.Store) -> None:
        """What has no secret comes back as the same bytes, and what has one as bytes without it."""
        chat = store.tape("chat")
        values = [bytes(range(256)), b"", b"password=Zq1&a=1", '{"password": "Zq\u20ac"}'.encode("utf-16")]

        def agent(run: tape.Run) -> list[Any]:
            return [run.tool(lambda n: values[n], name="t", effect="read")(n) for n in range(len(values))]

        with tape.record(chat, redact=["password"]) as run:
            assert agent(run) == values
        with tape.replay(chat, run.id, redact=["password"]) as again:
            assert agent(again) == [
                values[0], b"", b"password=[redacted]&a=1", "{\"password\": \"[redacted]\"}".encode("utf-16")
            ]  # fmt: skip

    def test_a_function_may_take_out_secrets_of_its_own(self, store: tape.Store) -> None:
        """``redact`` of one function comes before that of the run; the error that ends the run is cleaned by both."""
        chat = store.tape("chat")

        def hide(value: Any) -> Any:
            return json.loads(json.dumps(value).replace("hunter2", "***"))

        def ask(q: str) -> str:
            raise ValueError(f"{q} password=Zq1")

        with pytest.raises(ValueError, match="hunter2"), tape.record(chat, redact=hide) as run:
            run.model(ask, redact=["password"])("hunter2 password=Zq2")
        text = shown(chat)
        assert "Zq" not in text
        assert "hunter2" not in text
        assert text.count("*** password=[redacted]") == 4

    def test_a_function_cleans_names_ids_and_notes(self, store: tape.Store) -> None:
        """A function is asked for texts, too: names of runs and tools, ids, and paths of what could not be kept."""
        chat = store.tape("chat")

        def hide(value: Any) -> Any:
            return json.loads(json.dumps(value).replace("hunter2", "***"))

        def failing() -> None:
            raise LookupError({"hunter2": object()})

        with tape.record(chat, "of hunter2", redact=hide) as run:
            run.tool(lambda: {"hunter2": object()}, name="tool hunter2", effect="read")()
            with pytest.raises(LookupError):
                run.tool(failing, effect="read")()
        assert "hunter2" not in shown(chat)
        assert "***" in shown(chat)
        with pytest.raises(tape.InvalidEntry), tape.record(chat, id="hunter2", redact=hide):
            pass

    def test_a_function_that_takes_no_texts_leaves_names(self, store: tape.Store) -> None:
        """It keeps names as they are, and takes out notes that it cannot clean."""
        chat = store.tape("chat")
        with tape.record(chat, "nightly", redact=lambda value: {**value, "seen": 1}) as run:
            run.tool(lambda: {"hunter2": object()}, name="look", effect="read")()
        assert "name='nightly'" in shown(chat) or "'name': 'nightly'" in shown(chat)
        notes = [note for _, data in kept(chat) for note in (data.get("value") or {}).get("replaced", ())]
        assert notes == [REDACTED]

    def test_a_function_makes_equal_redactors(self) -> None:
        """A run remembers each function once, however many calls it is passed to."""

        def hide(value: Any) -> Any:
            return value

        assert redactor(hide) == redactor(hide)
        assert redactor(hide, ["a"]) == redactor(hide, tape.Redact(["a"]))
        assert redactor(hide) != redactor(hide, ["a"])

    def test_an_awaited_run_does_the_same(self, backend: Backend) -> None:
        """Input, requests, streams, snapshots and errors of a run on an AsyncStore."""
        secret = next(secrets())

        async def story() -> str:
            async with tape.open_async(backend.address, **backend.options) as store:
                chat = store.tape("chat")

                async def stream(facts: Any) -> Any:
                    for piece in (whole(secret)[:45], whole(secret)[45:50], whole(secret)[50:]):
                        yield piece

                async def failing(text: str) -> None:
                    raise ValueError(text)

                async with tape.record(chat, input={"password": secret}, redact=["password"]) as run:
                    assert [piece async for piece in run.model(stream)({"password": secret})]
                    with pytest.raises(ValueError, match=secret):
                        await run.tool(failing, effect="read")(whole(secret))
                    await run.snapshot("d", f"https://a:{secret}@x")
                return "\n".join([f"{entry.key} {entry.payload}" async for entry in chat.entries()])

        assert secret not in asyncio.run(story())


def unpacked(store: tape.Store, id: str, redaction: Redaction) -> str:
    """Return a whole report as one text, as its page unpacks it."""
    written: list[bytes] = []
    write(store, [id], written.append, redaction)
    raw = b"".join(written).decode()
    packed = r'<script type="text/plain" id="[cpx][^"]*">([^<]*)</script>'
    parts = [
        zlib.decompress(base64.b85decode(text.replace(",", "<")), -15).decode() for text in re.findall(packed, raw)
    ]
    return "\n".join([re.sub(packed, "", raw).partition('<script type="module">')[0], *parts])
