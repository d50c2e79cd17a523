"""The report: one file, redacted before it is written, unpacked on demand. And what draws pages: scripts, drawings."""

from __future__ import annotations

import base64
import gzip
import io
import itertools
import json
import math
import random
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support.browsing import Visit, served
from support.inspected import history
from support.shell import Shell
from support.sizes import full, size
from test_readme import ROOT

import tape
from tape.command.show.graph import Forked, Merged, draw
from tape.web.addresses import encode
from tape.web.draw.lanes import row_drawings
from tape.web.draw.plot import bars, lines, sparkline
from tape.web.draw.svg import element, markup
from tape.web.report.bundle import ORDER, scripts
from tape.web.report.contexts import BLOCK
from tape.web.report.redact import REDACTED, Redaction
from tape.web.report.report import write

SHOWN = "[...document.querySelectorAll('article.message')].map((each) => each.id)"
SECRET = "the secret output"
STATIC = ROOT / "tape" / "web" / "static"


def report(store: tape.Store, *ids: str, redaction: Redaction | None = None) -> bytes:
    """Return a report as bytes."""
    out = io.BytesIO()
    write(store, ids, out.write, redaction)
    return out.getvalue()


class TestScripts:
    def test_they_are_small_and_plain(self) -> None:
        """All scripts together are at most 85 KB, import only each other, and make no markup."""
        files = {file.name: file.read_text(encoding="utf-8") for file in STATIC.glob("*.js")}
        assert sum(len(text.encode()) for text in files.values()) <= 85 * 1024
        assert {name.removesuffix(".js") for name in files} == set(ORDER)
        assert max(len(text.splitlines()) for text in files.values()) < 400
        for name, text in files.items():
            imported = re.findall(r'from "(.+?)"', text)
            assert all(path.startswith("./") and path.removeprefix("./") in files for path in imported), name
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|https?://(?!www\.w3)", text
            ), name

    def test_the_bundle_has_no_import_left(self) -> None:
        """In a report the modules are one script."""
        assert not re.search(r"^(import|export) ", scripts(), re.M)
        assert "</script" not in scripts()

    def test_the_style_asks_for_nothing(self) -> None:
        """No font, picture or sheet comes from elsewhere."""
        assert not re.search(r"url\(|@import", (STATIC / "style.css").read_text(encoding="utf-8"))


class TestDrawings:
    def test_text_stays_text(self) -> None:
        """What stands in a drawing is escaped in its markup."""
        drawn = markup(element("text", '<b onload="x">&', class_="a<b"))
        assert drawn == '<text class="a&lt;b">&lt;b onload=&quot;x&quot;&gt;&amp;</text>'

    def test_a_sparkline_counts_what_falls_into_each_part(self) -> None:
        """Every part of the time has a bar; the busiest is the highest; nothing at all draws no more than a line."""
        heights = [float(bar[1]["height"]) for bar in sparkline([0] * 9 + [2_400])[2:]]
        assert (len(heights), heights[0], heights[1], round(heights[-1], 1)) == (24, 20.0, 1.0, 2.2)
        assert {bar[1]["height"] for bar in sparkline([])[2:]} == {"1"}

    def test_a_plot_reaches_from_the_first_to_the_last(self) -> None:
        """A line begins at the left and ends at the right, at its highest value."""
        drawn = lines("Tokens", [(0, 10.0), (1_000_000, 40.0)])
        (path,) = [shape[1]["d"] for shape in drawn[2:] if shape[1].get("class") == "line"]
        assert path == "M48 125.5H450V10"
        assert len([bar for bar in bars("x", [("a", 2.0), ("b", 1.0)])[2:] if bar[1].get("class") == "bar"]) == 2
        assert markup(lines("nothing", [])).count("<path") == 0

    def test_lanes_go_on_from_row_to_row(self, store: tape.Store) -> None:
        """Every entry is a node, and every line that ends at the bottom of a row begins at the top of the next."""
        chat = store.create("parent")
        chat.append(role="user", content="a")
        forks = [chat.fork(f"fork-{number}") for number in range(3)]
        for fork in forks:
            fork.append(role="assistant", content="b")
        for fork in forks[:2]:
            chat.merge(fork)
        family = [chat, *forks]
        listed = {one.id: sorted(one.entries(), key=lambda entry: -entry.seq) for one in family}
        forked = [Forked(fork.id, "parent", fork.info().forked_at or 0) for fork in forks]
        merged = [Merged("parent", merge.seq, merge.child, merge.child_head) for merge in chat.lineage().merges]
        rows = list(draw(listed, forked, merged))
        drawings = row_drawings([(text, entry is not None) for text, entry in rows])
        assert sum(markup(drawing).count("<circle") for drawing in drawings) == sum(map(len, listed.values()))
        for above, below in itertools.pairwise(drawings):
            height = above[1]["height"]
            ends = {line[1]["x2"] for line in above[2:] if line[0] == "line" and line[1]["y2"] == height}
            begins = {line[1]["x1"] for line in below[2:] if line[0] == "line" and line[1]["y1"] == "0"}
            assert len(begins - ends) <= 1


