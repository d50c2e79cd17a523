"""Who may ask the inspector, and for what: every refusal, and what the answers carry."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.backends import Backend
from support.browsing import Site, served
from support.inspected import history

import tape
from tape.web.addresses import decode, encode, reference, split
from tape.web.app import inspector
from tape.web.stores import Served


@pytest.fixture(scope="module")
def filled(standing: Backend) -> tape.Store:
    """The store of the module, with a history."""
    store = standing.open()
    history(store)
    store.create("hers", owner="her").append(role="user", content="her secret")
    store.create("his", owner="him").append(role="user", content="his secret")
    return store


@pytest.fixture(scope="module")
def reading(standing: Backend, filled: tape.Store) -> Iterator[Site]:
    """An inspector that only reads."""
    with standing.open(read_only=True) as store, served(store) as site:
        yield site


class TestLettingIn:
    def test_without_cookie_and_token_nothing_is_shown(self, reading: Site) -> None:
        """Every address but none of its content answers a stranger."""
        for path in ("/", "/t/trip", "/static/app.js", "/health", "/nowhere"):
            answer = reading.ask(path, known=False)
            assert (answer.status, b"Lisbon" in answer.body) == (401, False)

    def test_a_wrong_cookie_is_no_cookie(self, reading: Site) -> None:
        """A cookie of another value, and one that no parser takes, are refused."""
        for value in (f"{reading.access.cookie}=wrong", "a=\x01;;=", f"{reading.access.cookie}="):
            assert reading.ask("/", known=False, cookie=value).status == 401

    def test_the_token_opens_once_and_becomes_a_cookie(self, filled: tape.Store) -> None:
        """The first use sets a strict cookie and leads to the same page without the token; the second is refused."""
        with served(filled) as site:
            token = site.access.token
            first = site.ask(f"/t/trip@3?q=a%26b&token={token}", known=False)
            assert (first.status, first.headers["location"]) == (303, "/t/trip@3?q=a%26b")
            set_cookie = first.headers["set-cookie"].lower()
            assert all(word in set_cookie for word in ("httponly", "samesite=strict", "path=/"))
            assert str(token) not in first.headers["set-cookie"]
            cookie = first.headers["set-cookie"].split(";")[0]
            assert site.ask("/t/trip", known=False, cookie=cookie).status == 200
            assert site.ask(f"/?token={token}", known=False).status == 401

    def test_a_wrong_token_does_not_spend_the_right_one(self, filled: tape.Store) -> None:
        """Guessing is refused and changes nothing."""
        with served(filled) as site:
            assert site.ask("/?token=guess", known=False).status == 401
            assert site.ask(f"/?token={site.access.token}", known=False).status == 303

    def test_the_token_leads_to_no_other_host(self, filled: tape.Store) -> None:
        """A path that looks like the name of a host stays a path of this one."""
        with served(filled) as site:
            answer = site.ask(f"//evil.example/%5Cx?token={site.access.token}", known=False)
            assert (answer.status, answer.headers["location"]) == (303, "/evil.example/%5Cx")

    def test_a_page_from_elsewhere_loads_nothing(self, reading: Site) -> None:
        """Not even one from another port, which gets the cookie along; a link from there opens the page."""
        for origin in ("cross-site", "same-site"):
            for path in ("/t/trip", "/health/live", "/static/app.js"):
                assert reading.ask(path, sec_fetch_site=origin, sec_fetch_mode="no-cors").status == 403
            assert reading.ask("/t/trip", sec_fetch_site=origin, sec_fetch_mode="navigate").status == 200
        assert reading.ask("/t/trip", sec_fetch_site="same-origin", sec_fetch_mode="cors").status == 200

    def test_a_websocket_is_closed(self, reading: Site, filled: tape.Store) -> None:
        """No other protocol leads past what is checked."""
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        app = inspector([Served("s", "s", filled)], reading.access)
        asyncio.run(app({"type": "websocket", "path": "/t/trip", "headers": []}, None, send))
        assert sent == [{"type": "websocket.close", "code": 1008}]

    def test_another_host_is_refused(self, reading: Site) -> None:
        """A name that was made to lead here (DNS rebinding) is refused, with or without the cookie."""
        for host in ("evil.example", f"evil.example:{reading.port}", "127.0.0.1", f"localhost.evil:{reading.port}", ""):
            assert reading.ask("/", host=host).status == 421


class TestOwners:
    def test_a_scoped_server_shows_one_owners_tapes(self, filled: tape.Store) -> None:
        """With an owner every other owner's tape is not there, on any page."""
        with served(filled.scoped("her")) as site:
            assert [tape["id"] for tape in site.ask("/").json["tapes"]] == ["hers"]
            assert site.ask("/?owner=him").json["tapes"] == []
            assert site.ask("/t/hers").status == 200
            for path in _about("his"):
                answer = site.ask(path)
                assert (path, answer.status, b"his secret" in answer.body) == (path, 404, False)
            assert site.ask("/search?q=secret").json["hits"][0]["tape"] == "hers"
            assert len(site.ask("/search?q=secret").json["hits"]) == 1
            assert site.ask("/activity?of=his,hers").json["activity"].keys() == {"hers"}

    def test_the_proxy_names_the_owner(self, filled: tape.Store) -> None:
        """Each request is scoped to the owner in the header; without it, or with two, there is no answer."""
        with served(filled, proxy="127.0.0.1", owner_header="x-user") as site:
            assert site.ask("/t/hers", known=False, x_user="her").status == 200
            assert site.ask("/t/his", known=False, x_user="her").status == 404
            assert site.ask("/t/his", known=False, x_user="him").status == 200
            assert site.ask("/t/hers", known=False).status == 403
            assert site.ask("/t/hers").status == 403

    def test_nobody_but_the_proxy_may_name_an_owner(self, filled: tape.Store) -> None:
        """A header from any other address is refused, and the cookie does not help."""
        with served(filled, proxy="192.0.2.7", owner_header="x-user") as site:
            assert site.ask("/t/hers", x_user="her").status == 403
            assert site.ask("/t/hers", x_forwarded_for="192.0.2.7", x_user="her").status == 403


