"""Transcripts of other programs become tapes: whole, once, and with nothing lost."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.backends import Backend
from support.request_rules import check_anthropic, check_chat, check_responses
from support.transcript_files import DATA, FILES, LINES, SESSION, load, texts

import tape
from tape.core.entries.payloads import Anchor, Append, Event, Handoff
from tape.transcripts import ImportedTranscript, import_transcript

ROLLOUT = "019a2d7a-41c4-78b1-b7cc-a45d62a89cd5"
each = pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)


def everything(store: tape.Store) -> dict[str, list[tuple[Any, ...]]]:
    """Return every tape's entries without what differs from one import to the next: times, hashes, random ids."""
    found = {}
    for info in store.list(limit=100).items:
        rows = [(entry.kind, entry.actor, entry.meta) for entry in store.get(info.id).entries()]
        found[info.id] = [*rows, tuple(texts(store.get(info.id)))]
    return found


def rebuilt(store: tape.Store) -> list[Any]:
    """Return the records of a session or rollout as they can be made again from the entries, in no order."""
    found: list[Any] = []
    for info in store.list(limit=100).items:
        for entry in store.get(info.id).entries():
            payload, meta = entry.payload, entry.meta or {}
            if isinstance(payload, Event):
                found.append(payload.data)
            elif isinstance(payload, Anchor | Handoff):
                found.append(meta)
            elif isinstance(payload, Append):
                message = json.loads(json.dumps(store.get(info.id).message(payload.id).to_dict()))
                if info.agent == "claude-code":
                    assert message.pop("id", payload.id) == meta["uuid"]
                    found.append({**meta, "message": {**meta["message"], **message}})
                elif "replacement" not in meta:
                    message = {**message, **({"id": meta["id"]} if "id" in meta else {})}
                    found.append({**meta, "payload": message} if "type" in meta else message)
    return found


def canonical(records: list[Any]) -> list[str]:
    return sorted(json.dumps(record, sort_keys=True) for record in records)


class TestEveryFormat:
    @each
    def test_a_second_import_adds_nothing(self, standing: Backend, file: Path) -> None:
        """Importing a file twice leaves every tape, all of which verify, at the seq it was at."""
        store = standing.open(owner=file.name)
        first = load(store, file, tape=file.name)
        assert sum(one.added for one in first) > 1
        heads = {info.id: info.head for info in store.list().items}
        assert [store.verify(one.tape).ok for one in first] == [True] * len(first)
        again = load(store, file, tape=file.name)
        assert [(one.tape, one.added) for one in again] == [(one.tape, 0) for one in first]
        assert [one.known for one in again] == [one.added + one.known for one in first]
        assert {info.id: info.head for info in store.list().items} == heads

    @each
    def test_contexts_are_accepted(self, file: Path) -> None:
        """The context of every branch of every tape renders to requests that the APIs take."""
        with tape.open(":memory:") as store:
            for one in load(store, file):
                chat = store.get(one.tape)
                for head in chat.heads():
                    context = chat.context(branch=head.id)
                    check_chat(context.to_openai())
                    check_responses(context.to_openai(api="responses"))
                    check_anthropic(context.to_anthropic())

    @pytest.mark.parametrize("file", LINES, ids=lambda file: file.name)
    def test_a_growing_file_adds_only_what_is_new(self, file: Path, tmp_path: Path) -> None:
        """Imported after every line that is added, a file makes the same tapes as imported once at the end."""
        grown = tmp_path / file.name
        lines = file.read_bytes().splitlines(keepends=True)
        # Until a line tells the session, the tape has the name of the file, which Claude Code names after the session.
        told = next((number for number, line in enumerate(lines, 1) if b"sessionId" in line), 1)
        with tape.open(":memory:") as store, tape.open(":memory:") as other:
            for count in range(told, len(lines) + 1):
                grown.write_bytes(b"".join(lines[:count]))
                load(store, grown)
            load(other, file)
            assert everything(store) == everything(other)
            assert store.verify().ok

    def test_growth_on_both_engines(self, backend: Backend, tmp_path: Path) -> None:
        """A session that went on after it was imported gains its new messages, and they become its end."""
        grown = tmp_path / "session.jsonl"
        lines = (DATA / "claude-code.jsonl").read_bytes().splitlines(keepends=True)
        store = backend.open()
        grown.write_bytes(b"".join(lines[:16]))
        (before,) = import_transcript(store, "claude-code", grown)[:1]
        grown.write_bytes(b"".join(lines))
        after = import_transcript(store, "claude-code", grown)[0]
        assert (after.tape, after.known) == (before.tape, before.added)
        assert store.get(SESSION).messages()[-1].text == "Done."
        assert store.verify().ok

    @pytest.mark.parametrize("name", ["claude-code.jsonl", "claude-code-agent.jsonl", "codex.jsonl", "codex-old.jsonl"])
    def test_logs_lose_nothing(self, name: str) -> None:
        """Every record of a session file can be made again, field by field, from the entries."""
        records = [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]
        with tape.open(":memory:") as store:
            load(store, DATA / name)
            assert canonical(rebuilt(store)) == canonical(records)


