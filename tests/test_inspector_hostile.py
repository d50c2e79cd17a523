"""Hostile text in every field leaves pages, report and notebook untouched; large values do not stop them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browsing import Site, Visit, served
from support.sizes import heavy, size

import tape
from tape.web.addresses import encode
from tape.web.report.report import write

CORPUS = (
    "<img src=x onerror=window.__pwned=1>",
    "</script><script>window.__pwned=1</script>",
    '"><svg onload=window.__pwned=1>',
    "javascript:window.__pwned=1",
    "<!--<script>window.__pwned=1//",
    "{{constructor.constructor('window.__pwned=1')()}}${window.__pwned=1}",
    "<iframe srcdoc='<script>parent.__pwned=1</script>'>",
    "'-window.__pwned=1-'&lt;img src=x onerror=window.__pwned=1&gt;",
)

TEXTS = ("".join(CORPUS[:4]), "".join(CORPUS[4:]), *size((), CORPUS))
"""What is written: the bad texts together, and at full size each by itself as well."""


def poisoned(store: tape.Store, bad: str) -> tape.Tape:
    """Write a tape that says the same bad thing in every field that takes a text."""
    chat = store.create(bad, name=bad, owner=bad, agent=bad, labels=[bad], meta={bad: bad})
    options: dict[str, Any] = {"actor": bad, "meta": {bad: bad, "model": bad}}
    chat.set_block(bad, bad, description=bad)
    chat.append({"role": bad, "name": bad, "content": bad}, id=f"m {bad}", key=f"k {bad}", **options)
    chat.recorded_context()
    chat.append(
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": bad},
                {"type": "thinking", "thinking": bad},
                {"type": bad, bad: bad},
                {"type": "image", "source": {"type": "url", "url": bad}},
                {"type": "tool_use", "id": bad, "name": bad, "input": {bad: bad}},
            ],
        },
        **options,
    )
    result = {"type": "tool_result", "tool_use_id": bad, "content": bad, "is_error": True}
    chat.append({"role": "user", "content": [result]}, **options)
    chat.append({"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"data:image/svg+xml,{bad}"}}]})
    chat.revise(f"m {bad}", content=f"{bad} again")
    chat.put(bad, {bad: bad})
    chat.event(bad, {bad: bad})
    chat.record_usage(input_tokens=1, model=bad, cost=5)
    chat.fork(f"f {bad}", name=bad).discard(bad)
    chat.handoff(bad, summary=bad, phase=bad, next_steps=[bad], owner=bad, state={bad: bad})
    chat.recorded_context()
    chat.append(role="user", content=bad)
    return chat


@pytest.fixture(scope="module")
def filled(make_backend: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tape.Store]:
    """A store with a tape for each bad text."""
    with make_backend("sqlite", tmp_path_factory.mktemp("hostile")) as backend:
        store = backend.open()
        for bad in TEXTS:
            poisoned(store, bad)
        yield store


@pytest.fixture(scope="module")
def site(filled: tape.Store) -> Iterator[Site]:
    with served(filled, write=True) as site:
        yield site


def untouched(page: Any) -> None:
    """Hold that nothing but the inspector's own elements came into being."""
    assert page.evaluate("window.__pwned") is None
    assert (
        page.evaluate("document.querySelectorAll('main img, main iframe, main script, main object, main embed').length")
        == 0
    )
    assert (
        page.evaluate("[...document.querySelectorAll('a[href]')].filter((a) => a.protocol === 'javascript:').length")
        == 0
    )