def _about(ref: str) -> list[str]:
    views = ("", "@1", "/log", "/graph", "/usage", "/context", "/context/1", "/live")
    pages = [f"/t/{ref}{view}" for view in views]
    return [
        *pages,
        f"/e/{ref}/1",
        f"/e/{ref}/2/text",
        f"/e/{ref}/2/raw",
        f"/diff?a={ref}&b={ref}",
        f"/search?q=a&tape={ref}",
    ]


class TestAddresses:
    @pytest.mark.parametrize("id", ["plain", "..", ".", "a/b", "a@3", "~7E", "%2e%2e", "é 世 <b>", "-._~", "x" * 255])
    def test_any_id_is_one_segment(self, id: str) -> None:
        """Every id can be written as a segment of a path, and read back."""
        segment = encode(id)
        assert decode(segment) == id
        assert segment not in (".", "..")
        assert set(segment) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.~")
        assert (split(reference(id, 7)), split(reference(id))) == ((id, 7), (id, None))

    @pytest.mark.parametrize("segment", ["..", "~zz", "~2e", "~FF", "a b", "~61"])
    def test_no_other_segment_is_an_id(self, segment: str) -> None:
        """What would never be written is refused, so that every tape has one address."""
        with pytest.raises(ValueError):
            decode(segment)

    def test_path_tricks_lead_nowhere(self, reading: Site) -> None:
        """No address reads a file, leaves the folder of the scripts, or reaches a tape another way."""
        tricks: tuple[str, ...] = (
            "/static/../app.py",
            "/static/..%2fapp.py",
            "/static/%2e%2e/app.py",
            "/static/....//app.py",
        )
        tricks += (
            "/static//etc/passwd",
            "/static/",
            "/t/..",
            "/t/../e/trip/1",
            "/t/%2e%2e/log",
            "/t/trip%00",
            "//t/trip",
        )
        tricks += (
            "/t/trip@-1",
            "/t/trip@0",
            "/t/trip@99999999999999999999",
            "/e/trip/0",
            "/e/trip/-1",
            "/s/store0/",
            "/s/x/",
        )
        tricks += ("/t/trip/../trip", "/static/app.js%00", "/static/app.py", "/templates/page.html")
        assert {path: reading.ask(path).status for path in tricks} == dict.fromkeys(tricks, 404)

    def test_several_stores_each_have_their_own(self, filled: tape.Store, elsewhere: tape.Store) -> None:
        """The second store is under its name, and its tapes are not in the first."""
        elsewhere.tape("other").append(role="user", content="elsewhere")
        with served(filled, elsewhere) as site:
            assert site.ask("/t/other").status == 404
            assert site.ask("/s/store1/t/other").json["messages"][0]["parts"][0]["text"] == "elsewhere"
            assert site.ask("/s/store1/t/trip").status == 404
            assert [tape["id"] for tape in site.ask("/s/store1/").json["tapes"]] == ["other"]


