"""The front pages, error messages and help texts are in plain English."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.prose import messages, odd_phrases, page_prose

ROOT = Path(__file__).resolve().parent.parent

# Good sentences that a phrase of the list hits.
EXCEPTIONS: frozenset[str] = frozenset()


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_the_front_pages_have_no_odd_phrases(name: str) -> None:
    """README, CONTRIBUTING and CHANGELOG use none of the listed phrases."""
    assert odd_phrases(page_prose(ROOT / name)) == []


def test_messages_have_no_odd_phrases() -> None:
    """No error message, help text or other text that the source prints uses a listed phrase."""
    odd = {
        f"{source.relative_to(ROOT)}:{line}": hits
        for source in sorted((ROOT / "tape").rglob("*.py"))
        for line, text in messages(source)
        if text not in EXCEPTIONS and (hits := odd_phrases(text))
    }
    assert odd == {}


def test_every_placeholder_is_filled() -> None:
    """No string that is not an f-string contains a placeholder such as {name}; templates have several lines."""
    unfilled = [
        f"{source.relative_to(ROOT)}:{line}: {text}"
        for source in sorted((ROOT / "tape").rglob("*.py"))
        for line, text in messages(source)
        if re.search(r"\{[a-z_][\w.]*\}", text) and " " in text and "\n" not in text
    ]
    assert unfilled == []


def test_every_exception_is_needed() -> None:
    """A sentence leaves the list of exceptions when it leaves the source."""
    texts = {text for source in (ROOT / "tape").rglob("*.py") for _, text in messages(source)}
    assert texts >= EXCEPTIONS


@pytest.mark.parametrize(
    ("source", "hits"),
    [
        ("raise ValueError('whoever came first')", 1),
        ("raise ValueError(f'{x} is no number that fits {y}')", 1),
        ("def f():\n    'What is said here stays out.'", 0),
        ("@command('tape ls')\ndef ls():\n    'Show what is there.'", 1),
    ],
)
def test_the_search_finds_phrases_in_messages_only(tmp_path: Path, source: str, hits: int) -> None:
    """Literals, f-strings and help texts count; docstrings of other functions do not."""
    module = tmp_path / "module.py"
    module.write_text(source)
    assert sum(len(odd_phrases(text)) for _, text in messages(module)) == hits