class TestHostileText:
    @heavy
    @pytest.mark.parametrize("bad", TEXTS)
    def test_no_page_makes_markup_of_it(self, browser: Any, site: Site, filled: tape.Store, bad: str) -> None:
        """Every page of such a tape shows the text, runs nothing and reports nothing."""
        ref = encode(bad)
        head = filled.get(bad).info().head
        with Visit(browser, site) as visit:
            for path in (
                "/",
                f"/t/{ref}",
                f"/t/{ref}/log",
                f"/t/{ref}/graph",
                f"/t/{ref}/context/{head - 1}",
                f"/t/{ref}/usage",
            ):
                untouched(visit.go(path))
            # Every entry, of the tapes that hold all texts.
            for seq in size((2, 5, head - 2), tuple(range(1, head + 1)) if bad in TEXTS[:2] else (2, head)):
                untouched(visit.go(f"/e/{ref}/{seq}"))
            page = visit.go(f"/t/{ref}")
            assert page.locator("h1").inner_text() == bad
            page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
            untouched(page)
            untouched(visit.go(f"/diff?a={ref}@3&b={ref}"))
            untouched(visit.go("/search?q=window"))

    def test_no_report_and_no_notebook_makes_markup_of_it(
        self, browser: Any, filled: tape.Store, tmp_path: Path
    ) -> None:
        """One file with all of them, opened from the disk, and every value in a notebook."""
        file = tmp_path / "report.html"
        with file.open("wb") as out:
            write(filled, list(TEXTS), out.write)
        frames = [filled.get(bad)._repr_html_() for bad in TEXTS]
        frames += [filled.get(TEXTS[1]).context()._repr_html_(), filled.get(TEXTS[1]).messages()[0]._repr_html_()]
        frames.append(filled.get(TEXTS[1]).diff(3, 8)._repr_html_())
        notebook = tmp_path / "notebook.html"
        notebook.write_text("<!doctype html><meta charset=utf-8>" + "\n".join(frames), encoding="utf-8")
        with Visit(browser, viewport={"width": 1000, "height": 4000}) as visit:
            for bad in TEXTS:
                for view in ("", "/log", "/graph", "/usage"):
                    untouched(visit.turn(file, f"/t/{encode(bad)}{view}"))
            visit.page.goto(f"file://{notebook}")
            for number in range(len(frames)):
                visit.page.frame_locator("iframe").nth(number).locator("h1").wait_for()
            assert visit.page.evaluate("window.__pwned") is None


class TestLargeValues:
    @heavy
    def test_a_huge_payload_does_not_freeze_the_page(self, browser: Any, quick: Any) -> None:
        """The page gets its beginning, more a piece at a time, and the whole as a file."""
        letters = size(2_000_000, 50_000_000)
        store = quick.open()
        store.tape("huge").append(role="tool", content="x" * letters)
        with served(store) as site, Visit(browser, site) as visit:
            for path in ("/t/huge", "/t/huge/log", "/e/huge/2", "/t/huge/context"):
                assert len(site.ask(path).body) < 100_000
            page = visit.go("/t/huge")
            assert page.locator(".text").inner_text() == "x" * 8_192
            page.get_by_role("button", name="Show more").click()
            page.wait_for_function("() => document.querySelector('.text').textContent.length === 8192 + 65536")
            twice = "requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - from)))"
            frames = f"new Promise((done) => {{ const from = performance.now(); {twice}; }})"
            assert min(page.evaluate(frames) for _ in range(5)) < 500
            assert len(site.ask("/e/huge/2/raw").body) > letters

    def test_deep_wide_and_empty_messages_are_shown(self, browser: Any, quick: Any) -> None:
        """A message of very many parts, one that is nested deeply and one that says nothing each have their place."""
        store = quick.open()
        chat = store.tape("odd")
        deep: Any = "bottom"
        for _ in range(60):
            deep = [deep]
        chat.append({"role": "assistant", "content": [{"type": "text", "text": str(n)} for n in range(500)]})
        chat.append({"role": "tool", "content": {"deep": deep}})
        chat.append({"role": "assistant", "content": None})
        chat.append({"type": "unheard_of", "value": 3})
        with served(store) as site, Visit(browser, site) as visit:
            page = visit.go("/t/odd")
            assert page.locator("article.message").count() == 4
            assert page.get_by_text("and 400 more parts").count() == 1
