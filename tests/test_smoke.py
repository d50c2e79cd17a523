from __future__ import annotations

import tape


def test_smoke(chat: tape.Tape) -> None:
    chat.append(role="user", content="hello")
    assert [m.content for m in chat.messages()] == ["hello"]
    assert chat.verify().ok
