"""The console blocks of the pages: the commands in them are run, and must print what stands below them."""

from __future__ import annotations

import doctest
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from support.shell import Done, tape_command

__all__ = ["commands", "differs", "filled", "shown"]

FENCE = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Yield the commands of a page's console blocks in order, each with what it is said to print."""
    for block in FENCE.findall(text):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def typed(command: str) -> str:
    """Carry out a command as a shell would; returns what a terminal shows of it."""
    words = shlex.split(command)
    if words[0] == "export":
        name, _, value = words[1].partition("=")
        os.environ[name] = value
        return ""
    stdin = ""
    if words[0] == "echo":
        stdin, words = f"{words[1]}\n", words[words.index("|") + 1 :]
    assert words[0] == "tape", command
    done: Done = tape_command(*words[1:], stdin=stdin)
    return done.out + done.err


def stepped(command: str, promised: str) -> str:
    """Carry out a session of the stepper with what is typed behind its prompts; returns what a terminal shows of it."""
    prompt = re.compile(r"^(\[\d+/\d+\] )", re.M)
    lines = re.findall(r"^\[\d+/\d+\] (.*)$", promised, re.M)
    done: Done = tape_command(*shlex.split(command)[1:], stdin="".join(f"{line}\n" for line in lines))
    shown = iter(lines)
    return prompt.sub(lambda match: f"{match[1]}{next(shown)}\n", done.out) + done.err


def shown(command: str, promised: str) -> str:
    """Carry out a command of a page; returns what a terminal shows of it."""
    return stepped(command, promised) if "--step" in command else typed(command)


def differs(promised: str, printed: str) -> str | None:
    """Return how an output differs from what a page says, where ``...`` stands for anything; None if it does not."""
    checker = doctest.OutputChecker()
    if checker.check_output(promised, printed, doctest.ELLIPSIS):
        return None
    return checker.output_difference(doctest.Example("", promised), printed, doctest.REPORT_NDIFF)


def filled(page: Path) -> str:
    """Return a page with the outputs as they are now; for whoever changes a command."""
    text = page.read_text(encoding="utf-8")

    def fill(match: re.Match[str]) -> str:
        parts = [part.partition("\n") for part in re.split(r"^\$ ", match[1], flags=re.M)[1:]]
        return "```console\n" + "".join(f"$ {line}\n{shown(line, output)}" for line, _, output in parts) + "```"

    return FENCE.sub(fill, text)
