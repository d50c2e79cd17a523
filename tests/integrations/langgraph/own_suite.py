"""LangGraph's own tests, with TapeSaver where they use the savers for SQLite.

Unpack the source distribution of ``langgraph``, install what its tests need, and run there::

    NO_DOCKER=true PYTHONPATH=…/tests python -m pytest -p integrations.langgraph.own_suite tests -k sqlite
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

import tape
from tape.integrations.langgraph import TapeSaver

_folder = tempfile.TemporaryDirectory()
_empty = Path(_folder.name) / "empty.db"
_numbers = itertools.count()
tape.open(_empty).close()


@contextmanager
def _saver(_: str) -> Iterator[TapeSaver]:
    path = shutil.copy(_empty, _empty.with_name(f"{next(_numbers)}.db"))
    saver = TapeSaver(path)
    yield saver
    saver.close()


@asynccontextmanager
async def _async_saver(name: str) -> AsyncIterator[TapeSaver]:
    with _saver(name) as saver:
        yield saver


SqliteSaver.from_conn_string = staticmethod(_saver)
AsyncSqliteSaver.from_conn_string = staticmethod(_async_saver)