class TestAnswers:
    def test_every_answer_is_locked_down(self, reading: Site) -> None:
        """Pages, data, files, refusals and errors all carry the policy, and nothing of it is loose."""
        for path, known in (("/", True), ("/static/app.js", True), ("/t/nope", True), ("/", False), ("/nowhere", True)):
            headers = reading.ask(path, known=known, accept="text/html").headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert "access-control-allow-origin" not in headers

    def test_a_page_has_no_inline_script_or_style(self, reading: Site) -> None:
        """All that a page holds beside its files is data."""
        html = reading.ask("/t/trip", accept="text/html").body.decode()
        assert html.count("<script") == 2
        assert html.count('<script type="application/json" id="page">') == 1
        assert ("<style" in html, " style=" in html, " onclick" in html, "http://" in html, "https://" in html) == (
            False,
        ) * 5

    def test_json_is_what_the_page_is_made_of(self, reading: Site) -> None:
        """The same address gives the same data to a program and to a page."""
        for path in ("/", "/t/trip", "/t/trip@5", "/t/trip/log", "/t/trip/graph", "/t/trip/usage", "/t/trip/context"):
            html = reading.ask(path, accept="text/html,application/json").body.decode()
            block = html.partition('id="page">')[2].partition("</script>")[0]
            shown = json.loads(block)
            del shown["stores"]
            assert shown == reading.ask(path).json


class TestWriting:
    def test_a_read_only_start_has_no_way_to_write(self, reading: Site) -> None:
        """Every write is refused, however well it is meant, and no page offers one."""
        before = reading.ask("/t/trip").json["head"]
        answer = reading.act("/t/trip/act", {"do": "label", "add": ["x"]})
        assert (answer.status, reading.ask("/t/trip").json["head"]) == (405, before)
        assert all(
            reading.ask("/t/trip", method=method).status == 405 for method in ("PUT", "DELETE", "PATCH", "OPTIONS")
        )
        assert b"csrf" not in reading.ask("/t/trip", accept="text/html").body
        assert reading.ask("/t/trip").json["write"] is False

    def test_without_write_the_route_is_not_there(self, filled: tape.Store) -> None:
        """Also a store that can be written is not written by a server that was not told so."""
        with served(filled) as site:
            assert site.act("/t/trip/act", {"do": "label", "add": ["x"]}).status == 405
            assert "x" not in filled.get("trip").info().labels

    def test_a_write_needs_proof_that_it_comes_from_a_page(self, filled: tape.Store) -> None:
        """Without the cookie, the CSRF header or the right Origin nothing is written."""
        with served(filled, write=True) as site:
            body = {"do": "label", "add": ["foreign"]}
            forged: list[dict[str, str]] = [
                {"x-tape-csrf": ""},
                {"x-tape-csrf": "0" * 64},
                {"origin": "http://evil.example"},
                {"origin": "null"},
                {"sec-fetch-site": "cross-site"},
            ]
            assert [site.act("/t/trip/act", body, **headers).status for headers in forged] == [403] * len(forged)
            assert site.act("/t/trip/act", body, cookie="").status == 401
            assert "foreign" not in filled.get("trip").info().labels

    def test_each_act_returns_its_receipt(self, filled: tape.Store) -> None:
        """Label, hand off, retract, restore and fork are recorded as the receipt says."""
        chat = filled.create("acted")
        message = chat.append(role="user", content="a", id="a")
        with served(filled, write=True) as site:
            acts: list[dict[str, Any]] = [
                {"do": "label", "add": ["seen"]},
                {"do": "handoff", "name": "next", "summary": "so far", "next_steps": ["go"]},
                {"do": "retract", "message": "a", "reason": "wrong"},
                {"do": "restore", "message": "a"},
            ]
            for act in acts:
                receipt = site.act("/t/acted/act", act).json["receipt"]
                entry = chat.entry(seq=receipt["seq"])
                assert (entry.hash, entry.kind, entry.actor) == (receipt["hash"], act["do"], "inspector")
            made = site.act("/t/acted/act", {"do": "fork", "at": message.seq, "name": "again"}).json["receipt"]
            info = filled.get(made["tape"]).info()
            assert (info.parent, info.forked_at, info.name) == ("acted", message.seq, "again")

    @pytest.mark.parametrize(
        "body", [{}, [], {"do": "purge"}, {"do": "label", "x": 1}, {"do": "retract"}, {"do": "fork", "at": 10**6}]
    )
    def test_anything_else_is_refused_in_words(self, filled: tape.Store, body: object) -> None:
        """What cannot be done changes nothing, and the answer says why."""
        with served(filled, write=True) as site:
            before = filled.get("trip").info().head
            answer = site.act("/t/trip/act", body)
            assert answer.status in (404, 409)
            assert b"error" in answer.body
            assert filled.get("trip").info().head == before