class TestClaudeCode:
    @pytest.fixture
    def session(self) -> Any:
        with tape.open(":memory:") as store:
            load(store, DATA / "claude-code.jsonl")
            yield store.get(SESSION)

    def test_parallel_tool_results_are_on_the_path(self, session: tape.Tape) -> None:
        """Both results of a response with two calls follow it, though the file puts the first one beside the path."""
        assert [message.id[-2:] for message in session.messages()][:7] == ["01", "03", "04", "05", "06", "07", "09"]
        entry = next(entry for entry in session.entries() if entry.key.endswith("06"))
        assert entry.meta is not None
        assert entry.meta["parentUuid"].endswith("04")

    def test_going_back_is_a_branch(self, session: tape.Tape) -> None:
        """A prompt given anew is a sibling of the old one, which stays readable with its answer."""
        prompt = session.messages()[6]
        assert [child.text for child in session.children(prompt.id)] == [
            "No, only tell me why",
            "Yes, and let a reviewer look at it",
        ]
        assert [head.text for head in session.heads()] == ["A leftover of a debug session.", "Done."]

    def test_a_compaction_is_where_context_begins(self, session: tape.Tape) -> None:
        """The model sees what it saw: the summary after the compaction and what followed; the rest stays readable."""
        context = session.context()
        assert context.anchor is not None
        assert context.anchor.name == "compact"
        assert [message.id[-2:] for message in context.messages] == ["20", "21", "22", "23", "24"]
        assert len(session.messages()) == 16
        assert context.manifest.repairs == []

    def test_a_subagent_is_a_fork(self, session: tape.Tape) -> None:
        """A sidechain is a tape of its own, forked off the session, and sees only its own messages."""
        lineage = session.lineage()
        assert [one.tape for one in lineage.descendants] == [f"{SESSION}/agent-a1b2c3d4"]
        helper = tape.Tape(session._services, f"{SESSION}/agent-a1b2c3d4")
        assert texts(helper) == ["Review cart.py", "Drop the + 1."]

    def test_tokens_are_counted_once_per_response(self, session: tape.Tape) -> None:
        """The records of a response repeat its usage; the totals count each response once."""
        usage = session.usage()
        assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens) == (7 * 1110, 7 * 1000, 191)

    def test_what_is_told_of_the_session(self, session: tape.Tape) -> None:
        """The tape knows its title, where it came from, and when each message was said."""
        info = session.info()
        assert (info.name, info.agent, info.owner) == ("Cart total", "claude-code", None)
        opening = next(session.entries())
        assert opening.meta is not None
        assert opening.meta["imported"]["file"] == "claude-code.jsonl"
        stamps = [entry.meta["timestamp"] for entry in session.entries(kinds=["append"]) if entry.meta]
        assert stamps == sorted(stamps)
        assert len(stamps) == 18

    def test_a_subagents_file_joins_its_session(self, quick: Backend) -> None:
        """The separate file of a subagent is a fork of the session if that is there, and a tape by itself if not."""
        store = quick.open()
        load(store, DATA / "claude-code-agent.jsonl", tape="alone")
        assert store.get("alone/agent-ffee0011").info().parent is None
        load(store, DATA / "claude-code.jsonl")
        (done,) = load(store, DATA / "claude-code-agent.jsonl")
        helper = store.get(done.tape)
        assert helper.info().parent == SESSION
        assert texts(helper) == ["Look for other off-by-one errors", "None found."]

    def test_messages_added_in_between_stay_a_branch(self, tmp_path: Path) -> None:
        """Someone writes to an imported tape; the file's new messages still follow the file's old ones."""
        lines = (DATA / "claude-code.jsonl").read_bytes().splitlines(keepends=True)
        file = tmp_path / "s.jsonl"
        with tape.open(":memory:") as store:
            file.write_bytes(b"".join(lines[:20]))
            load_as = import_transcript(store, "claude-code", file)
            chat = store.get(load_as[0].tape)
            chat.append(role="user", content="mine", id="mine")
            file.write_bytes(b"".join(lines))
            import_transcript(store, "claude-code", file)
            assert "mine" in [head.id for head in chat.heads()]
            assert [message.id[-2:] for message in chat.context().messages] == ["20", "21", "22", "23", "24"]

    def test_a_record_written_twice_is_kept_beside_the_first(self, tmp_path: Path) -> None:
        """Two records with one uuid: the first is the message, the other an event, and both are there."""
        record = {"type": "user", "uuid": "u1", "parentUuid": None, "sessionId": "s", "message": {"content": "one"}}
        file = tmp_path / "s.jsonl"
        other = {**record, "message": {"content": "two"}}
        file.write_text("".join(json.dumps(one) + "\n" for one in (record, record, other)))
        with tape.open(":memory:") as store:
            assert import_transcript(store, "claude-code", file) == [ImportedTranscript("s", 2, 0)]
            assert [entry.kind for entry in store.get("s").entries()] == ["open", "append", "event"]


