"""The full-screen stepper in a terminal: keys go in, frames come out. All else is in the other modules."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from typing import Any

import tape
from tape.command.stepping.frame import frame
from tape.command.stepping.reading import Reading
from tape.command.stepping.steps import Steps

__all__ = ["can_run", "run"]

_STYLES = {
    "seq": "ansiyellow",
    "kind": "ansicyan",
    "head": "bold",
    "quiet": "ansibrightblack",
    "bad": "ansired",
    "warn": "ansiyellow",
    "add": "ansigreen",
    "remove": "ansired",
    "change": "ansimagenta",
    "thinking": "italic ansibrightblack",
    "added": "ansigreen",
    "removed": "ansired strike",
    "bar": "reverse",
    "here": "reverse",
}
_NAMED = ("up", "down", "pageup", "pagedown", "home", "end", "tab", "enter", "escape", "backspace")


def can_run() -> bool:
    """Whether there is a terminal to run in, and the package that draws on it."""
    ends = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return ends and importlib.util.find_spec("prompt_toolkit") is not None


def run(chat: tape.Tape, first: int, last: int, at: int | None, *, color: bool) -> None:
    """Step through a tape until the reader leaves. Raises KeyboardInterrupt for Ctrl-C."""
    from prompt_toolkit.application import Application
    from prompt_toolkit.layout import FormattedTextControl, Layout, Window
    from prompt_toolkit.output import ColorDepth
    from prompt_toolkit.styles import Style

    steps = Steps(Reading(chat, color=color), first, last, at)

    def drawn() -> Any:
        size = application.output.get_size()
        rows = frame(steps, size.columns, size.rows)
        cells = [[(f"class:{style}" if style else "", text) for text, style in row] for row in rows]
        return [cell for row in cells for cell in [*row, ("", "\n")]][:-1]

    application: Application[None] = Application(
        layout=Layout(Window(FormattedTextControl(drawn, show_cursor=False), wrap_lines=False)),
        key_bindings=_bindings(steps),
        full_screen=True,
        style=Style.from_dict(_STYLES),
        color_depth=None if color else ColorDepth.DEPTH_1_BIT,
    )
    application.ttimeoutlen = 0.05
    application.run()


def _bindings(steps: Steps) -> Any:
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.keys import Keys

    bindings = KeyBindings()

    def pressed(event: Any, key: str) -> None:
        steps.press(key)
        if steps.done:
            event.app.exit()
        elif steps.searching:
            event.app.create_background_task(_search(steps, event.app))

    for name in _NAMED:
        bindings.add(name, eager=name != "escape")(lambda event, name=name: pressed(event, name))

    @bindings.add(Keys.Any)
    def _(event: Any) -> None:
        for char in event.data:
            pressed(event, char)

    @bindings.add("c-c")
    def _(event: Any) -> None:
        event.app.exit(exception=KeyboardInterrupt)

    @bindings.add("c-d")
    def _(event: Any) -> None:
        event.app.exit()

    return bindings


async def _search(steps: Steps, application: Any) -> None:
    """Search page by page, and yield to the event loop after each page for keys and drawing."""
    while steps.searching:
        steps.advance()
        application.invalidate()
        await asyncio.sleep(0)
