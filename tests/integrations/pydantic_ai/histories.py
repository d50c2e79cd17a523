"""Messages of Pydantic AI by chance, and a store of its that is asked beside ours: both have to answer alike."""

from __future__ import annotations

import itertools
import random
from collections.abc import Awaitable, Callable
from copy import deepcopy
from typing import Any

import pytest
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationStore,
    InMemoryConversationStore,
)
from pydantic_ai.messages import (
    BinaryContent,
    DocumentUrl,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryFeedbackPart,
    RetryInfo,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.usage import RequestUsage, RunUsage

__all__ = ["Beside", "message"]

SCOPES = (None, "ann", "bob", "")
KINDS = ("begin", *["go"] * 3, "rewrite", "stale", *["branch"] * 2, *["fork"] * 2, "delete", "list", "read", "look")
WORDS = ("lisbon", "train", "宿", "\N{SMILING FACE WITH SMILING EYES}", "half \ud83d of one", "")


def message(pick: random.Random) -> ModelMessage:
    """Return a request or a response with one to three parts of any kind."""
    word = " ".join(pick.choices(WORDS, k=pick.randint(1, 3)))
    call = f"call-{pick.randint(0, 5)}"
    paper = BinaryContent(b"%PDF" + word.encode("utf-8", "replace"), media_type="application/pdf")
    asked: list[Callable[[], Any]] = [
        lambda: UserPromptPart(word),
        lambda: UserPromptPart([word, ImageUrl("https://example.com/a.png"), paper, DocumentUrl("https://a.b/c.pdf")]),
        lambda: UserPromptPart([]),
        lambda: SystemPromptPart(word, dynamic_ref="r"),
        lambda: ToolReturnPart("look", {"found": [word, None, 1.5]}, call, metadata={"kept": None}),
        lambda: ToolReturnPart("look", None, call, outcome="failed"),
        lambda: ToolReturnPart("look", word, call, outcome="retried"),
        lambda: RetryFeedbackPart(
            [{"type": "missing", "loc": ("a", 0), "msg": word, "input": None}],
            retry=RetryInfo(cause="validation_error"),
        ),
    ]
    told: list[Callable[[], Any]] = [
        lambda: TextPart(word, id="m1", provider_name="p"),
        lambda: TextPart(word),
        lambda: ThinkingPart(word, signature="s"),
        lambda: ToolCallPart("look", {"at": word, "n": None}, call),
        lambda: ToolCallPart("look", f'{{"at": "{call}"}}', call),
        lambda: ToolCallPart("look", None, call),
        lambda: FilePart(paper),
    ]
    if pick.random() < 0.5:
        return ModelRequest(
            parts=[make() for make in pick.choices(asked, k=pick.randint(1, 3))],
            instructions=pick.choice((None, word)),
            metadata=pick.choice((None, {"a": None, "b": [1]})),
        )
    return ModelResponse(
        parts=[make() for make in pick.choices(told, k=pick.randint(0, 3))],
        usage=RequestUsage(input_tokens=pick.randint(0, 9), output_tokens=pick.randint(0, 9), details={"x": 1}),
        model_name=pick.choice((None, "scripted")),
        finish_reason=pick.choice((None, "stop")),
    )


class Beside:
    """One of Pydantic AI's own stores and one of ours, given the same calls."""

    def __init__(self, make: Callable[[], ConversationStore], pick: random.Random, patch: pytest.MonkeyPatch) -> None:
        self._make = make
        self._pick = pick
        self._stores: list[ConversationStore] = [InMemoryConversationStore(), make()]
        self._ids = itertools.count()
        self._kept: list[tuple[Conversation, Conversation]] = []
        self._entries: list[str] = ["nowhere"]
        self._prefix, self._named = "id", 0
        # Both give their entries and revisions the same names.
        patch.setattr("pydantic_ai.conversation_store.uuid7", self._name)

    def _name(self) -> str:
        self._named += 1
        return f"{self._prefix}-{self._named:03d}"

    async def both(self, ask: Callable[[ConversationStore, int], Awaitable[Any]]) -> list[Any]:
        """Ask both stores, and hold them to the same answer or the same error."""
        self._prefix = f"id-{next(self._ids)}"
        answers: list[Any] = []
        for which, store in enumerate(self._stores):
            self._named = 0
            try:
                answers.append(await ask(store, which))
            except (ConversationConflict, ValueError, LookupError, RuntimeError) as error:
                answers.append((type(error), str(error)))
        assert plain(answers[1]) == plain(answers[0]), f"{answers[1]}\n\nand not\n\n{answers[0]}"
        return answers

    async def call(self) -> str:
        """Make one call of chance; returns its name."""
        if self._pick.random() < 0.1:
            self._stores[1] = self._make()
        name = self._pick.choice(KINDS)
        await getattr(self, f"_{name}")()
        return name

    @property
    def _some(self) -> str:
        return f"chat-{self._pick.randint(0, 5)}"

    @property
    def _entry(self) -> str:
        return self._pick.choice(self._entries[-40:])

    def _scope(self, id: str) -> str | None:
        """Return the scope of a conversation, or now and then none or a wrong one."""
        return self._pick.choice((None, None, None, scope_of(id), scope_of(id), "eve"))

    async def _saved(self, pair: tuple[Conversation, Conversation], scope: str | None) -> None:
        answers = await self.both(lambda store, which: store.save(pair[which], scope=scope))
        if isinstance(answers[0], list):
            self._entries += [entry.id for entry in answers[0]]
        self._kept.append(pair)

    async def _begin(self) -> None:
        id = self._some
        made = self._new(id, self._pick)
        await self._saved((made, deepcopy(made)), scope_of(id))

    def _new(self, id: str, pick: random.Random) -> Conversation:
        messages = [message(pick) for _ in range(pick.randint(0, 4))]
        calls = DeferredToolRequests(approvals=[ToolCallPart("look", {"at": None}, "c")], metadata={"c": {"why": "?"}})
        return Conversation(
            conversation_id=id,
            messages=messages,
            usage=RunUsage(requests=pick.randint(0, 3), input_tokens=pick.randint(0, 99)),
            deferred_tool_requests=calls if pick.random() < 0.3 else None,
        )

    async def _loaded(self, limit: int | None = None) -> tuple[Conversation, Conversation] | None:
        id = self._some
        scope = self._scope(id)
        one, two = await self.both(lambda store, _: store.load(id, limit=limit, scope=scope))
        return (one, two) if isinstance(one, Conversation) else None

    async def _go(self) -> None:
        pair = await self._loaded(self._pick.choice((None, None, 0, 1, 3)))
        if pair is None:
            return
        new = [message(self._pick) for _ in range(self._pick.randint(0, 3))]
        spent = self._pick.randint(1, 9)
        for each in pair:
            each.messages = [*each.messages, *new]
            each.usage.requests += spent
        await self._saved(pair, self._scope(pair[0].conversation_id))

    async def _rewrite(self) -> None:
        pair = await self._loaded(self._pick.choice((None, None, 4)))
        if pair is None:
            return
        at, new = self._pick.randint(0, 4), [message(self._pick) for _ in range(self._pick.randint(0, 2))]
        blind = self._pick.random() < 0.5
        for each in pair:
            each.messages = [*each.messages[:at], *new, *each.messages[at + 1 :]]
            if blind:
                each.new_message_index = None
        await self._saved(pair, None)

    async def _stale(self) -> None:
        if self._kept:
            pair = self._pick.choice(self._kept)
            await self._saved(pair, None)

    def _where(self) -> dict[str, Any]:
        at, entry = self._pick.randint(-1, 5), self._entry
        return self._pick.choice(({"at": at}, {"at": at}, {"from_entry": entry}, {"from_entry": entry}, {}))

    async def _branch(self) -> None:
        pair = await self._loaded()
        if pair is None:
            return
        id, where, scope = pair[0].conversation_id, self._where(), self._scope(pair[0].conversation_id)
        stale = self._pick.random() < 0.1
        one, two = await self.both(
            lambda store, which: store.branch(
                id, **where, expected_revision="old" if stale else pair[which].revision, scope=scope
            )
        )
        if isinstance(one, Conversation):
            self._kept.append((one, two))

    async def _fork(self) -> None:
        id, new, where = self._some, self._some, self._where()
        source = self._scope(id)
        one, two = await self.both(
            lambda store, _: store.fork(id, **where, new_conversation_id=new, scope=scope_of(new), source_scope=source)
        )
        if isinstance(one, Conversation):
            self._kept.append((one, two))

    async def _delete(self) -> None:
        id = self._some
        scope = self._scope(id)
        await self.both(lambda store, _: store.delete(id, scope=scope))

    async def _list(self) -> None:
        scope, limit = self._pick.choice(SCOPES), self._pick.choice((None, None, 0, 1, 2, 9, -1))
        await self.both(lambda store, _: store.list_conversations(scope=scope, limit=limit))

    async def _read(self) -> None:
        await self._loaded(self._pick.choice((None, 2, 0, -1)))

    async def _look(self) -> None:
        id, limit = self._some, self._pick.choice((None, 2, 0))
        await self.both(lambda store, _: store.load_entries(id, limit=limit))

    async def finish(self) -> None:
        """Compare all that is there, entry by entry, and delete it."""
        records = await self._stores[0].list_conversations()
        for record in records:
            history = (await self.both(lambda store, _, id=record.conversation_id: store.load_entries(id)))[0]  # type: ignore[misc]
            for tip in record.branches:
                history += (await self.both(lambda store, _, tip=tip: store.read_history(tip)))[0]  # type: ignore[misc]
            for entry in history:
                await self.both(lambda store, _, id=entry.id: store.read_entry(id))  # type: ignore[misc]
        self._pick.shuffle(records)
        for record in records:
            await self.both(lambda store, _, id=record.conversation_id: store.delete(id))  # type: ignore[misc]
            await self._list()


def scope_of(id: str) -> str | None:
    """Return whose a conversation is."""
    return SCOPES[int(id[-1]) % len(SCOPES)]


def plain(answer: Any) -> Any:
    """Return an answer without the time at which it was saved, which no two stores share."""
    if isinstance(answer, list):
        return [plain(each) for each in answer]
    return {**vars(answer), "updated_at": None} if hasattr(answer, "updated_at") else answer
