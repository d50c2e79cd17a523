"""Values of a type, when several threads want the first of them at one moment."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from tape.core import typed

PATIENCE = 60.0


def test_e1_a_class_is_looked_at_by_one_thread_at_a_time() -> None:
    """Whoever comes second waits: reading with what the first has found out so far would crash the process."""
    looking, go_on = threading.Event(), threading.Event()

    def looked_at() -> type[int]:
        looking.set()
        assert go_on.wait(PATIENCE)
        return int

    # Annotations that are text are evaluated in the module that a class says it is of.
    globals()["looked_at"] = looked_at
    inner = msgspec.defstruct("Inner", [("number", "looked_at()")], module=__name__)
    kind: Any = msgspec.defstruct("Outer", [("inner", inner)])
    raw, data = b'{"inner":{"number":1}}', {"inner": {"number": 1}}
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(typed.decode, raw, kind)
        assert looking.wait(PATIENCE)
        second = threads.submit(typed.decoder, kind)
        try:
            with pytest.raises(TimeoutError):
                second.result(0.2)
        finally:
            go_on.set()
        value = first.result(PATIENCE)
        assert value == second.result(PATIENCE).decode(raw) == typed.convert(data, kind)
