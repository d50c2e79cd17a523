"""docs/reference.md is what the docstrings say: all of them, as they are now."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import tape
from tape.command.registry import SECTIONS, declared

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.fixture(scope="module")
def maker() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "make_reference.py"))


class TestReference:
    def test_it_is_up_to_date(self, maker: dict[str, Any]) -> None:
        """The page is what the script makes; if this fails, run ``python docs/make_reference.py``."""
        assert (DOCS / "reference.md").read_text(encoding="utf-8") == maker["reference"]()

    def test_it_tells_every_public_name(self, maker: dict[str, Any]) -> None:
        """Every name of the public surface has a heading, a row among the errors, or a word among the twins."""
        page = maker["reference"]()
        titles = {title.rpartition(".")[2] for title in re.findall(r"^#+ (\S+)$", page, re.M)}
        assert [name for name in tape.__all__ if name not in titles and f"`{name}`" not in page] == []

    def test_it_tells_every_command(self, maker: dict[str, Any]) -> None:
        """Every command has a heading, with what it takes and its examples."""
        page = maker["reference"]()
        names = sorted(name for names in SECTIONS.values() for name in names)
        assert re.findall(r"^### tape (\S+)$", page, re.M) == names
        assert [one for name in names for one in declared(name).examples if one not in page] == []

    def test_it_tells_every_call(self, maker: dict[str, Any]) -> None:
        """Every public method of a store and a tape has a heading and a sentence."""
        page = maker["reference"]()
        headings = set(re.findall(r"^#### (\S+)$", page, re.M))
        for face in (tape.Store, tape.Tape):
            for name in dir(face):
                if not name.startswith("_"):
                    assert f"{face.__name__}.{name}" in headings
        calls = page.partition("## The command")[0]
        assert re.findall(r"^```\n\n(?=#|\Z)", calls, re.M) == []
