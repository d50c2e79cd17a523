"""TapeSessionService holds ADK's contract, and what its own tests leave out: writers, retries, restarts, odd values."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.session import Session
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.genai import types
from support.backends import Backend
from support.processes import Crew

import tape
from integrations.contention import PROCESSES, WRITES, hold_together
from tape.integrations.adk import TapeSessionService

NAMES: dict[str, Any] = {"app_name": "shop", "user_id": "ana", "session_id": "s1"}


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def said(text: str, role: str = "user", **more: Any) -> Event:
    content = types.Content(role=role, parts=[types.Part(text=text)])
    return Event(**{"author": role, "invocation_id": "i1", "content": content, **more})


def changed(**state: Any) -> Event:
    return Event(author="agent", invocation_id="i1", actions=EventActions(state_delta=state))


ODD = [
    said("plain"),
    said("no role", content=types.Content(parts=[types.Part(text="no role")])),
    said("own", content=types.Content(role="assistant", parts=[types.Part(text="an odd role")])),
    said("empty", content=types.Content(role="model")),
    said(
        "call",
        "model",
        content=types.Content(
            role="model",
            parts=[
                types.Part(text="I look it up", thought=True),
                types.Part(text="One moment."),
                types.Part(
                    function_call=types.FunctionCall(id="c1", name="find", args={"city": None}),
                    thought_signature=b"\xff\xfe\x00",
                ),
                types.Part(function_call=types.FunctionCall(name="without_id")),
            ],
        ),
        long_running_tool_ids={"b", "a"},
    ),
    said(
        "result",
        content=types.Content(
            role="user",
            parts=[
                types.Part(function_response=types.FunctionResponse(id="c1", name="find", response={"n": [1, None]}))
            ],
        ),
    ),
    said(
        "picture",
        content=types.Content(
            role="user",
            parts=[
                types.Part.from_bytes(data=b"\xff\xfe\xfd\x00", mime_type="image/png"),
                types.Part(file_data=types.FileData(file_uri="gs://b/o", mime_type="image/png")),
                types.Part(executable_code=types.ExecutableCode(code="1", language=types.Language.PYTHON)),
            ],
        ),
    ),
    said(
        "everything",
        "model",
        turn_complete=True,
        error_code="e",
        branch="a.b",
        finish_reason=types.FinishReason.STOP,
        avg_logprobs=-0.25,
        grounding_metadata=types.GroundingMetadata(
            web_search_queries=["q"], search_entry_point=types.SearchEntryPoint(sdk_blob=b"\x00\xff")
        ),
        usage_metadata=types.GenerateContentResponseUsageMetadata(prompt_token_count=7, candidates_token_count=2),
        custom_metadata={"kept": None},
        timestamp=1700000000.123,
        actions=EventActions(
            state_delta={"a": None, "b": {"c": None}},
            artifact_delta={"file": 0},
            transfer_to_agent="clerk",
            requested_tool_confirmations={"c1": ToolConfirmation(hint="sure?", payload={"n": 1})},
        ),
    ),
    Event(author="agent", invocation_id="i1", output={"any": ["thing", None]}, id="an id\n" + "x" * 300),
    Event(author="agent", invocation_id="i1", timestamp=-5.0),
]


class TestSessions:
    def test_it_answers_as_the_service_in_memory(self, store: tape.Store) -> None:
        """Creating, appending, loading in part, listing, state of all kinds, deleting: the same answers."""

        async def used(service: Any) -> list[Any]:
            seen: list[Any] = []
            for user, id in (("ana", "s1"), ("ana", "s2"), ("bo", "s1")):
                session = await service.create_session(
                    app_name="shop",
                    user_id=user,
                    session_id=id,
                    state={"own": id, "user:u": user, "app:a": 1, "temp:t": 1},
                )
                for number in range(1, 6):
                    state = {f"k{number}": None, "own": {"n": number}, "user:n": number, "app:n": user, "temp:x": 1}
                    await service.append_event(session, said(f"{id} {number}", id=f"e{number}", timestamp=number))
                    event = Event(
                        author="a", id=f"f{number}", timestamp=number, actions=EventActions(state_delta=state)
                    )
                    await service.append_event(session, event)
                await service.append_event(session, said("partial", partial=True))
                seen += [session.state, session.events, session.last_update_time]
            asked: list[dict[str, Any]] = [
                {},
                {"num_recent_events": 0},
                {"num_recent_events": 3},
                {"after_timestamp": 4.0},
            ]
            asked += [{"after_timestamp": 99.0}, {"after_timestamp": 3.0, "num_recent_events": 2}]
            for config in asked:
                got = await service.get_session(**NAMES, config=GetSessionConfig(**config))
                seen += [got.state, got.events, got.last_update_time]
            for one in ("ana", "bo", "nobody", None):
                listed = await service.list_sessions(app_name="shop", user_id=one)
                seen.append([(each.id, each.user_id, each.state, each.events) for each in listed.sessions])
            seen += [await service.get_user_state(app_name="shop", user_id=user) for user in ("ana", "nobody")]
            await service.delete_session(app_name="shop", user_id="ana", session_id="s2")
            await service.delete_session(app_name="shop", user_id="ana", session_id="s2")
            seen.append([each.id for each in (await service.list_sessions(app_name="shop", user_id="ana")).sessions])
            seen.append(await service.get_session(app_name="other", user_id="ana", session_id="s1"))
            return seen

        ours, theirs = run(used(TapeSessionService(store))), run(used(InMemorySessionService()))
        for index, (one, two) in enumerate(zip(ours, theirs, strict=True)):
            assert one == two, index
        assert store.verify().ok

    def test_every_event_comes_back_equal(self, store: tape.Store) -> None:
        """Tool calls, pictures, thoughts, odd roles and ids, nulls and bytes; a session is equal to what was made."""

        async def work() -> None:
            service = TapeSessionService(store)
            session = await service.create_session(**NAMES, state={"": 1, "line\nbreak": 2, "k" * 300: {"v": None}})
            for event in ODD:
                await service.append_event(session, event.model_copy(deep=True))
            got = await service.get_session(**NAMES)
            assert got is not None
            assert got.events == ODD
            assert [type(event) for event in got.events] == [Event] * len(ODD)
            assert got == session
            assert got.model_copy(deep=True) == got
            # What is changed in one does not change in another.
            got.events[0].actions.state_delta["x"] = 1
            assert (await service.get_session(**NAMES)) == session

        run(work())
        chat = store.tape("adk/shop/ana/s1")
        assert chat.context().messages
        assert chat.usage().input_tokens == 7
        assert [hit.message_id for hit in store.search("moment")] == [ODD[4].id]

    def test_what_no_tape_holds_is_kept_readable(self, store: tape.Store) -> None:
        """Half characters, infinities and objects are told as well as can be; what could not be read is refused."""

        async def work() -> None:
            service = TapeSessionService(store)
            session = await service.create_session(**NAMES, state={"when": float("inf"), "half": "\ud800"})
            event = said("half \ud800", custom_metadata={"n": float("nan")})
            event.content.parts.append(types.Part(text="x", thought_signature=b"\xff\xfe\xfb"))  # type: ignore[union-attr]
            await service.append_event(session, event)
            await service.append_event(session, changed(callback=print, ok=2))
            with pytest.raises(tape.InvalidEntry):
                await service.append_event(session, said("when?", timestamp=float("nan")))
            got = await service.get_session(**NAMES)
            assert got is not None
            parts = got.events[0].content.parts  # type: ignore[union-attr]
            assert (parts[0].text, parts[1].thought_signature) == ("half \ufffd", b"\xff\xfe\xfb")
            assert (got.state["when"], got.state["half"], got.state["ok"]) == (None, "\ufffd", 2)
            assert isinstance(got.state["callback"], str)
            assert len(session.events) == len(got.events) == 2

        run(work())

    def test_names_are_kept_apart(self, store: tape.Store) -> None:
        """Users, apps and owners of stores with names that look alike, or that no id can hold, share nothing."""
        odd = ["a/b", "a", "b", "a\nb", "ü" * 300, "ü" * 301, "@x", "~", "%2F"]

        async def work() -> None:
            services = [TapeSessionService(each) for each in (store, store.scoped("x"), store.scoped("y"))]
            for service in services:
                for app in odd[:4]:
                    for user in odd:
                        await service.create_session(
                            app_name=app, user_id=user, session_id="s", state={"user:me": user}
                        )
            for service in services:
                for app in odd[:4]:
                    for user in odd:
                        listed = (await service.list_sessions(app_name=app, user_id=user)).sessions
                        assert [(each.app_name, each.user_id, each.id) for each in listed] == [(app, user, "s")]
                        assert listed[0].state == {"user:me": user}
            with pytest.raises(AlreadyExistsError):
                await services[0].create_session(app_name="a", user_id="b", session_id=" s ")
            with pytest.raises(tape.InvalidEntry):
                await services[0].create_session(app_name="a", user_id="\ud800")
            blank = await services[0].create_session(app_name="a", user_id="b", session_id="  ")
            assert blank.id.strip() == blank.id != ""

        run(work())

    def test_a_restart_and_every_kind_of_store(self, tmp_path: Path) -> None:
        """A URL, a path and an async store; what one wrote is there for the next."""

        async def work() -> None:
            file = tmp_path / "agent.db"
            first = TapeSessionService(file)
            session = await first.create_session(**NAMES)
            await first.append_event(session, said("one"))
            await first.close()
            second = TapeSessionService(f"sqlite:///{file}")
            await second.append_event(session, said("two"))
            await second.close()
            store = await tape.open_async(file)
            third = TapeSessionService(store)
            got = await third.get_session(**NAMES)
            assert got == session
            await third.close()
            assert [info.id for info in (await store.list()).items] == [third.tape_id("shop", "ana", "s1")]
            await store.close()

        run(work())


class TestTape:
    def test_a_session_is_a_conversation(self, store: tape.Store) -> None:
        """A rewind leaves the branch, a compaction is a summary, and ADK sees all of its events."""

        async def work() -> None:
            service = TapeSessionService(store)
            session = await service.create_session(**NAMES)
            for number in range(6):
                await service.append_event(
                    session, said(f"m{number}", invocation_id=f"i{number // 2}", timestamp=number)
                )
            content = types.Content(role="model", parts=[types.Part(text="they greeted")])
            compaction = EventCompaction(start_timestamp=0, end_timestamp=1, compacted_content=content)
            summing = Event(author="user", actions=EventActions(compaction=compaction))
            await service.append_event(session, summing)
            rewind = Event(author="user", actions=EventActions(rewind_before_invocation_id="i2"))
            await service.append_event(session, rewind)
            await service.append_event(session, said("instead", invocation_id="i3"))
            got = await service.get_session(**NAMES)
            assert got == session
            assert len(session.events) == 9

        run(work())
        chat = store.tape("adk/shop/ana/s1")
        assert [message.text for message in chat.messages()] == ["m0", "m1", "m2", "m3", "instead"]
        summary = chat.summary()
        assert summary is not None
        assert (summary.text, len(summary.covers)) == ("they greeted", 2)
        info = chat.info()
        assert (info.owner, info.agent) == ("ana", "shop")
        assert chat.messages()[0].occurred_at is not None

    def test_a_session_with_forks_is_hidden(self, store: tape.Store) -> None:
        """Deleting it leaves the fork what it inherits; a purged id can be a session again."""

        async def work() -> None:
            service = TapeSessionService(store)
            session = await service.create_session(**NAMES)
            await service.append_event(session, said("one"))
            fork = store.tape("adk/shop/ana/s1").fork("side")
            await service.delete_session(**NAMES)
            assert await service.get_session(**NAMES) is None
            assert (await service.list_sessions(app_name="shop")).sessions == []
            assert [message.text for message in fork.messages()] == ["one"]
            with pytest.raises(SessionNotFoundError):
                await service.append_event(session, said("two"))
            with pytest.raises(AlreadyExistsError):
                await service.create_session(**NAMES)
            again = {**NAMES, "session_id": "s2"}
            await service.create_session(**again)
            await service.delete_session(**again)
            assert (await service.create_session(**again)).events == []

        run(work())

    def test_others_on_the_tape_do_not_disturb(self, store: tape.Store) -> None:
        """Labels, notes and messages of other programs neither make a session stale nor become its events."""

        async def work() -> None:
            service = TapeSessionService(store)
            session = await service.create_session(**NAMES)
            chat = store.tape("adk/shop/ana/s1")
            for number in range(3):
                chat.label(f"l{number}")
                chat.event("score", {"n": number})
                chat.append({"role": "user", "content": "by hand"})
                await service.append_event(session, said(f"m{number}"))
            got = await service.get_session(**NAMES, config=GetSessionConfig(num_recent_events=2))
            assert got is not None
            assert [event.content.parts[0].text for event in got.events] == ["m1", "m2"]  # type: ignore[union-attr, index]
            assert await service.get_session(**NAMES) == session

        run(work())


class TestWriters:
    def test_a_stale_session_is_refused(self, store: tape.Store) -> None:
        """Of two copies one writes; the other is told, and nothing of it is there. A copy without a mark is judged
        by what it says."""

        async def work() -> None:
            service = TapeSessionService(store)
            await service.create_session(**NAMES)
            for number in range(4):
                latest = await service.get_session(**NAMES)
                assert latest is not None
                copies = [latest.model_copy(deep=True) for _ in range(2)]
                results = await asyncio.gather(
                    *(
                        service.append_event(copy, changed(**{f"k{number}-{index}": 1, "user:n": number}))
                        for index, copy in enumerate(copies)
                    ),
                    return_exceptions=True,
                )
                (refused,) = [each for each in results if isinstance(each, BaseException)]
                assert isinstance(refused, StaleSessionError)
                assert "modified in storage" in str(refused)
            final = await service.get_session(**NAMES)
            assert final is not None
            assert (len(final.events), len(final.state)) == (4, 5)
            plain = Session(**{**final.model_dump(), "events": final.events})
            await service.append_event(plain, said("known"))
            old = Session(**{**final.model_dump(), "events": final.events, "last_update_time": 1.0})
            with pytest.raises(StaleSessionError):
                await service.append_event(old, said("not known"))
            assert len(old.events) == 4
            with pytest.raises(SessionNotFoundError):
                await service.append_event(Session(app_name="shop", user_id="ana", id="never"), said("x"))

        run(work())

    def test_one_session_object_may_be_written_to_at_once(self, store: tape.Store) -> None:
        """What tasks append to the same session is all there, in the order in which they came."""

        async def work() -> None:
            service = TapeSessionService(store)
            session = await service.create_session(**NAMES)
            events = [said(str(number)) if number % 3 else changed(n=number) for number in range(20)]
            await asyncio.gather(*(service.append_event(session, event) for event in events))
            assert session.events == events
            assert await service.get_session(**NAMES) == session

        run(work())

    def test_an_event_is_written_once(self, store: tape.Store) -> None:
        """The same one again, also by a session that does not know of it; another one with its id is refused."""

        async def work() -> None:
            service = TapeSessionService(store)
            session = await service.create_session(**NAMES)
            before = session.model_copy(deep=True)
            for event in (said("one"), changed(n=1)):
                await service.append_event(session, event)
                await service.append_event(session, event.model_copy(deep=True))
                await service.append_event(before, event.model_copy(deep=True))
            assert len(session.events) == 2
            assert before == session == await service.get_session(**NAMES)
            for other in ({"branch": "b"}, {"content": types.Content(role="user", parts=[types.Part(text="two")])}):
                with pytest.raises(tape.ProvenanceConflict):
                    await service.append_event(session, session.events[0].model_copy(update=other))
            assert len(session.events) == 2

        run(work())

    def test_processes_write_to_one_session(self, crew: Crew, backend: Backend) -> None:
        """Four of them, 50 events each with state of all kinds: what was acknowledged is there once, the rest refused
        as stale."""
        with backend.open() as store:
            run(TapeSessionService(store).create_session(**NAMES))
        refused = hold_together(crew, backend, writer, marks, refusals=(StaleSessionError,), least=WRITES)
        assert set(refused) <= {"StaleSessionError"}
        with backend.open() as store:
            state = store.tape("adk/shop/ana/s1").states(prefix="adk:mark")
            assert len(state) == PROCESSES * WRITES - refused.total()

    def test_processes_that_read_again_lose_nothing(self, crew: Crew, backend: Backend) -> None:
        """A writer that reads its session anew when it is told to gets all of its events in."""
        with backend.open() as store:
            run(TapeSessionService(store).create_session(**NAMES))
        assert hold_together(crew, backend, patient, marks, refusals=(), least=PROCESSES * WRITES).total() == 0


def writer(store: tape.Store) -> Any:
    service = TapeSessionService(store)

    async def write(mark: str) -> None:
        session = await service.get_session(**NAMES, config=GetSessionConfig(num_recent_events=0))
        assert session is not None
        await service.append_event(session, said(mark, actions=EventActions(state_delta={mark: 1, "app:last": mark})))

    return write


def patient(store: tape.Store) -> Any:
    service = TapeSessionService(store)

    async def write(mark: str) -> None:
        until = time.monotonic() + 60
        while True:
            session = await service.get_session(**NAMES, config=GetSessionConfig(num_recent_events=1))
            assert session is not None
            try:
                await service.append_event(session, said(mark))
                return
            except StaleSessionError:
                assert time.monotonic() < until, "never came to write"

    return write


def marks(store: tape.Store) -> list[str]:
    session = run(TapeSessionService(store).get_session(**NAMES))
    return [event.content.parts[0].text for event in session.events]
