"""The inspector in a real browser: every page clicked through, scrubbed, searched, followed live, and written from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from support.backends import Backend
from support.browsing import Site, Visit, served
from support.inspected import history
from support.sizes import full, heavy, size
from test_readme import ROOT

import tape

PAGES = {
    "tapes": "/",
    "conversation": "/t/trip",
    "past": "/t/trip@6",
    "log": "/t/trip/log",
    "graph": "/t/trip/graph",
    "context": "/t/trip/context/22",
    "usage": "/t/trip/usage",
    "entry": "/e/trip/5",
    "diff": "/diff?a=trip@15&b=trip@16",
    "search": "/search?q=tejo",
    "health": "/health",
    "lost": "/t/nowhere",
}
SNAPSHOTS = ROOT / "tests" / "data" / "inspector"


CHANGING = {
    r"\d{4}-\d\d-\d\d \d\d:\d\d|\d\d:\d\d:\d\d": "TIME",
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}": "ID",
    r"[0-9a-f]{64}": "HASH",
    r"\d+ entr(y|ies) behind": "N behind",
    r"\d+\.\d ms|(?i:sqlite|postgresql) [\d.]+[^\n]*": "X",
}
"""What differs between two runs, and what stands for it in a snapshot."""


def _steady(told: str) -> str:
    for pattern, word in CHANGING.items():
        told = re.sub(pattern, word, told)
    return f"{told}\n"


@pytest.fixture(scope="module")
def filled(standing: Backend) -> tape.Store:
    """The store of the module, with a history."""
    store = standing.open()
    history(store)
    return store


@pytest.fixture(scope="module")
def site(standing: Backend, filled: tape.Store) -> Iterator[Site]:
    """An inspector that only reads."""
    with standing.open(read_only=True) as store, served(store) as site:
        yield site


@pytest.fixture
def visit(browser: Any, site: Site) -> Iterator[Visit]:
    """A page that must not do anything that it should not."""
    with Visit(browser, site) as visit:
        yield visit


@pytest.fixture(scope="module", params=size(["sqlite"], ["sqlite", "postgresql"]))
def plain(
    request: pytest.FixtureRequest, make_backend: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """An inspector on one engine, for what has little to do with it; at full size on each."""
    with make_backend(request.param, tmp_path_factory.mktemp("plain")) as backend:
        with backend.open() as store:
            history(store)
            # The index is complete before whoever only reads asks for it.
            store.search("tejo")
        # Nothing that one test has the inspector do is to be seen by the next.
        with backend.open(read_only=True) as store, served(store) as site:
            yield site


@pytest.fixture
def reading(browser: Any, plain: Site) -> Iterator[Visit]:
    """A page of that inspector."""
    with Visit(browser, plain) as visit:
        yield visit


@full("postgresql")
class TestEngines:
    """The same on both engines."""

    def test_from_the_list_into_a_tape_and_through_its_views(self, visit: Visit) -> None:
        """The list leads to a tape, and its tabs to every view of it."""
        page = visit.go("/")
        assert page.locator("tbody tr").count() == 6
        assert page.locator("svg.spark").count() == 6
        assert page.locator("tr[data-ref=trip] .model").inner_text() == "claude-sonnet-4-5"
        page.get_by_role("link", name="Two days in Lisbon").click()
        visit.arrive("**/t/trip")
        assert page.locator("article.message").count() == 7
        for tab, shown in (
            ("Log", ".virtual .row"),
            ("Graph", ".graph li"),
            ("Context", ".region"),
            ("Usage", ".plot"),
        ):
            page.get_by_role("navigation", name="Views of this tape").get_by_role("link", name=tab).click()
            visit.arrive(f"**/t/trip/{tab.lower()}")
            assert page.locator(shown).count() > 0
        assert page.locator("svg.plot").count() == 4

    def test_the_scrubber_time_travels_the_whole_view(self, visit: Visit) -> None:
        """Moving it shows the tape as it stood, with an address of its own; the end is now."""
        page = visit.go("/t/trip")
        slider = page.get_by_role("slider")
        slider.fill("15")
        visit.arrive("**/t/trip@15")
        assert page.get_by_text("the river at dusk").count() == 1
        assert page.get_by_text("Belém").count() == 0
        assert page.locator(".heading").get_by_text("7 messages").count() == 1
        page.keyboard.press("Escape")
        page.keyboard.press("]")
        visit.arrive("**/t/trip@16")
        assert page.get_by_text("Belém").count() == 1
        assert page.locator("#says").inner_text().startswith("Entry 16 of 25")
        page.get_by_role("button", name="Now").click()
        visit.arrive("**/t/trip")
        page.reload()
        visit.ready()
        assert page.get_by_role("slider").input_value() == "25"

    def test_search_leads_to_the_message(self, visit: Visit) -> None:
        """A hit shows the words marked and opens the conversation at the message."""
        page = visit.go("/")
        page.keyboard.press("/")
        page.keyboard.type("dinner")
        page.keyboard.press("Enter")
        visit.arrive("**/search?q=dinner")
        assert page.locator(".hits mark").count() > 0
        page.locator(".hits a").first.click()
        visit.arrive("**/t/trip?m=*")
        assert "dinner" in page.locator("article.current").inner_text()


@heavy
class TestPages:
    """Each page, on SQLite; at full size on both engines."""

    def test_tools_and_thoughts_are_folded_and_failures_stand_out(self, reading: Visit) -> None:
        """A call shows its name and how it begins; a failed result is open and says so."""
        page = reading.go("/t/trip")
        folds = page.locator("article.message details.fold")
        assert [fold.get_attribute("open") for fold in folds.all()] == [None, None, None, None, ""]
        page.get_by_text("Call weather").click()
        assert page.locator(".call .text").first.is_visible()
        assert page.locator(".result.failed").inner_text().startswith("Failed result of trains")

    def test_branches_are_switched(self, reading: Visit) -> None:
        """A message with siblings leads to the other branch and back."""
        page = reading.go("/t/trip")
        assert page.locator("article .branches").inner_text().split() == ["‹", "2/2", "›"]
        page.get_by_role("link", name="Previous branch").click()
        reading.arrive("**/t/trip?branch=*")
        assert page.locator("article").get_by_text("Go on Saturday").count() == 1
        assert page.get_by_text("Good. Book it.").count() == 0
        page.get_by_role("link", name="Next branch").click()
        reading.arrive("**/t/trip?branch=plan-2")
        assert page.get_by_text("Good. Book it.").count() == 1

    def test_from_the_call_into_the_subagent_and_back(self, reading: Visit) -> None:
        """A fork stands where it was made; it leads into the fork, which leads back to the parent at that point."""
        page = reading.go("/t/trip")
        order = page.locator(".messages > article").evaluate_all(
            "all => all.map((each) => each.className.split(' ')[1])"
        )
        assert order[:4] == ["user", "assistant", "tool", "fork"]
        page.get_by_role("link", name="open the fork").first.click()
        reading.arrive("**/t/trip-hotels")
        assert page.get_by_text("The Tejo is the quietest").count() == 1
        page.get_by_role("link", name="fork of trip").click()
        page.wait_for_url("**/t/trip@7")

    def test_the_log_is_filtered_and_leads_to_raw_entries(self, reading: Visit) -> None:
        """A kind, or failures alone, are listed; a row leads to the entry with its hash, key and JSON."""
        page = reading.go("/t/trip/log")
        page.get_by_label("Show").select_option("fork")
        reading.arrive("**/log?kinds=fork")
        assert page.locator(".row .seq").all_inner_texts() == ["#8", "#9"]
        page.go_back()
        reading.arrive("**/log")
        page.get_by_role("button", name="Failures").click()
        reading.arrive("**/log?failed=1")
        assert page.locator(".row .seq").all_inner_texts() == ["#6", "#13", "#23"]
        page.get_by_role("link", name="#23").click()
        reading.arrive("**/e/trip/23")
        assert re.fullmatch("[0-9a-f]{64}", page.locator(".hash").inner_text())
        assert "booking service answered 503" in page.locator("pre.json").inner_text()
        page.get_by_role("link", name="Previous entry").click()
        page.wait_for_url("**/e/trip/22")

    def test_the_graph_draws_forks_and_merges(self, reading: Visit) -> None:
        """Every fork and merge is a node that leads to that point of its tape."""
        page = reading.go("/t/trip/graph")
        kinds = page.locator(".graph li strong").all_inner_texts()
        assert (kinds.count("fork"), kinds.count("merge"), kinds.count("open")) == (2, 1, 3)
        assert page.locator(".graph circle").count() == len(kinds)
        page.get_by_role("link", name="hotels #1").click()
        page.wait_for_url("**/t/trip-hotels@1")

    def test_what_the_model_saw(self, reading: Visit) -> None:
        """A recorded step shows its regions with tokens, what is out and why, and the first byte that moved."""
        page = reading.go("/t/trip/context/22")
        assert page.get_by_text("What the model saw").count() == 1
        assert page.locator(".region h3").all_inner_texts() == ["Prompt", "Checkpoint", "User"]
        assert page.locator(".region.same").count() == 1
        assert page.get_by_text("the first changed byte is").count() == 1
        assert page.get_by_text("before the anchor").count() == 1
        page.get_by_label("At seq").fill("18")
        page.get_by_role("button", name="Show").click()
        reading.arrive("**/context/18*")
        assert page.get_by_text("What the model would see").count() == 1

    def test_two_points_side_by_side_with_words_marked(self, reading: Visit) -> None:
        """What only one side has is marked there, and equal messages are counted."""
        page = reading.go("/diff")
        page.get_by_label("From").fill("trip@15")
        page.get_by_label("To", exact=True).fill("trip@16")
        page.get_by_role("button", name="Compare").click()
        reading.arrive("**/diff?a=*")
        assert "Belém" in page.locator("ins").first.inner_text()
        assert "river" in page.locator("del").first.inner_text()
        assert page.get_by_text("3 unchanged messages").count() == 1

    def test_the_store_is_examined_live(self, reading: Visit) -> None:
        """The health page runs the checks and lists what they find as they go."""
        page = reading.go("/health")
        page.get_by_role("button", name="Check now").click()
        page.wait_for_function("() => document.querySelector('#says').textContent.startsWith('Checked: ')")
        assert page.locator(".findings li.ok").count() > 0
        assert "entries on" in page.locator(".findings").inner_text()


@full("postgresql")
class TestLive:
    def test_a_writer_appends_and_the_page_keeps_scroll_folds_and_focus(
        self, browser: Any, backend: Backend, store: tape.Store
    ) -> None:
        """New messages appear, and what the reader has open, where they are and what has focus stay."""
        chat = store.create(name="live")
        call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        chat.append({"role": "assistant", "content": None, "tool_calls": [call]})
        chat.extend([{"role": "user", "content": f"line {number}\n" * 6} for number in range(12)])
        with backend.open(read_only=True) as reader, served(reader) as site, Visit(browser, site) as visit:
            page = visit.go(f"/t/{chat.id}")
            fold = page.locator("details.call")
            fold.locator("summary").click()
            page.evaluate("scrollTo(0, 40)")
            chat.append(role="assistant", content="a new answer")
            page.wait_for_selector("text=a new answer")
            visit.ready()
            assert fold.get_attribute("open") is not None
            assert page.evaluate("[scrollY, document.activeElement.tagName]") == [40, "SUMMARY"]
            assert page.get_by_role("slider").get_attribute("max") == "15"
            page.wait_for_function("() => document.querySelector('#says').textContent.includes('new')")
            page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
            chat.append(role="user", content="the last word")
            page.wait_for_selector("text=the last word")
            page.wait_for_function("() => innerHeight + scrollY >= document.documentElement.scrollHeight - 61")

    def test_the_log_grows_while_it_is_open(self, browser: Any, backend: Backend, store: tape.Store) -> None:
        """Entries that others record become rows."""
        chat = store.create(name="live log")
        with backend.open(read_only=True) as reader, served(reader) as site, Visit(browser, site) as visit:
            page = visit.go(f"/t/{chat.id}/log")
            chat.event("arrived", {"late": True})
            page.wait_for_selector(".row >> text=arrived")
            visit.ready()
            assert page.locator(".virtual").get_attribute("aria-rowcount") == "2"


@full("postgresql")
class TestActing:
    def test_a_reader_sees_no_action(self, visit: Visit) -> None:
        """On a read-only start there is no button that writes."""
        page = visit.go("/t/trip")
        assert page.locator(".act, .menu").count() == 0

    def test_fork_retract_restore_hand_off_and_label(self, browser: Any, store: tape.Store) -> None:
        """Each act is done from the page and shows its receipt."""
        chat = store.create(name="acted on")
        chat.append(role="user", content="first", id="one")
        chat.append(role="assistant", content="second", id="two")
        with served(store, write=True) as site, Visit(browser, site) as visit:
            page = visit.go(f"/t/{chat.id}")

            def receipt(kind: str) -> str:
                box = page.get_by_role("dialog", name="Receipt")
                box.wait_for()
                text = str(box.inner_text())
                assert f"Done: {kind}." in text
                box.get_by_role("button", name="Close").click()
                box.wait_for(state="detached")
                visit.ready()
                return text

            page.get_by_label("Actions for message 3").click()
            page.locator(".menu[open]").get_by_role("button", name="Retract").click()
            page.get_by_label("Reason").fill("wrong")
            page.get_by_role("dialog").get_by_role("button", name="Retract").click()
            told = receipt("retract")
            assert chat.entry(seq=4).hash in told
            page.wait_for_selector("article.mark.retract")
            assert chat.find("two") is None
            page.get_by_role("button", name="Restore").click()
            page.get_by_label("Message id").fill("two")
            page.get_by_role("dialog").get_by_role("button", name="Restore").click()
            receipt("restore")
            page.get_by_role("button", name="Hand off").click()
            page.get_by_label("Name").fill("next")
            page.get_by_label("Summary").fill("all is said")
            page.get_by_role("dialog").get_by_role("button", name="Hand off").click()
            receipt("handoff")
            page.wait_for_selector("article.mark.handoff")
            page.get_by_label("Actions for message 2").click()
            page.locator(".menu[open]").get_by_role("button", name="Fork here").click()
            page.get_by_label("Name").fill("another way")
            page.get_by_role("dialog").get_by_role("button", name="Fork here").click()
            page.get_by_role("dialog", name="Receipt").get_by_role("link", name="Open the fork").click()
            page.wait_for_selector("h1 >> text=another way")
            visit.ready()
            page.get_by_role("button", name="Label").click()
            page.get_by_label("Add").fill("seen, good")
            page.get_by_role("dialog").get_by_role("button", name="Label").click()
            page.wait_for_selector(".chip.label >> text=seen")
        (fork,) = store.list(parent=chat.id)
        assert (fork.name, fork.forked_at, fork.labels) == ("another way", 2, ["seen", "good"])

    def test_a_refusal_is_shown_in_words(self, browser: Any, filled: tape.Store) -> None:
        """What the store refuses stays in the form, and nothing is written."""
        with served(filled, write=True) as site, Visit(browser, site, refused=409) as visit:
            page = visit.go("/t/trip")
            page.get_by_role("button", name="Restore").click()
            page.get_by_label("Message id").fill("nothing")
            page.get_by_role("dialog").get_by_role("button", name="Restore").click()
            page.wait_for_selector(".problem >> text=nothing")


class TestEveryone:
    @heavy
    @pytest.mark.parametrize("scheme", size(["light"], ["light", "dark"]))
    def test_axe_finds_nothing_on_any_page(self, browser: Any, plain: Site, scheme: str) -> None:
        """Names, roles, contrast and landmarks are right on every page, in light and in dark."""
        found = {}
        # What is not about colours is the same in both; at full size it is looked at twice all the same.
        options = {} if size(scheme == "light", True) else {"runOnly": ["color-contrast"]}
        with Visit(browser, plain, refused=404, color_scheme=scheme, bypass_csp=True) as visit:
            for name, address in PAGES.items():
                results = Axe().run(visit.go(address), options=options)
                if results.violations_count:
                    found[name] = [
                        (each["id"], [node["html"][:150] for node in each["nodes"][:3]])
                        for each in results.response["violations"]
                    ]
        assert found == {}

    def test_aria_snapshots(self, browser: Any, plain: Site) -> None:
        """What a screen reader is told of each page is as it was approved; TAPE_TEST_UPDATE=1 approves anew."""
        wrong = []
        with Visit(browser, plain, refused=404) as visit:
            for name, address in PAGES.items():
                told = _steady(visit.go(address).locator("body").aria_snapshot())
                kept = SNAPSHOTS / f"{name}.yml"
                if os.environ.get("TAPE_TEST_UPDATE"):
                    kept.parent.mkdir(exist_ok=True)
                    kept.write_text(told, encoding="utf-8")
                if kept.read_text(encoding="utf-8") != told:
                    wrong.append((name, told))
        assert wrong == []

    def test_everything_by_keyboard(self, browser: Any, plain: Site) -> None:
        """The keys that the help lists do what it says."""
        with Visit(browser, plain) as visit:
            page = visit.go("/")
            page.keyboard.press("j")
            page.keyboard.press("j")
            page.keyboard.press("k")
            page.keyboard.press("Enter")
            visit.arrive("**/t/trip")
            page.keyboard.press("G")
            assert "Booked the Tejo" in page.evaluate("document.activeElement.innerText")
            page.keyboard.press("g")
            page.keyboard.press("j")
            page.keyboard.press("Enter")
            assert page.locator("details.thinking").get_attribute("open") is not None
            page.keyboard.press("[")
            visit.arrive("**/t/trip@24")
            page.keyboard.press("?")
            keys = page.get_by_role("dialog", name="Keys")
            keys.wait_for()
            page.keyboard.press("Escape")
            keys.wait_for(state="detached")
            page = visit.go("/t/trip/log")
            page.keyboard.press("g")
            page.keyboard.press("j")
            page.keyboard.press("Enter")
            page.wait_for_url("**/e/trip/2")

    @pytest.mark.parametrize("width", [360, 800])
    def test_it_fits_a_small_screen_and_moves_little(self, browser: Any, plain: Site, width: int) -> None:
        """On a phone and a tablet no page scrolls sideways; whoever wants no motion gets none."""
        options: dict[str, Any] = {"viewport": {"width": width, "height": 740}, "reduced_motion": "reduce"}
        with Visit(browser, plain, refused=404, **options) as visit:
            for name, address in PAGES.items():
                assert (name, visit.go(address).evaluate("document.documentElement.scrollWidth")) == (name, width)
            moving = "(each) => getComputedStyle(each).transitionDuration !== '0s'"
            visit.go("/t/trip")
            assert visit.page.evaluate(f"[...document.querySelectorAll('*')].filter({moving}).length") == 0