class TestRedaction:
    def test_patterns_fields_and_outputs(self) -> None:
        """Each is taken out wherever it stands, in every shape of message, and the value given is not changed."""
        clean = Redaction(["sk-[a-z0-9]+", r"\b4\d{15}\b"], ["email"], tool_outputs=True)
        given = {
            "text": "key sk-abc1",
            "email": {"of": "her"},
            "sk-name": 4111111111111111,
            "messages": [
                {"role": "tool", "content": "secret output"},
                {"type": "tool_result", "content": [{"type": "text", "text": "secret output"}]},
                {"type": "function_call_output", "output": "secret output", "call_id": "c"},
                {"type": "tool-weather", "output": {"deep": "secret output"}, "input": "kept"},
                {"function_response": {"id": "c", "response": {"result": "secret output"}}},
                {"toolResult": {"toolUseId": "c", "content": [{"text": "secret output"}]}},
                {"type": "function_result", "call_id": "c", "result": "secret output"},
                {"type": "tool_call_response", "id": "c", "response": "secret output"},
                {"part_kind": "tool-return", "tool_call_id": "c", "content": "secret output"},
                {"role": "user", "content": "kept"},
            ],
        }
        cleaned = clean(given)
        assert "secret output" not in str(cleaned)
        assert (cleaned["text"], cleaned["email"], str(cleaned).count("kept")) == (f"key {REDACTED}", REDACTED, 2)
        assert str(cleaned).count(REDACTED) == 13
        assert given["text"] == "key sk-abc1"

    @pytest.mark.parametrize(
        "given",
        [
            {"functionResponse": {"name": "k", "response": {"r": SECRET}}},
            {"function_response": {"name": "k", "response": {"name": SECRET}, "parts": [{"text": SECRET}]}},
            {"toolResult": {"content": [{"text": SECRET}], "status": "success"}},
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": SECRET}},
            {"type": "tool_call_response", "response": {"id": SECRET}},
            {"type": "tool_call_response", "id": None, "result": SECRET},
            {"type": "server_tool_call_response", "id": "c", "server_tool_call_response": {"type": "x", "r": SECRET}},
            {"type": "tool_call", "id": "c", "name": "look", "arguments": {}, "result": SECRET},
            {"type": "code_interpreter_tool_result", "call_id": "c", "outputs": [{"type": "text", "text": SECRET}]},
            {"type": "code_interpreter_call", "id": "c", "code": "1", "outputs": [{"type": "logs", "logs": SECRET}]},
            {"type": "tool-result", "output": {"type": "text", "value": SECRET}},
            {"type": "tool-error", "toolName": "look", "error": SECRET},
            {"type": "tool-invocation", "toolInvocation": {"toolCallId": "c", "state": "result", "result": SECRET}},
            {"part_kind": "tool-return", "tool_name": "look", "content": SECRET},
            {"part_kind": "builtin-tool-return", "tool_call_id": "b", "tool_name": "w", "content": [{"name": SECRET}]},
            {"part_kind": "retry-prompt", "tool_name": "look", "content": SECRET},
            {"role": "tool", "parts": [{"text": SECRET}]},
            {"role": "tool", "content": {"name": SECRET, "id": SECRET}},
            {"role": "function", "name": "look", "content": SECRET},
            {"role": "user", "toolUseResult": {"stdout": SECRET, "name": SECRET}},
            {"tool_call_id": "c", "content": "fine", "artifact": SECRET},
            {"gen_ai.tool.call.result": SECRET},
            {"type": "exec_command_end", "call_id": "c", "stdout": SECRET, "aggregated_output": SECRET},
            {"type": "command_execution", "id": "i", "command": "ls", "aggregated_output": SECRET},
            {"id": "c", "name": "look", "args": {}, "result": [{"text": SECRET}], "resultDisplay": SECRET},
            {"source_call_id": "c", "content": SECRET},
            {"run": "r", "lane": "0", "n": 1, "status": "completed", "value": {"is": SECRET}},
        ],
        ids=lambda given: "-".join(map(str, [*given][:2])),
    )
    def test_outputs_are_known_by_their_shape(self, given: dict[str, Any]) -> None:
        """What a tool gave back is taken out without an id to bind it, also in messages, in JSON, in what was kept."""
        clean = Redaction(tool_outputs=True)
        for held in (given, {"role": "user", "parts": [given], "x": 1}, tape.to_strict({"a": given, "n": math.nan})):
            assert SECRET not in str(clean(held))
            assert REDACTED in str(clean(held))
            assert SECRET not in str(clean({"arguments": json.dumps(held)}))
            assert SECRET in str(Redaction(["nothing"])(held))

    def test_what_a_tool_was_asked_stays(self) -> None:
        """Calls, their arguments, the names and ids of results, and what a model answered in a run, are not outputs."""
        clean = Redaction(tool_outputs=True)
        for kept in (
            {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {"city": "Oslo"}}}]},
            {"functionResponse": {"id": "c1", "name": "look", "response": {}}},
            {"toolResult": {"toolUseId": "c1", "status": "success", "content": []}},
            {"type": "tool_use", "id": "c1", "name": "look", "input": {"content": "Oslo"}},
            {"part_kind": "tool-call", "tool_call_id": "c1", "tool_name": "look", "args": {"output": "Oslo"}},
            {"part_kind": "retry-prompt", "content": "try again"},
            {"type": "tool_result", "tool_use_id": "c1", "is_error": True, "content": ""},
            {"role": "user", "content": [{"type": "text", "text": "[1, 2] and {no JSON"}]},
            {"run": "r", "lane": "0", "n": 1, "kind": "model", "name": "llm"},
            {"run": "r", "lane": "0", "n": 1, "status": "completed", "value": {"is": "an answer"}},
        ):
            assert clean(kept) == kept

    @pytest.mark.parametrize("layout", [{}, {"separators": (",", ":")}, {"indent": 2}, {"ensure_ascii": False}])
    def test_json_in_a_text_is_looked_into(self, layout: Any) -> None:
        """Fields and patterns reach what is written in a text, escaped or not; what has none of it stays as it was."""
        secret = "p\u00e4ssw\u00f6rd"
        value = {"password": secret, "deep": [{"password": 1}], "card": 4111111111111111, "rest": "kept"}
        text = json.dumps(value, **layout)
        for held in ({"json": text}, {"arguments": text}, [{"json": json.dumps({"json": text})}]):
            by_field = str(Redaction(["4[0-9]{15}"], ["password"])(held))
            by_pattern = str(Redaction([secret, "4[0-9]{15}"])(held))
            for cleaned in (by_field, by_pattern):
                assert "kept" in cleaned
                assert not any(word in cleaned for word in (secret, "p\\u00e4", "\\\\u00e4", "4111"))
            assert Redaction(["nowhere"], ["nothing"])(held) == held
        assert secret not in Redaction(['"password": ?"[^"]+"', "4[0-9]{15}"])(text)
        deep = '{"a":' * 50_000 + "1" + "}" * 50_000
        assert Redaction(fields=["a"])({"json": deep}) == {"json": '{"a":"[redacted]"}'}
        assert Redaction(tool_outputs=True)({"json": deep}) == {"json": REDACTED}
        assert Redaction(fields=["password"])(tape.to_strict({"password": "s", "x": math.nan})) == {
            "json": '{"password": "[redacted]", "x": NaN}'
        }

    def test_what_people_said_stays(self) -> None:
        """Fields that a library leaves empty make no result of a message; one that names a call is taken out."""
        clean = Redaction(tool_outputs=True)
        for role in ("user", "assistant"):
            said = {"role": role, "content": "kept", "tool_call_id": None, "name": None}
            assert clean(said) == said
            assert clean({**said, "args": {}}) == {**said, "args": {}}
            assert clean({**said, "tool_call_id": "c1"})["content"] == REDACTED

    @pytest.mark.parametrize("space", ["\n", "  ", "\t"])
    def test_json_keeps_what_no_pattern_asks_for(self, space: str) -> None:
        """However JSON is written, only what matches goes, and the rest stays as it was written."""
        text = f'{{"a":{space}"sk-abc1", "b":{space}"kept", "c": [1E3,2]}}{space}'
        assert Redaction([r"sk-\w+"])(text) == text.replace("sk-abc1", REDACTED)

    def test_nothing_of_it_is_in_the_file(self, store: tape.Store, browser_text: Any) -> None:
        """A secret in any field is in no part of the report, packed or not, and its entry has no hash there."""
        secret = "sk-verysecret99"
        chat = store.create("of ann@example.org", name=f"n {secret}", labels=["x"], meta={"k": secret})
        chat.append(role="user", content=f"{'long ' * 30}{secret} and {secret}", actor=secret, meta={"email": "a@b"})
        chat.recorded_context()
        chat.extend([{"role": "user", "content": f"{'a' * 155} {secret}"}, {"role": "tool", "content": "the output"}])
        chat.append(role="assistant", content="another branch", parent=chat.messages()[0].id)
        chat.event("e", {"email": "her@x", "deep": [{"a": secret}]})
        chat.set_block("persona", f"with {secret}")
        chat.recorded_context(budget=300)
        chat.handoff("h", summary=secret)
        chat.recorded_context()
        calls = {"functionCall": {"name": "k", "args": {}}}
        answer = {"functionResponse": {"name": "k", "response": {"r": "the output of gemini " * 400}}}
        chat.extend([{"role": "model", "parts": [calls]}, {"role": "user", "parts": [answer]}])
        chat.extend([{"role": "user", "content": "go on " * 200}, {"role": "assistant", "content": "on"}])
        chat.recorded_context(budget=2_000)
        chat.append(role="user", content="q", meta={"fw": tape.to_strict({"email": "kept@x", "n": math.nan})})
        with tape.record(chat, name="run") as run:
            run.tool(lambda: "the output of a run", name="look")()
        chat.fork("fork of ann@example.org")
        raw = report(store, chat.id, redaction=Redaction([r"sk-\w+", r"\w+@\w+\.org"], ["email"], tool_outputs=True))
        unpacked = browser_text(raw)
        for word in (secret, "ann", "a@b", "her@x", "kept@x", "the output", "sk-very"):
            assert word not in unpacked
        assert unpacked.count(REDACTED) > 10
        assert chat.entry(seq=2).hash not in unpacked

    def test_a_pattern_may_match_the_id_of_the_tape(self, store: tape.Store, browser_text: Any) -> None:
        """Addresses that name it are those of the redacted id, also where a context tells what moved it."""
        chat = store.tape("sk-abc")
        chat.append(role="user", content="a question")
        first = chat.messages()[0].id
        chat.append(role="assistant", content="an answer")
        chat.recorded_context()
        chat.revise(first, {"role": "user", "content": "another question"})
        chat.recorded_context()
        chat.revise(first, {"role": "user", "content": "a third question"})
        unpacked = browser_text(report(store, chat.id, redaction=Redaction(["sk-[a-z]+"])))
        assert "sk-abc" not in unpacked
        assert "a third question" in unpacked

    def test_the_command_redacts_and_refuses_a_wrong_pattern(self, fresh: Shell, tmp_path: Path) -> None:
        """Options lead to the same; a file that is there is not replaced unasked."""
        with tape.open(fresh.backend.url, **fresh.backend.options) as store:
            store.tape("chat").append(role="user", content="my key is sk-1234")
        file = str(tmp_path / "r.html")
        assert fresh("report", "chat", "-o", file, "--redact", "sk-[0-9]+").code == 0
        assert fresh("report", "chat", "-o", file).code != 0
        assert fresh("report", "chat", "-o", file, "--force").code == 0
        assert fresh("report", "chat", "--redact", "(").code == 2
        assert fresh("report", "nothing", "-o", file).code == 3


