"""Retracting messages, bringing them back, and undoing a clear."""

from __future__ import annotations

from tape.core.entries import payloads
from tape.core.entries.payloads import Place, Reopened
from tape.core.plan.intents import Intent, Planned
from tape.core.plan.lookup import Lookup, known_place
from tape.core.plan.results import Changes, makes, settle
from tape.core.summaries.runs import loosen
from tape.core.view.fold import HIDDEN, Head
from tape.errors import InvalidEntry, UnknownMessage

__all__ = ["RestoreMessages", "RetractMessages"]


class RetractMessages(Intent, kw_only=True):
    """Take messages out of the view."""

    records = payloads.Retract

    ids: list[str]
    reason: str | None

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Close the messages and what answers their calls."""
        places: list[Place] = []
        marks: list[Place] = []
        changed: Changes = {}
        for message_id in self.ids:
            place, _, standing = known_place(look, message_id)
            if standing.out(head.cleared):
                raise UnknownMessage(look.tape, message_id, retracted=True)
            (places if standing.live else marks).append(place)
            changed[place] = (False, frozenset())
        hides, _ = settle(look, changed, head.cleared)
        payload = payloads.Retract(ids=self.ids, reason=self.reason, places=places, marks=marks, hides=hides)
        payload.loosens = loosen(look, outs=places + hides)
        return Planned(payload, head.place, self.ids[0] if len(self.ids) == 1 else None)


class RestoreMessages(Intent, kw_only=True):
    """Bring messages back, or undo the last clear."""

    records = payloads.Restore

    ids: list[str]

    def plan(self, head: Head, look: Lookup, previous: Place | None) -> Planned:
        """Open the last body of each message, and of the results that went with it."""
        if not self.ids:
            return Planned(self._undo(look), head.place)
        clears = look.clears()
        named: dict[Place, Reopened] = {}
        for message_id in self.ids:
            place, placed, standing = known_place(look, message_id)
            if not standing.out(head.cleared):
                why = (
                    "is not retracted"
                    if standing.live
                    else "is hidden because its tool call is; restore the call instead"
                )
                raise InvalidEntry("ids", f"message {message_id!r} {why}")
            # Under several clears a message belongs to the first that came after it.
            clear = min((seq for seq, _ in clears if seq >= standing.since), default=0) if standing.live else 0
            named[place] = Reopened(place, placed, standing.body, clear, standing.of)
        # A result named together with its call is visible if the call is, so decide calls before results.
        changed: Changes = {}
        shows: list[Reopened] = []
        marks: list[Reopened] = []
        for place, back in sorted(named.items(), key=lambda item: item[0].ordinal):
            bound = look.bindings(place, back.placed)
            if bound and not any(makes(look, changed, answer, head.cleared) for answer in bound):
                marks.append(back)
                changed[place] = (False, frozenset())
            else:
                shows.append(back)
                changed[place] = (True, frozenset(look.body(back.body, back.of).calls))
        _, more = settle(look, changed, head.cleared)
        shows += more
        # A result that a clear took and that stays hidden without its call had its row until now.
        loosens = loosen(look, outs=[back.place for back in marks if back.clear], backs=shows)
        payload = payloads.Restore(ids=self.ids, shows=shows, marks=marks, loosens=loosens)
        return Planned(payload, head.place, self.ids[0] if len(self.ids) == 1 else None)

    def _undo(self, look: Lookup) -> payloads.Restore:
        clears = look.clears()
        if not clears:
            raise InvalidEntry("ids", "there is no clear to undo; pass the ids of the messages to restore")
        clear, hidden = clears[0]
        beneath = clears[1][0] if len(clears) > 1 else 0
        # What was brought back by itself since the clear may have changed since: its results follow it. And a result
        # that was brought back without its call has waited for it.
        changed: Changes = {}
        shows: list[Reopened] = []
        for place in look.returned(clear):
            standing = look.standing(place)
            live = standing.visible(beneath)
            if not standing.live and standing.why == HIDDEN:
                live = any(makes(look, changed, answer, beneath) for answer in look.bindings(place, standing.placed))
                if live:
                    shows.append(Reopened(place, standing.placed, standing.body, 0, standing.of))
            changed[place] = (live, frozenset(look.body(standing.body, standing.of).calls if live else ()))
        hides, more = settle(look, changed, beneath)
        shows += more
        return payloads.Restore(
            ids=[],
            shows=shows,
            hides=hides,
            undoes=clear,
            returned=hidden,
            beneath=beneath,
            loosens=loosen(look, outs=hides, backs=shows, uncleared=True),
        )