class TestCodex:
    def test_turns_rolled_back_are_a_branch(self) -> None:
        """After a rollback the next message follows what was left; what was undone is a branch."""
        with tape.open(":memory:") as store:
            load(store, DATA / "codex.jsonl")
            chat = store.get(ROLLOUT)
            assert [head.text for head in chat.heads()] == ["I would rather not.", "You are welcome."]
            assert texts(chat)[2:] == [
                "List the files",
                "",
                "call_1",
                "call_1",
                "There is only cart.py.",
                "Rename it to basket.py",
                "call_2",
                "call_2",
                "Rename it to basket.py",
                "Summary: cart.py is now basket.py.",
                "Thanks",
                "You are welcome.",
            ]

    def test_compactions_are_where_context_begins(self) -> None:
        """Behind a compaction stands the history that replaced the old one, or the summary that did."""
        with tape.open(":memory:") as store:
            load(store, DATA / "codex.jsonl")
            chat = store.get(ROLLOUT)
            first, second = chat.anchors()
            assert (first.summary, second.summary) == (None, "The file was renamed, and the user thanked.")
            shown = chat.at(second.seq - 1).context().messages
            assert [message.text for message in shown] == [
                "Rename it to basket.py",
                "Summary: cart.py is now basket.py.",
                "Thanks",
            ]

    def test_repeated_reports_of_tokens_count_once(self) -> None:
        """Codex reports totals, and some twice; the tape's totals are those of the last report."""
        with tape.open(":memory:") as store:
            load(store, DATA / "codex.jsonl")
            usage = store.get(ROLLOUT).usage()
            assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (5000, 90, 3500)
            assert usage.calls == 2

    def test_older_files(self) -> None:
        """The two older formats give the same kind of tape."""
        with tape.open(":memory:") as store:
            load(store, DATA / "codex-old.jsonl")
            load(store, DATA / "codex-oldest.json")
            assert texts(store.get("c0ffee00-0000-4000-8000-000000000001")) == [
                "Say hello",
                "",
                "call_9",
                "call_9",
                "hello",
            ]
            assert texts(store.get("feedface")) == ["Say hello", "hello"]


