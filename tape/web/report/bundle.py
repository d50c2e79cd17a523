"""The scripts and the style of the inspector as one text each, and an HTML file around them. Pure but for its files."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Iterator
from html import escape
from importlib.resources import files

import msgspec

__all__ = ["document", "embedded", "scripts"]

ORDER = (
    "dom",
    "source",
    "message",
    "frame",
    "act",
    "compare",
    "conversation",
    "virtual",
    "log",
    "tapes",
    "pages",
    "app",
    "packed",
    "report",
)
"""The modules, each behind those that it imports."""
_IMPORT = re.compile(r'^import \{ (.+) \} from "\./(\w+)\.js";$', re.M)
_BLANK = re.compile(r"^(?:[ ]+|//.*\n|\n)", re.M)
"""Indentation, comments and empty lines; no text of the scripts goes over a line."""
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) (\w+))", re.M)


def _file(name: str) -> str:
    return (files("tape.web") / "static" / name).read_text(encoding="utf-8")


@functools.cache
def scripts() -> str:
    """Return all modules as one script: each a function that returns what it exports."""
    written = []
    for name in ORDER:
        source = _file(f"{name}.js")
        names = ", ".join(_EXPORT.findall(source))
        body = _BLANK.sub("", _EXPORT.sub("", _IMPORT.sub(r"const { \1 } = module_\2;", source)))
        written.append(f"const module_{name} = (() => {{\n{body}\nreturn {{ {names} }};\n}})();\n")
    return "".join(written)


def embedded(value: object) -> str:
    """Return JSON that may stand in a script element: no "<" is left in it."""
    return msgspec.json.encode(value).decode().replace("<", "\\u003c")


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def document(title: str, blocks: Iterator[tuple[str, str]]) -> Iterator[str]:
    """Yield an HTML file with blocks of data, each an id and a text without "<", and the scripts behind them."""
    script, style = scripts(), _file("style.css")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">Skip to content</a>\n<header id="top"></header>\n'
        '<main id="main" tabindex="-1"><noscript>This report needs JavaScript.</noscript></main>\n'
        '<div id="says" class="quiet-status" role="status" aria-live="polite"></div>\n'
    )
    for id, text in blocks:
        assert "<" not in text
        yield f'<script type="text/plain" id="{escape(id)}">{text}</script>\n'
    yield f'<script type="module">{script}</script>\n</body>\n</html>\n'
