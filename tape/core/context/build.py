"""Context: from the effective view to what a model is shown. Pure: the same view and policy give the same context.

A policy decides what is left out when a budget is to be held. The manifest says what is in, what is out and why, and
can be recorded, so that what a model saw can be rebuilt later byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any, TypeVar

from msgspec import Struct

from tape.core.context.explain import Explanation
from tape.core.context.fenced import checkpoint
from tape.core.context.manifest import Manifest, Repair, altered, included, joined, repairs_of
from tape.core.context.policy import STANDARD, Excluded, Item, Policy, Shaped, Standard, check_policy, tokens_of
from tape.core.context.weigh import Scale, Weighed
from tape.core.memory.prices import Prices
from tape.core.messages import shapes
from tape.core.messages.tokens import MESSAGE_TOKENS, Counter
from tape.core.plan.intents import canonical
from tape.core.records import Anchor, Message
from tape.core.render import requests
from tape.core.strict import MAX_INT
from tape.core.summaries.compaction import Summary, newest_summary
from tape.errors import BudgetExceeded, InvalidEntry
from tape.errors.base import shown

__all__ = ["LISTENERS", "Context", "ContextInputs", "Listener", "build", "check_budget", "fixed_cost"]


class ContextInputs(Struct):
    """What the builder starts from: the latest anchor, and everything after it on the path."""

    items: list[Item]
    anchor: Anchor | None
    summaries: list[Summary]
    excluded: list[Excluded]
    prompt: str | None
    prompt_stale: bool
    head: int
    tape: str
    gap: int | None = None
    """Where in the items older messages are missing that were not read, since they cannot fit the budget."""
    partial: bool = False
    """Whether there are messages before the items that were not read, whatever they are."""
    one_turn: bool = False
    """Whether all items are of the last turn, which does not fit the budget by itself."""
    scale: Scale | None = None
    """What the items were weighed with when it was decided how much to read."""
    checkpoint: str | None = None
    """What the anchor told the model, if that was recorded; otherwise it is rendered from the anchor."""
    documents: str = ""
    """What is loaded from the providers of blocks, as it is shown."""
    fixed: int | None = None
    """What costs the same whatever is left out, once that was counted."""
    view: int = 0
    """The last entry that changed what is shown."""
    branch: str | None = None
    """The message that the caller named as the end of the branch."""
    model: str | None = None
    tools: str | None = None
    """A digest of the tools that the request offers."""

    def checkpoint_text(self) -> str:
        """Return what the anchor tells the model: as it was recorded, or as it stands."""
        if self.checkpoint is None:
            self.checkpoint = checkpoint(self.anchor) if self.anchor is not None else ""
        return self.checkpoint


Rendered = TypeVar("Rendered")
Listener = Callable[["Context", str, Any], None]
"""Is given a recorded context, the name of an API, and the request for it."""

LISTENERS: ContextVar[tuple[Listener, ...]] = ContextVar("tape_context_listeners", default=())
"""The runs that are being recorded in this thread or task: a request that equals a context is stored as a pointer."""


class Context:
    """What a model sees next. Build one with ``tape.context()``."""

    def __init__(
        self,
        inputs: ContextInputs,
        shaped: Shaped,
        policy: Policy,
        budget: int | None,
        scale: Scale,
        weighed: Weighed | None = None,
    ) -> None:
        self.messages: list[Message] = [item.message for item in shaped.items]
        """The messages after the latest anchor, with summaries in the place of what they cover."""
        self.anchor = inputs.anchor
        """The latest anchor or handoff on the path, with its state."""
        self.summaries = inputs.summaries
        """The summaries in force."""
        self.prompt = inputs.prompt
        """The frozen prompt, or the one rendered from the blocks now; None without blocks."""
        self.prompt_stale = inputs.prompt_stale
        """Whether the block configuration changed since the prompt was frozen."""
        self.head = inputs.head
        """The ``expected_head`` of a write that answers it: the tape's head when this was built.

        Of a recorded context it is the entry of the record, unless someone else wrote in between.
        """
        self.documents = inputs.documents
        """What is loaded from the providers of blocks, as the model is shown it after the prompt; empty for nothing."""
        self.view = inputs.view
        """The ``expected_view`` of a write that answers it: the last entry that had changed what is shown here.

        What changes nothing of that (events, usage, labels, the record of this context) does not stand in its way.
        """
        self._checkpoint = inputs.checkpoint_text()
        self._inputs = inputs
        self._shaped = shaped
        self._policy = policy
        self._budget = budget
        self._scale = scale
        self._weighed = weighed
        """The messages as they were weighed, if all that was weighed is shown."""
        self._tokens: int | None = None
        self._repairs: list[Repair] | None = None
        self._manifest: Manifest | None = None
        self._recorded: int | None = None
        """The entry that records it, if it was recorded."""
        self._store: object = None
        """The database that this entry is in."""
        self._listeners: tuple[Listener, ...] = ()
        self._explain: Callable[..., Explanation] | None = None

    def __repr__(self) -> str:
        return f"<tape.Context of {self._inputs.tape!r}: {len(self.messages)} messages, {self.tokens} tokens>"

    def _repr_html_(self) -> str:
        """Return it as notebooks show it."""
        from tape.web.report.notebook import context_frame

        return context_frame(self)

    @property
    def tokens(self) -> int:
        """About how many tokens all of it takes in the rendering that takes most, tool schemas not counted."""
        if self._tokens is None:
            weighed, counted = self._weighed or self._scale.weigh(self._shaped.items), self._scale.counted
            self._tokens = sum(weighed.weights) + fixed_cost(self._inputs, counted)
            if not self._checkpoint and not self.documents and weighed.begins_with_assistant():
                self._tokens += counted(requests.CONTINUED) + MESSAGE_TOKENS
        return self._tokens

    @property
    def repairs(self) -> list[Repair]:
        """What the rendered output mends: results and calls without each other, reused ids, parts an API refuses."""
        if self._repairs is None:
            self._repairs = repairs_of(self._shaped.items)
        return self._repairs

    @property
    def summary(self) -> Summary | None:
        """The newest summary in force."""
        return newest_summary(self.summaries)

    @property
    def manifest(self) -> Manifest:
        """What is in, what is out and why, and a hash of it."""
        if self._manifest is None:
            self._manifest = self._make_manifest()
        return self._manifest

    def _make_manifest(self) -> Manifest:
        inputs, policy, anchor = self._inputs, self._policy, self._inputs.anchor
        shown = included(self._shaped.items)
        began = (anchor.tape, anchor.seq) if anchor is not None else None
        hashed = [policy.name, policy.version, self._budget, began, self._checkpoint, self.prompt, shown]
        if self.documents:
            hashed.append(self.documents)
        return Manifest(
            tape=inputs.tape,
            head=inputs.head,
            policy=policy.name,
            version=policy.version,
            budget=self._budget,
            anchor=began,
            prompt=self.prompt,
            included=shown,
            excluded=joined([*inputs.excluded, *self._shaped.excluded]),
            repairs=self.repairs,
            tokens=self.tokens,
            hash=blake2b(canonical(hashed), digest_size=32).hexdigest(),
            checkpoint=self._checkpoint,
            stale=anchor is not None and anchor.stale,
            documents=self.documents,
            altered=altered(self._shaped.items),
            branch=inputs.branch,
            model=inputs.model,
            tools=inputs.tools,
        )

    def explain(self, *, against: int | None = None, api: str = "chat", prices: Prices | None = None) -> Explanation:
        """Return what each part of it comes from, what is out and why, and what moved since the context before.

        That is the one recorded last on the tape, or at the seq ``against``; see ``Snapshot.explain``. It reads the
        tape, so on an async store ``await chat.explain(context)`` instead. Raises InvalidEntry for a context that was
        not built by a tape.
        """
        if self._explain is None:
            raise InvalidEntry("context", "must be built by context() of a tape to be explained")
        return self._explain(self, against=against, api=api, prices=prices)

    def _neutral(self) -> list[shapes.Neutral]:
        neutrals = [shapes.read(message.data) for message in self.messages]
        before = [text for text in (self.documents, self._checkpoint) if text]
        return [*(shapes.Neutral("user", [shapes.Text(text)]) for text in before), *neutrals]

    def to_openai(self, api: str = "chat") -> Any:
        """Return a request for OpenAI: a list of chat messages, or with ``api="responses"`` a dict of parameters.

        Every part is there in the API's own shape, or a mark in the text tells what it was and why it is not shown.
        """
        if api == "chat":
            return self._tell(api, requests.to_chat(self.prompt, self._neutral()))
        if api == "responses":
            return self._tell(api, requests.to_responses(self.prompt, self._neutral()))
        raise InvalidEntry("api", f"must be 'chat' or 'responses', not {shown(api)}")

    def to_anthropic(self) -> dict[str, Any]:
        """Return ``system`` and ``messages`` of a request to Anthropic.

        Every part is there in the API's own shape, or a mark in the text tells what it was and why it is not shown.
        """
        return self._tell("anthropic", requests.to_anthropic(self.prompt, self._neutral()))

    def _tell(self, api: str, request: Rendered) -> Rendered:
        """Tell the runs that are being recorded what this was rendered to, if they can find it again."""
        if self._recorded is not None:
            for listener in {*self._listeners, *LISTENERS.get()}:
                listener(self, api, request)
        return request


def check_budget(budget: int | None) -> None:
    """Refuse a budget that is no number of tokens."""
    if budget is not None and (type(budget) is not int or not 0 < budget <= MAX_INT):
        raise InvalidEntry("budget", f"must be a positive number of tokens, not {shown(budget)}")


def build(inputs: ContextInputs, budget: int | None, policy: Policy | None, counter: Counter | None) -> Context:
    """Return the context of what was read; raises BudgetExceeded rather than return more than the budget."""
    chosen: Policy = STANDARD if policy is None else check_policy(policy)
    scale = inputs.scale or Scale(counter)
    if budget is None and policy is None:
        # Nothing has to be counted unless somebody asks how much it is.
        shaped = chosen.shape(list(inputs.items), None, lambda message: scale.alone(message.data))
        return Context(inputs, shaped, chosen, None, scale)
    # What is counted is what is rendered: a call without a result costs the mark that answers it, too.
    weighed = scale.weigh(inputs.items)
    extra: dict[str, int] = {}
    for item, weight in zip(inputs.items, weighed.weights, strict=True):
        item.tokens = weight
    if weighed.mended is not None:
        for item, reading in zip(inputs.items, weighed.readings, strict=True):
            if item.tokens > reading.alone:
                extra[item.message.id] = item.tokens - reading.alone

    def cost(message: Message) -> int:
        return scale.alone(message.data) + extra.get(message.id, 0)

    fixed = fixed_cost(inputs, scale.counted)
    left = None if budget is None else budget - fixed
    most: int | None = None
    while True:
        if budget is not None and left is not None and left < 0:
            raise BudgetExceeded(budget, most or fixed)
        items = list(inputs.items)
        try:
            if inputs.gap is not None and isinstance(chosen, Standard):
                shaped = chosen.shape(items, left, cost, inputs.gap, inputs.one_turn)
            else:
                shaped = chosen.shape(items, left, cost)
        except BudgetExceeded as error:
            # With what was set aside for words that no message has.
            raise BudgetExceeded(budget or 0, error.tokens + (budget or 0) - (left or 0)) from None
        whole = shaped.items is items and type(chosen) is Standard
        context = Context(inputs, shaped, chosen, budget, scale, weighed if whole else None)
        if budget is None or context.tokens <= budget:
            return context
        if most is not None and context.tokens >= most:
            raise BudgetExceeded(budget, context.tokens)
        # Rarely what is left needs a word more than its messages cost, such as a user's in front of an assistant. The
        # policy has to give up a little more, until it fits.
        most = context.tokens
        left = tokens_of(shaped.items) - 1


def fixed_cost(inputs: ContextInputs, count: Counter) -> int:
    """Return the tokens of what is always shown: the prompt, the loaded documents and the checkpoint."""
    if inputs.fixed is None:
        always = (inputs.prompt, inputs.documents, inputs.checkpoint_text())
        inputs.fixed = sum([count(text) + MESSAGE_TOKENS for text in always if text])
    return inputs.fixed
