"""Who may ask the inspector, and for what: every refusal, and what the answers carry."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.backends import Backend
from support.browsing import Answer, Site, served
from support.inspected import history

import tape
from tape.web.addresses import decode, encode, reference, split
from tape.web.app import inspector
from tape.web.guard import TOKEN
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
    def test_a_stranger_gets_no_data(self, reading: Site) -> None:
        """Without the secret no address answers with anything of the store, whatever is accepted."""
        for path in ("/", "/t/trip", "/health", "/health/live", "/t/trip/live", "/e/trip/2/raw", "/nowhere", "/enter"):
            for accept in ("application/json", "*/*", "text/event-stream", "image/png"):
                assert (path, reading.ask(path, known=False, accept=accept).status) == (path, 401)
            page = reading.ask(path, known=False, accept="text/html,application/json")
            assert (page.status, b"Lisbon" in page.body) == (200, False)
            assert page.body == reading.ask("/static/page.html", known=False).body

    def test_a_wrong_secret_is_no_secret(self, reading: Site) -> None:
        """Another value, none, and the right one in a cookie or in the address are refused."""
        secret = reading.access.secret
        for headers in (
            {TOKEN: "wrong"},
            {TOKEN: ""},
            {TOKEN: str(reading.access.token)},
            {"cookie": f"tape={secret}"},
        ):
            assert reading.ask(f"/?token={secret}", known=False, **headers).status == 401

    def test_no_answer_sets_a_cookie(self, filled: tape.Store) -> None:
        """What a browser would send to every port of the machine is never set."""
        with served(filled) as site:
            answers = [_enter(site, str(site.access.token)), site.ask("/t/trip"), site.ask("/", accept="text/html")]
            assert [answer.status for answer in answers] == [200] * 3
            assert not any("set-cookie" in answer.headers for answer in answers)

    def test_the_token_opens_once(self, filled: tape.Store) -> None:
        """The first use gives the secret, and tells the program; the second use is refused."""
        opened: list[bool] = []
        with served(filled, opened=lambda: opened.append(True)) as site:
            token = str(site.access.token)
            first = _enter(site, token)
            assert first.json == {"secret": site.access.secret}
            assert site.ask("/t/trip", known=False, **{TOKEN: first.json["secret"]}).status == 200
            assert _enter(site, token).status == 401
        assert opened == [True]

    def test_a_wrong_token_does_not_spend_the_right_one(self, filled: tape.Store) -> None:
        """Guessing is refused and changes nothing."""
        with served(filled) as site:
            assert _enter(site, "guess").status == 401
            assert _enter(site, str(site.access.token)).status == 200

    def test_another_page_cannot_use_the_token(self, filled: tape.Store) -> None:
        """A page from elsewhere that learned the token is refused, and does not spend it."""
        with served(filled) as site:
            token = str(site.access.token)
            for headers in ({"origin": "http://127.0.0.1:1"}, {"origin": "null"}, {"sec-fetch-site": "same-site"}):
                assert _enter(site, token, **headers).status == 403
            assert _enter(site, token).status == 200

    def test_a_page_from_elsewhere_loads_nothing(self, reading: Site) -> None:
        """Not even one from another port; a link from there opens the page, which has no data."""
        for site in ("cross-site", "same-site"):
            for path in ("/t/trip", "/health/live", "/static/app.js"):
                assert reading.ask(path, sec_fetch_site=site, sec_fetch_mode="no-cors").status == 403
            headers: dict[str, Any] = {"sec-fetch-site": site, "sec-fetch-mode": "navigate"}
            assert reading.ask("/t/trip", accept="text/html", **headers).status == 200
            assert reading.ask("/e/trip/2/raw", **headers).status == 403
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
        """A name that was made to lead here (DNS rebinding) is refused, with or without the secret."""
        for host in (
            "evil.example",
            f"localhost:{reading.port}",
            f"evil.example:{reading.port}",
            "127.0.0.1",
            f"localhost.evil:{reading.port}",
            "",
        ):
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
        """A header from any other address is refused, and the secret does not help."""
        with served(filled, proxy="192.0.2.7", owner_header="x-user") as site:
            assert site.ask("/t/hers", x_user="her").status == 403
            assert site.ask("/t/hers", x_forwarded_for="192.0.2.7", x_user="her").status == 403


def _enter(site: Site, token: str, **headers: str) -> Answer:
    return site.ask("/enter", method="POST", known=False, **({TOKEN: token, "origin": site.url} | headers))


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
        """A page has one script and one style, both from files of the inspector."""
        html = reading.ask("/t/trip", accept="text/html").body.decode()
        assert html.count("<script") == html.count('<script type="module" src="/static/app.js">') == 1
        assert [word for word in ("<style", " style=", " onclick", "http://", "https://") if word in html] == []

    @pytest.mark.parametrize("digits", ["0" * 19, "9" * 18, "9" * 19, "9" * 5_000, "1" * 40_000])
    def test_a_seq_of_any_length_is_not_there(self, reading: Site, digits: str) -> None:
        """An address with a seq that no tape has is not found, however many digits the seq has."""
        views = (f"/e/trip/{digits}", f"/e/trip/{digits}/raw", f"/e/trip/{digits}/text", f"/t/trip/context/{digits}")
        points = (f"/t/trip@{digits}", f"/t/trip@{digits}/log", f"/diff?a=trip@{digits}&b=trip")
        for path in (*views, *points):
            answer = reading.ask(path)
            assert (path[:20], answer.status, list(json.loads(answer.body))) == (path[:20], 404, ["error"])
        for path in (f"/t/trip/log?after={digits}", f"/t/trip/context?budget={digits}", f"/search?q=a&limit={digits}"):
            assert reading.ask(path).status == 200


class TestWriting:
    def test_a_read_only_start_has_no_way_to_write(self, reading: Site) -> None:
        """Every write is refused, however well it is meant, and no page offers one."""
        before = reading.ask("/t/trip").json["head"]
        answer = reading.act("/t/trip/act", {"do": "label", "add": ["x"]})
        assert (answer.status, reading.ask("/t/trip").json["head"]) == (405, before)
        assert all(
            reading.ask("/t/trip", method=method).status == 405 for method in ("PUT", "DELETE", "PATCH", "OPTIONS")
        )
        assert reading.ask("/t/trip").json["write"] is False

    def test_without_write_the_route_is_not_there(self, filled: tape.Store) -> None:
        """Also a store that can be written is not written by a server that was not told so."""
        with served(filled) as site:
            assert site.act("/t/trip/act", {"do": "label", "add": ["x"]}).status == 405
            assert "x" not in filled.get("trip").info().labels

    def test_a_write_needs_proof_that_it_comes_from_a_page(self, filled: tape.Store) -> None:
        """Without the secret or the right Origin nothing is written, also behind a proxy."""
        with served(filled, write=True) as site:
            body = {"do": "label", "add": ["foreign"]}
            forged: list[dict[str, str]] = [
                {"origin": "http://evil.example"},
                {"origin": f"{site.url}0"},
                {"origin": "null"},
                {"sec-fetch-site": "cross-site"},
                {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate"},
            ]
            assert [site.act("/t/trip/act", body, **headers).status for headers in forged] == [403] * len(forged)
            assert [site.act("/t/trip/act", body, **{TOKEN: wrong}).status for wrong in ("", "0" * 43)] == [401] * 2
        with served(filled, write=True, proxy="127.0.0.1", owner_header="x-user") as site:
            assert site.act("/t/hers/act", body, x_user="her", origin="http://127.0.0.1:1").status == 403
            assert site.act("/t/hers/act", body, x_user="her").status == 200
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
