"""Prose that users meet: sentences of pages, and texts that the source prints or raises."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["PHRASES", "messages", "odd_phrases", "page_prose"]

# Regular expressions for turns of phrase that are rare in well-edited libraries. A hit is a symptom: rebuild the
# sentence around a subject, an ordinary verb and an object. Do not just replace the phrase.
PHRASES = (
    r"whoever",
    r"so many",
    r"by itself",
    r"to be had",
    r"beforehand",
    r"likewise",
    r"anew\b",
    r"somebody\b",
    r"nobody\b",
    r"(?:is|are|was|were) (?:said|told)\b",
    r"what (?:is|was|are|were) (?:said|told|given|asked|left|there|kept|written|read|meant)\b",
    r"what (?:comes|came|holds|makes|takes|says|tells|needs|ails|mends)\b",
    r"(?:stands?|stood) (?:in|at|on|behind|beside|there)",
    r"(?<!there )(?<!There )(?:is|are|was|were) no (?!longer|more|less|better|different|worse|need|such)",
    r"one that (?:is|was|has|had|came|comes)",
    r"at one (?:time|moment)",
    r"told apart",
    r"of (?:its|their|his) own\b",
    r"beside (?:it|them|each|the|others?)",
)
_PATTERN = re.compile(rf"\b(?:{'|'.join(PHRASES)})", re.IGNORECASE)


def odd_phrases(text: str) -> list[str]:
    """Return each listed phrase in the text with the words around it."""
    flat = " ".join(text.split())
    return [flat[max(0, hit.start() - 40) : hit.end() + 40] for hit in _PATTERN.finditer(flat)]


def page_prose(page: Path) -> str:
    """Return a Markdown page without its code blocks."""
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def messages(source: Path) -> Iterator[tuple[int, str]]:
    """Give line and text of every string in a module that a user can meet.

    These are all literals with a blank, f-strings as a whole, and the docstrings of commands, which are their help
    texts. Other docstrings are prose for readers of the source.
    """
    tree = ast.parse(source.read_text(encoding="utf-8"))
    inside: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            inside.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            inside.update(part for part in ast.walk(node) if part is not node)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(_is_command(decorator) for decorator in node.decorator_list):
            yield node.lineno, ast.get_docstring(node) or ""
        elif node in inside:
            continue
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def _is_command(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Name) and decorator.func.id == "command"
