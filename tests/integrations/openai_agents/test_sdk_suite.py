"""The SDK's own tests of sessions pass on tapes; they are fetched, so this needs a package index."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.backends import Backend

from integrations.openai_agents import sdk_suite


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return sdk_suite.fetched(tmp_path_factory.mktemp("sdk"))
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        why = f"the source of the SDK cannot be fetched: {error}"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)


@pytest.mark.blank
def test_the_sessions_of_the_sdk(backend: Backend, source: Path) -> None:
    """All cases but those that are about SQLite itself: at least 77, and 19 of the 23 of compaction."""
    store = None if backend.name == "sqlite" else backend.url.render_as_string(hide_password=False)
    count, trouble = sdk_suite.passed(source, sdk_suite.SESSIONS, store)
    assert not trouble, trouble
    assert count >= 77
    assert sdk_suite.passed(source, (sdk_suite.SUFFIX,), store) == (19, "")
