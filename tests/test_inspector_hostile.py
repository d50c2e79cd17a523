"""Hostile text in every field leaves pages, report and notebook untouched; large values do not stop them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browsing import Site, Visit, served
from support.sizes import heavy, size

import tape
from tape.command.output import clean
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


MARK = "bill \u202efdp.exe"
HEBREW = "\u05e9\u05dc\u05d5\u05dd"
ISOLATED = """() => [...document.querySelectorAll('body *')].filter((each) => {
    const bidi = getComputedStyle(each).unicodeBidi;
    return each.offsetParent && !['isolate', 'isolate-override', 'plaintext'].includes(bidi);
}).map((each) => each.outerHTML.slice(0, 80))"""
"""The visible elements that are not isolated, so that their marks affect the surrounding text."""
MARKED = """(contents) => {
    const marks = /[\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]/;
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const found = marks.test(document.title) ? [document.title] : [];
    while (texts.nextNode()) {
        const text = texts.currentNode;
        if (marks.test(text.data) && !text.parentElement.closest(contents)) found.push(text.parentElement.outerHTML);
    }
    for (const each of document.querySelectorAll('[title], [aria-label]')) {
        if (marks.test(each.title) || marks.test(each.ariaLabel ?? '')) found.push(each.outerHTML);
    }
    return found;
}"""
"""The names that hide a mark: texts outside of what messages say."""
CONTENTS = ".text, .peek, .hits p, ins, del"
EDGES = """(selector) => {
    const element = document.querySelector(selector);
    const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    const edges = [];
    while (texts.nextNode()) {
        const range = document.createRange();
        for (let place = 0; place < texts.currentNode.length; place += 1) {
            range.setStart(texts.currentNode, place);
            range.setEnd(texts.currentNode, place + 1);
            edges.push([texts.currentNode.data[place], range.getBoundingClientRect().left]);
        }
    }
    return edges;
}"""
"""Each character of an element, and where it is drawn."""


@pytest.fixture(scope="module")
def turned(make_backend: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """An inspector of tapes whose names turn the direction."""
    with make_backend("sqlite", tmp_path_factory.mktemp("turned")) as backend:
        store = backend.open()
        for name in (MARK, HEBREW):
            chat = store.create(f"id {name}", name=name, owner=name, agent=name, labels=[name])
            call = {"id": name, "type": "function", "function": {"name": name, "arguments": '{"abc": "def"}'}}
            options: dict[str, Any] = {"actor": name, "meta": {"model": name}}
            chat.append({"role": "user", "name": name, "content": f"{name} said"}, id=name, **options)
            chat.append({"role": "assistant", "content": None, "tool_calls": [call]}, **options)
            chat.append({"role": "tool", "tool_call_id": name, "content": f"{name} found"}, **options)
            chat.record_usage(input_tokens=1, model=name)
            chat.fork(f"fork {name}", name=f"fork {name}")
            chat.event(name, {name: name})
            chat.handoff(name, summary=name, owner=name)
        with served(store) as site:
            yield site


class TestDirection:
    """Names and texts that turn the direction of writing."""

    def test_no_name_hides_a_mark_and_no_text_turns_its_neighbours(self, browser: Any, turned: Site) -> None:
        """On every page each element is isolated, and marks are shown outside of what messages say."""
        with Visit(browser, turned) as visit:
            for name in (MARK, HEBREW):
                ref = encode(f"id {name}")
                views = ("", "/log", "/graph", "/context", "/usage")
                pages = ["/", "/search?q=said", f"/e/{ref}/3", f"/diff?a={ref}@2&b={ref}", "/health"]
                for path in [*pages, *(f"/t/{ref}{view}" for view in views)]:
                    page = visit.go(path)
                    assert (path, page.evaluate(ISOLATED)) == (path, [])
                    assert (path, page.evaluate(MARKED, CONTENTS)) == (path, [])

    def test_a_tapes_name_is_shown_as_the_command_shows_it(self, browser: Any, turned: Site) -> None:
        """Marks are escapes in the list, in the heading and in the title; other characters are as they are."""
        with Visit(browser, turned) as visit:
            page = visit.go("/")
            assert page.get_by_role("link", name=clean(MARK), exact=True).count() == 1
            assert page.get_by_role("link", name=HEBREW, exact=True).count() == 1
            page = visit.go(f"/t/{encode(f'id {MARK}')}")
            assert (page.locator("h1").inner_text(), page.title()) == (clean(MARK), f"{clean(MARK)} · tape")
            code_points = [*range(1, 0xD800), *range(0xE000, 0x11000), *range(0xE0000, 0xE0100)]
            text = "".join(map(chr, code_points)) + "\r\n"
            assert page.evaluate("async (text) => (await import('/static/dom.js')).clean(text)", text) == clean(text)

    def test_a_tools_name_does_not_turn_its_arguments(self, browser: Any, turned: Site) -> None:
        """Text after a name is drawn to its right, in the original order."""
        with Visit(browser, turned) as visit:
            for name in (MARK, HEBREW):
                visit.go(f"/t/{encode(f'id {name}')}")
                edges = visit.page.evaluate(EDGES, ".fold.call summary")
                arguments = [left for char, left in edges if char in "abcdef"][-6:]
                assert arguments == sorted(arguments)
                assert max(left for _, left in edges[: len("Call ") + len(clean(name))]) < arguments[0]
                graph = visit.go(f"/t/{encode(f'id {name}')}/graph")
                assert graph.locator(".graph .seq").count() > 0
                edges = visit.page.evaluate(EDGES, ".graph .seq")
                seq = [left for char, left in edges if char == "#"][-1]
                assert max(left for char, left in edges[: len(clean(name))]) < seq


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