class TestConversations:
    def test_an_edited_list_is_a_branch(self, quick: Backend, tmp_path: Path) -> None:
        """A list that was changed in the middle shares what is before the change, and nothing is lost."""
        file = tmp_path / "chat.json"
        talk = [{"role": "user", "content": text} for text in ("one", "two", "three")]
        file.write_text(json.dumps(talk, indent=1))
        store = quick.open()
        assert import_transcript(store, "openai", file) == [ImportedTranscript("chat", 3, 0)]
        talk[1]["content"] = "2"
        file.write_text(json.dumps(talk, indent=1))
        assert import_transcript(store, "openai", file) == [ImportedTranscript("chat", 2, 1)]
        assert texts(store.get("chat")) == ["one", "2", "three"]
        assert [head.text for head in store.get("chat").heads()] == ["three", "three"]

    def test_several_choices_are_siblings(self) -> None:
        """The first choice of a response is the path, the others are branches beside it."""
        with tape.open(":memory:") as store:
            load(store, DATA / "openai-exchange.json")
            chat = store.get("openai-exchange")
            assert texts(chat) == ["Be brief.", "How is the weather?", "Sunny."]
            assert [head.text for head in chat.heads()] == ["Rather warm.", "Sunny."]
            assert chat.usage().cached_tokens == 16

    def test_requests_of_one_file_are_tapes_of_their_own(self) -> None:
        """Each line of a batch is a conversation; given one tape, they become its branches."""
        with tape.open(":memory:") as store:
            done = load(store, DATA / "openai-batch.jsonl")
            assert [one.tape for one in done] == ["openai-batch-q-1", "openai-batch-2"]
            (one,) = load(store, DATA / "openai-batch.jsonl", tape="all")
            assert (one.added, one.known) == (6, 1)
            assert [head.text for head in store.get("all").heads()] == ["One?", "Two."]

    def test_items_keep_their_ids(self) -> None:
        """The id of a Responses item is the message's, which rendering hands back to the API."""
        with tape.open(":memory:") as store:
            load(store, DATA / "openai-responses.json")
            chat = store.get("openai-responses")
            assert [message.id for message in chat.messages()][2:] == ["rs_1", "fc_1"]
            assert chat.messages()[0].role == "system"

    def test_a_system_prompt_is_the_first_message(self) -> None:
        """Anthropic's system prompt is kept as it was, and rendered as one."""
        with tape.open(":memory:") as store:
            load(store, DATA / "anthropic.json")
            chat = store.get("anthropic")
            assert chat.messages()[0].content[0]["cache_control"] == {"type": "ephemeral"}
            assert chat.context().to_anthropic()["system"] == "Be brief."
            assert chat.usage().input_tokens == 205

    def test_langchain_messages_become_chat_messages(self) -> None:
        """Roles and tool calls are those of chat messages; every other field is in the meta."""
        with tape.open(":memory:") as store:
            load(store, DATA / "langgraph-dumps.json")
            chat = store.get("langgraph-dumps")
            assert [message.role for message in chat.messages()] == ["system", "user", "assistant", "tool", "assistant"]
            assert chat.message("run-1").data["tool_calls"][0]["function"]["arguments"] == '{"city":"Lisbon"}'
            metas = {entry.key: entry.meta for entry in chat.entries(kinds=["append"])}
            assert [meta["artifact"] for meta in metas.values() if meta and "artifact" in meta] == [{"raw": 24}]
            assert chat.usage().cached_tokens == 10

    def test_a_history_of_states_is_one_tape(self) -> None:
        """Snapshots are read from the oldest; a message that was replaced is a branch, and its id stays the first's."""
        with tape.open(":memory:") as store:
            load(store, DATA / "langgraph-history.json")
            chat = store.get("thread-7")
            assert texts(chat) == ["Hello", "Hi there."]
            assert [head.text for head in chat.heads()] == ["Hi.", "Hi there."]
            assert chat.message("a1").text == "Hi."
            kept = [entry.meta["id"] for entry in chat.entries(kinds=["append"]) if entry.meta and "id" in entry.meta]
            assert kept == ["a1"]


