"""Claude Agent SDK: a ``SessionStore`` that mirrors every session to a tape, as a tree, with subagents as forks.

A session is a tape that belongs to its project; a subagent's transcript is a fork of it that begins empty, as the
subagent does. The lines are read as the import of Claude Code's files reads them, so that messages, anchors and usage
are there to search, fork and look at; ``load`` gives each line back as it was.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import claude_agent_sdk as sdk
from claude_agent_sdk import SessionKey, SessionStoreEntry, SessionSummaryEntry, fold_session_summary

import tape
from tape.integrations.histories import readable
from tape.integrations.opening import AsyncAdapter, StoreLike, awaited
from tape.transcripts import ClaudeMirror, claude_lines

__all__ = ["TapeSessionStore"]

_AGENT = "claude-agent"
_SUMMARY = "claude-agent.summary"
_SUBPATH = "claude-agent.subpath"
_KEPT = 64
"""How many sessions are kept in memory, so that their next lines find their place without reading the tape anew."""
_ATTEMPTS = 50


class TapeSessionStore(AsyncAdapter, sdk.SessionStore):
    """Sessions of the Claude Agent SDK on tapes: ``ClaudeAgentOptions(session_store=TapeSessionStore("agent.db"))``.

    ``store`` is a Store, an AsyncStore or a URL. Sessions of a project belong to the owner of that name, or to the
    owner of the store if it has one. A batch is written in one step, all of it or nothing; a line with a known uuid is
    written once, also when its batch is sent again. ``delete`` purges.
    """

    def __init__(self, store: StoreLike) -> None:
        super().__init__(store)
        self._mirrors: OrderedDict[str, ClaudeMirror] = OrderedDict()

    @awaited
    def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Write a batch of lines."""
        place, lines = self._place(key), list[Any](entries)
        # Known before the first try, so that another one finds what the first has written.
        keys = [f"line/{uuid4()}" for _ in lines]

        def write(store: tape.Store) -> ClaudeMirror:
            chat = store.tape(place.id)
            # Taken out for the time being: what a failed try has read must not be kept.
            mirror = self._mirrors.pop(chat.id, None)
            if mirror is None or not mirror.catch_up(chat):
                # Not known here, or deleted since.
                mirror, chat = ClaudeMirror(), place.opened(store)
                with readable(chat.id, 0):
                    mirror.catch_up(chat)
            mirror.write(chat, lines, keys)
            if place.subpath is None:
                _summarize(chat, place, lines)
            return mirror

        if lines:
            self._mirrors[place.id] = place.store.transaction(write)
            while len(self._mirrors) > _KEPT:
                self._mirrors.popitem(last=False)

    @awaited
    def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return the lines of a transcript, each as it was written, or None if there are none."""
        place = self._place(key)
        with readable(place.id, 0):
            lines: list[Any] = claude_lines(place.store.tape(place.id))
        return lines or None

    @awaited
    def list_sessions(self, project_key: str) -> list[sdk.SessionStoreListEntry]:
        """Return the sessions of a project and when each was last written to."""
        return [entry for _, entry in self._listed(project_key)]

    @awaited
    def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Return what the SDK shows of each session in a list."""
        held = ((entry, chat.state(_SUMMARY)) for chat, entry in self._listed(project_key))
        return [{**entry, "data": data} for entry, data in held if data is not None]

    @awaited
    def delete(self, key: SessionKey) -> None:
        """Purge a session with its subagents' transcripts, or one of these alone.

        Raises TapeInUse, and deletes nothing, when somebody else has forked one of them.
        """
        place = self._place(key)
        for _ in range(_ATTEMPTS):
            ids = [place.id] if place.subpath else [*(info.id for info in place.sides()), place.id]
            forks = [fork.id for id in ids for fork in place.store.tapes(parent=id) if not place.has(fork.id)]
            if forks:
                raise tape.TapeInUse(place.id, forks)
            # A subagent may have written meanwhile.
            with suppress(tape.TapeInUse):
                for id in ids:
                    with suppress(tape.TapeNotFound):
                        place.store.purge(id)
                return
        raise tape.TapeInUse(place.id, [info.id for info in place.sides()])

    @awaited
    def list_subkeys(self, key: sdk.SessionListSubkeysKey) -> list[str]:
        """Return the subpaths of a session's other transcripts."""
        place = self._place({"project_key": key["project_key"], "session_id": key["session_id"]})
        return [place.store.tape(info.id).state(_SUBPATH) for info in place.sides()]

    def _place(self, key: SessionKey) -> _Place:
        return _Place(_owned(self._connected.store, key["project_key"]), key)

    def _listed(self, project: str) -> Iterator[tuple[tape.Tape, sdk.SessionStoreListEntry]]:
        store = _owned(self._connected.store, project)
        for info in store.tapes(label=_label(project)):
            assert info.updated_at is not None, "a tape that is listed has an entry"
            session, written = (info.meta or {})[_AGENT]["session_id"], int(info.updated_at.timestamp() * 1000)
            yield store.tape(info.id), {"session_id": session, "mtime": written}


class _Place:
    """Where a transcript is kept: the store of its owner, the ids of its session's tape and of its own."""

    def __init__(self, store: tape.Store, key: SessionKey) -> None:
        self.store, self.key = store, key
        self.project: str = key["project_key"]
        self.session: str = key["session_id"]
        self.subpath: str | None = key.get("subpath") or None
        # Two projects, or two owners of stores, may have equal sessions.
        self.main = tape.as_id("claude", store.owner or "", self.project, self.session, most=200)
        self.id = self.main if self.subpath is None else tape.as_id(f"{self.main}/{quote(self.subpath, safe='')}")

    def sides(self) -> Iterator[tape.TapeInfo]:
        """Yield the transcripts of the session's subagents."""
        return self.store.tapes(label=self.main)

    def has(self, id: str) -> bool:
        """Whether a tape is that of a subagent of the session."""
        return id.startswith(f"{self.main}/")

    def opened(self, store: tape.Store) -> tape.Tape:
        """Return the tape to write to, made if it is not there."""
        labels = [_label(self.project)] if self.subpath is None else []
        meta = {_AGENT: {"project_key": self.project, "session_id": self.session}}
        main = store.create(self.main, agent=_AGENT, labels=labels, meta=meta, exists_ok=True, reuse=True)
        if self.subpath is None:
            if not set(labels) <= set(main.info().labels):
                # A subagent's transcript came first.
                main.label(*labels)
            return main
        try:
            return store.get(self.id)
        except tape.TapeNotFound:
            # The first entry only opens the session's tape: a subagent knows nothing of what was said before.
            side = main.fork(self.id, at=1, name=tape.as_id(self.subpath), reuse=True)
            side.label(main.id)
            # A fork has no meta of its own.
            side.put(_SUBPATH, self.subpath)
            return side


def _summarize(chat: tape.Tape, place: _Place, lines: list[Any]) -> None:
    """Keep what the SDK shows of a session in a list up to date."""
    before = chat.state(_SUMMARY)
    known: SessionSummaryEntry | None = None
    if before is not None:
        known = {"session_id": place.session, "mtime": 0, "data": before}
    after = fold_session_summary(known, place.key, lines)["data"]
    if after != before:
        chat.put(_SUMMARY, after)


def _owned(store: tape.Store, project: str) -> tape.Store:
    return store if store.owner is not None else store.scoped(tape.as_id(project))


def _label(project: str) -> str:
    return tape.as_id("claude-project", project)
