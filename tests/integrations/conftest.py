"""Leaves out the groups whose packages are not installed, and does not answer for warnings of the frameworks."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from pathlib import Path

import pytest
from support.processes import preload

from integrations.groups import group_of


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    group = group_of(f"{collection_path.as_posix()}/")
    return True if group is not None and group.lacks is not None else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return (yield)


def pytest_itemcollected(item: pytest.Item) -> None:
    if group_of(item.nodeid) is not None:
        # The one that is added last is looked at first.
        item.add_marker(pytest.mark.filterwarnings("ignore"))
        item.add_marker(pytest.mark.filterwarnings(r"error:::tape\."))


def pytest_collection_finish(session: pytest.Session) -> None:
    groups = {group.name: group for item in session.items if (group := group_of(item.nodeid)) is not None}
    # Four processes that each import a large framework take minutes for it on a busy machine.
    preload(*(name for group in groups.values() for name in group.needs))