class TestStore:
    def test_progress_is_told_over_both_readings(self, tmp_path: Path) -> None:
        """Progress only grows, and ends at the whole."""
        file = tmp_path / "long.jsonl"
        record = {"role": "user", "content": "x" * 1000}
        file.write_text("".join(json.dumps({**record, "n": n}) + "\n" for n in range(1000)))
        told: list[tuple[int, int]] = []
        with tape.open(":memory:") as store:
            import_transcript(store, "openai", file, progress=lambda done, total: told.append((done, total)))
        size = file.stat().st_size
        assert told == sorted(told)
        assert told[-1] == (2 * size, 2 * size)
        assert len(told) >= 6

    def test_one_owners_store(self, backend: Backend) -> None:
        """What a scoped store imports is its owner's; another owner's tape is not there, and cannot be written to."""
        store = backend.open()
        load(store.scoped("ann"), DATA / "claude-code.jsonl")
        assert {info.owner for info in store.list().items} == {"ann"}
        with pytest.raises(tape.TapeNotFound):
            load(store.scoped("bob"), DATA / "claude-code.jsonl")

    def test_in_a_callers_transaction(self, backend: Backend) -> None:
        """Bound to a connection, an import is undone with the caller's own rows, or kept with them."""
        store, engine = backend.open(), backend.engine()
        with engine.connect() as connection:
            load(store.bind(connection), DATA / "claude-code.jsonl")
            connection.rollback()
        assert store.list().items == []
        with engine.begin() as connection:
            load(store.bind(connection), DATA / "claude-code.jsonl")
        assert len(store.list().items) == 2
        assert store.verify().ok
        engine.dispose()

    def test_the_store_goes_on(self, quick: Backend) -> None:
        """Tapes that were written to before an import are written to after it, by the same store."""
        store = quick.open()
        chat = store.tape(SESSION)
        chat.append(role="user", content="before")
        load(store, DATA / "claude-code.jsonl", tape=SESSION)
        chat.append(role="user", content="after")
        store.tape("other").append(role="user", content="else")
        assert texts(chat)[-2:] == ["Done.", "after"]
        assert store.verify().ok

    def test_a_lost_reply_is_settled(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        """The commit succeeds but the reply is lost: the store looks, and tells what the import did."""
        from tape.db.engine.failures import Lost

        store = backend.open()
        real, calls = store._db.transact, []

        def transact(work: Any) -> Any:
            result = real(work)
            calls.append(result)
            if len(calls) == 1:
                raise Lost("the reply")
            return result

        monkeypatch.setattr(store._db, "transact", transact)
        done = load(store, DATA / "claude-code.jsonl")
        assert ([one.added for one in done], len(calls)) == ([36, 3], 2)
        assert store.verify().ok
        assert [one.added for one in load(store, DATA / "claude-code.jsonl")] == [0, 0]

    def test_a_reader_sees_all_or_nothing(self, backend: Backend) -> None:
        """While an import is under way, another store sees none of it."""
        store, other = backend.open(), backend.open()
        seen: list[int] = []
        load(store, DATA / "codex.jsonl", progress=lambda done, total: seen.append(len(other.list().items)))
        assert set(seen) == {0}
        assert len(other.list().items) == 1

    def test_imports_at_the_same_time(self, backend: Backend) -> None:
        """Four that import one session at once: one writes it, and the others find it."""
        store = backend.open()
        with ThreadPoolExecutor(4) as pool:
            done = list(pool.map(lambda _: load(store, DATA / "claude-code.jsonl"), range(4)))
        assert sorted(one[0].added > 0 for one in done) == [False, False, False, True]
        assert len({one[0].added + one[0].known for one in done}) == 1
        assert store.verify().ok

    def test_engines_agree(self, standing: Backend) -> None:
        """Both engines hold the same entries of every transcript."""
        store = standing.open(owner="everything")
        with tape.open(":memory:") as other:
            for file in FILES:
                load(store, file)
                load(other, file)
            assert everything(store) == everything(other)