@pytest.fixture
def browser_text() -> Any:
    """What unpacks a whole report as its page does, into one text."""

    def unpack(raw: bytes) -> str:
        packed = r'<script type="text/plain" id="[cpx][^"]*">([^<]*)</script>'
        # A short word may be in packed text by chance.
        found = [re.sub(packed, "", raw.decode())]
        for text in re.findall(packed, raw.decode()):
            found.append(zlib.decompress(base64.b85decode(text.replace(",", "<")), -15).decode())
        return "\n".join(found)

    return unpack


class _Outside(HTMLParser):
    """Notes every attribute that would load something."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.loaded += [f"{tag} {value}" for name, value in attributes if name in ("src", "href") and value != "#main"]


class TestReport:
    def test_it_refers_to_nothing_outside(self, store: tape.Store) -> None:
        """No element of the file loads anything."""
        history(store)
        outside = _Outside()
        outside.feed(report(store, "trip", "trip-hotels").decode())
        assert outside.loaded == []

    def test_its_pages_show_what_the_store_has(self, browser: Any, quick: Any, tmp_path: Path) -> None:
        """List, conversation at every seq, log, entry, graph, context, usage and search work from the file alone."""
        store = quick.open()
        chat = history(store)
        file = tmp_path / "report.html"
        file.write_bytes(report(store, "trip", "trip-hotels"))
        with Visit(browser) as visit:
            page = visit.page
            visit.turn(file, "/")
            page.get_by_role("link", name="Two days in Lisbon").click()
            page.wait_for_selector("article.message")
            for seq in range(chat.info().head, 0, -1):
                page.get_by_role("slider").fill(str(seq))
                wanted = [message.seq for message in chat.at(seq).messages()]
                page.wait_for_function(
                    f"(wanted) => {SHOWN}.join() === wanted",
                    arg=",".join(f"m-{number}" for number in wanted),
                )
            for view, shown in (
                ("log", ".row"),
                ("graph", ".graph circle"),
                ("context/22", ".region"),
                ("usage", "svg.plot"),
            ):
                visit.turn(file, f"/t/trip/{view}")
                assert page.locator(shown).count() > 0
            visit.turn(file, "/e/trip/5")
            assert page.get_by_text(chat.entry(seq=5).hash).count() == 1
            visit.turn(file, "/search?q=tejo%20quietest")
            page.locator(".hits a").first.click()
            page.wait_for_selector("article >> text=The Tejo is the quietest")
            visit.turn(file, "/t/trip-hotels")
            assert page.locator("article").get_by_text("Plan two days in Lisbon").count() == 1

    @full
    def test_every_recorded_context_is_there(self, browser: Any, quick: Any, tmp_path: Path) -> None:
        """Each shows the regions, what moved and why that the server shows, however many were recorded since."""
        store = quick.open()
        chat = history(store)
        for number in range(BLOCK):
            chat.append(role="user", content=f"and {number}?")
            chat.recorded_context(budget=4_000)
        fork = chat.fork("other way")
        fork.append(role="user", content="for the fork alone")
        fork.recorded_context()
        file = tmp_path / "report.html"
        file.write_bytes(report(store, "trip", fork.id))
        seqs = [entry.seq for entry in chat.entries(name="tape.context", kinds=["event"])]
        assert len(seqs) == BLOCK + 3
        places = [("trip", seq) for seq in (*seqs[:4], seqs[BLOCK - 1], seqs[BLOCK], seqs[-1])]
        places.append((encode(fork.id), fork.info().head))
        with served(store) as site, Visit(browser, site) as server, Visit(browser) as visit:
            for ref, seq in places:
                shown = [
                    [
                        page.locator("main .lead").inner_text(),
                        page.locator(".region").all_inner_texts(),
                        page.locator(".panel").all_inner_texts(),
                    ]
                    for page in (server.go(f"/t/{ref}/context/{seq}"), visit.turn(file, f"/t/{ref}/context/{seq}"))
                ]
                assert shown[0] == shown[1]
            visit.turn(file, f"/t/trip/context/{seqs[1]}")
            visit.page.keyboard.press("]")
            visit.page.wait_for_function(f"document.documentElement.dataset.shown.endsWith('/{seqs[2]}')")

    def test_two_points_are_compared_in_it(self, browser: Any, quick: Any, tmp_path: Path) -> None:
        """Points of a tape, a tape and its fork, and strangers differ in the file as they do on the server."""
        store = quick.open()
        history(store)
        file = tmp_path / "report.html"
        file.write_bytes(report(store, "trip", "trip-hotels", "ticket-1", "ticket-2"))
        sides = [("trip@15", "trip@16"), ("trip@3", "trip"), ("trip", "trip-hotels"), ("ticket-1", "ticket-2")]
        sides += [("trip@24", "trip@25"), ("ticket-1", "trip"), ("trip@14", "trip@15")]
        with served(store) as site, Visit(browser, site) as server, Visit(browser) as visit:
            for a, b in sides:
                address = f"/diff?a={a}&b={b}"
                pages = (server.go(address), visit.turn(file, address))
                shown = [
                    [page.locator(f".compare {what}").all_inner_texts() for what in (".pair", ".same", "ins", "del")]
                    for page in pages
                ]
                assert (address, shown[1]) == (address, shown[0])
            page = visit.turn(file, "/diff")
            page.get_by_label("From").fill("trip@15")
            page.get_by_label("To", exact=True).fill("trip@16")
            page.get_by_role("button", name="Compare").click()
            page.wait_for_selector("ins >> text=Belém")

    def test_branches_and_activity_are_in_it(self, browser: Any, quick: Any, tmp_path: Path) -> None:
        """The list has its models and sparklines, and a message with siblings leads to the other branch and back."""
        store = quick.open()
        history(store)
        file = tmp_path / "report.html"
        file.write_bytes(report(store, "trip", "trip-hotels"))
        with Visit(browser) as visit:
            page = visit.turn(file, "/")
            assert page.locator("svg.spark").count() == 2
            assert page.locator("tr[data-ref=trip] .model").inner_text() == "claude-sonnet-4-5"
            visit.turn(file, "/t/trip")
            assert page.locator("article .branches").inner_text().split() == ["‹", "2/2", "›"]
            page.get_by_role("link", name="Previous branch").click()
            page.wait_for_selector("article >> text=Go on Saturday")
            assert page.get_by_text("Good. Book it.").count() == 0
            page.get_by_role("link", name="Next branch").click()
            page.wait_for_selector("article >> text=Good. Book it.")
            assert page.locator(".branches-list li").count() == 2

    @full
    def test_a_long_one_opens_at_once_and_is_small(self, browser: Any, quick: Any, tmp_path: Path) -> None:
        """It opens in under two seconds, and is at most 1.3 times the gzipped export."""
        rng = random.Random(7)
        words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(3_000)]
        store = quick.open(durability="normal")
        chat, count = store.create("long"), size(2_000, 100_000)
        for _ in range(0, count, 500):
            chat.extend([{"role": "user", "content": " ".join(rng.choices(words, k=20))} for _ in range(500)])
            chat.recorded_context(budget=4_000)
        export = io.BytesIO()
        store.export("long", export)
        raw = report(store, "long")
        # In a short report the scripts weigh more than the entries.
        scripted = size(len(report(store, store.create("empty").id)), 0)
        ratio = (len(raw) - scripted) / len(gzip.compress(export.getvalue()))
        assert ratio <= 1.3
        file = tmp_path / "long.html"
        file.write_bytes(raw)
        with Visit(browser) as visit:
            work, waited = [], []
            for _ in range(3):
                visit.page.goto("about:blank")
                before = processor_time(browser)
                visit.page.goto(f"file://{file}#/t/long")
                visit.page.wait_for_selector("article.message")
                work.append(sum(spent - before.get(id, 0) for id, spent in processor_time(browser).items()))
                waited.append(visit.page.evaluate("performance.getEntriesByName('drawn').at(-1).startTime") / 1_000)
                assert visit.page.locator("article.message").count() == 60
            print(count, "messages,", len(raw), "bytes,", ratio, "of the export; opens with", min(work), "s of work,")
            print(min(waited), "s waited")
            # Others share the machine. The work of all threads is more than one waits for when it is quiet.
            assert min(*work, *waited) < 2


def processor_time(browser: Any) -> dict[int, float]:
    """Return how many seconds each process of a browser has worked."""
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    return {process["id"]: process["cpuTime"] for process in processes}


class TestNotebook:
    def test_values_show_themselves_in_a_sandbox(self, store: tape.Store) -> None:
        """Tape, snapshot, context, difference and message are frames that may run their script and nothing else."""
        chat = history(store)
        for value in (chat, chat.at(5), chat.context(), chat.diff(5, 16), chat.messages()[0]):
            html = value._repr_html_()
            assert html.startswith("<iframe ")
            assert html.count('sandbox="allow-scripts"') == 1
            assert 'loading="lazy"' in html
            assert len(html) < 130_000
