"""Addresses: how tapes and places on them are written, the same for every command that reads, on both engines."""

from __future__ import annotations

import pytest
from support.shell import Shell, family, tape_command

import tape
from tape.command.addresses import find_tape, read_address, suggest
from tape.command.exit_codes import Failure


@pytest.fixture
def many(store: tape.Store) -> tape.Store:
    """A store with tapes whose ids and names are alike."""
    chat = family(store)
    assert chat.id == "chat"
    for id, name in [("run", "Fix the login"), ("run:12", None), ("mail@work", "Mail"), ("01ab-first", "Fix it")]:
        store.create(id, name=name).append(role="user", content="x", id="m")
    store.get("01ab-first").fork("01ab-first/agent-1").fork("01ab-first/agent-1/b")
    store.create("01cd-second", name="Zweite Frage")
    return store


class TestTapes:
    @pytest.mark.parametrize(
        ("named", "id"),
        [
            ("chat", "chat"),
            ("cha", "chat"),
            ("c", "chat"),
            ("Lisbon", "chat"),
            ("01a", "01ab-first"),
            ("01ab-first/", "01ab-first/agent-1"),
            ("..agent-1/b", "01ab-first/agent-1/b"),
            ("..second", "01cd-second"),
            ("Fix the login", "run"),
            ("fix the", "run"),
            ("frage", "01cd-second"),
        ],
    )
    def test_is_found_by(self, many: tape.Store, named: str, id: str) -> None:
        """A tape is found by its id, how that begins or ends, its name, or a part of it; a parent before its forks."""
        assert find_tape(many, named).id == id

    def test_an_ambiguous_prefix_is_refused(self, many: tape.Store) -> None:
        """The error for a prefix of two unrelated tapes names both; one that matches none is not found."""
        with pytest.raises(Failure, match=r"^'01' matches 2 tapes: 01cd-second, 01ab-first$"):
            find_tape(many, "01")
        with pytest.raises(tape.TapeNotFound):
            find_tape(many, "nobody")
        with pytest.raises(tape.InvalidEntry):
            find_tape(many, "")

    def test_a_prefix_is_no_pattern(self, store: tape.Store) -> None:
        """The characters of a pattern stand for themselves, and the last of all characters is one."""
        for id in ("a%b", "a_b", "axb", "a\U0010ffff"):
            store.create(id)
        assert [info.id for info in store.list(prefix="a%")] == ["a%b"]
        assert [info.id for info in store.list(prefix="a_")] == ["a_b"]
        assert {info.id for info in store.list(prefix="a")} >= {"a%b", "a_b", "axb"}

    def test_a_tape_that_thousands_came_after_is_found(self, store: tape.Store) -> None:
        """By the beginning of its id, however many are newer."""
        store.create("old-one", name="The first of all")

        def more(inside: tape.Store) -> None:
            for number in range(1_050):
                inside.create(f"new-{number}")

        store.transaction(more)
        assert find_tape(store, "ol").id == find_tape(store, "The first of all").id == "old-one"

    def test_another_owners_tape_is_not_found(self, store: tape.Store) -> None:
        """A store of one owner finds none of another's, by whatever is written."""
        store.create("hers", owner="her", name="Hers")
        for named in ("hers", "he", "Hers", "..ers"):
            with pytest.raises(tape.TapeNotFound):
                find_tape(store.scoped("him"), named)


class TestPlaces:
    @pytest.mark.parametrize(
        ("written", "id", "point"),
        [
            ("chat", "chat", None),
            ("chat:7", "chat", "7"),
            ("chat@7", "chat", "7"),
            ("cha@booking", "chat", "booking"),
            ("Lisbon:7", "chat", "7"),
            ("run:12", "run:12", None),
            ("run:1", "run", "1"),
            ("run:12:1", "run:12", "1"),
            ("mail@work", "mail@work", None),
            ("mail@work@1", "mail@work", "1"),
            ("chat@2026-03-01T09:30", "chat", "2026-03-01T09:30"),
        ],
    )
    def test_a_place(self, many: tape.Store, written: str, id: str, point: str | None) -> None:
        """A tape of exactly that id comes first, whatever characters it has; then a place on one."""
        found = read_address(many, written)
        assert (found.chat.id, found.point) == (id, point)

    def test_beside_another(self, many: tape.Store) -> None:
        """Beside a tape, a point alone is one of it."""
        chat = many.get("chat")
        assert [read_address(many, written, chat) for written in (":7", "@booking")] == [
            (chat, "7"),
            (chat, "booking"),
        ]

    def test_completion(self, many: tape.Store) -> None:
        """What is typed is completed to ids and names, and behind @ to anchors."""
        assert suggest(many, "ch") == ["chat"]
        assert suggest(many, "Lis") == ["Lisbon"]
        assert suggest(many, "chat@b") == ["chat@booking"]
        assert suggest(many, "nobody@") == []


@pytest.mark.alike
class TestCommands:
    @pytest.mark.parametrize("written", ["chat:8", "chat@8", "Lisbon:8", "ch@8"])
    def test_every_reading_command_takes_it(self, shell: Shell, written: str) -> None:
        """One address means one place, whichever command is given it, and however it is written."""
        assert shell("show", written, "--json").json == shell("show", "chat", "8", "--json").json
        assert shell("cat", written, "--json").json == shell("cat", "chat", "--at", "8", "--json").json
        assert shell("context", written, "--json").json == shell("context", "chat", "--at", "8", "--json").json
        assert shell("tree", written, "--json").json == shell("tree", "chat", "--at", "8", "--json").json
        assert shell("anchors", written, "--json").json == []
        assert shell("replay", written, "--json").json == shell("replay", "chat", "--at", "8", "--json").json
        assert [entry["seq"] for entry in shell("log", written, "--json").json] == list(range(8, 0, -1))
        assert shell("info", written, "--json").json["id"] == "chat"
        assert shell("diff", written, "--json").json == shell("diff", "chat@8", "chat", "--json").json

    def test_what_is_printed_can_be_pasted_back(self, shell: Shell) -> None:
        """Addresses in logs, searches, graphs and lists lead to what they stood beside."""
        for line in shell("search", "night train").lines:
            where = line.split(" ")[0]
            assert shell("show", where, "--json").json["seq"] == int(where.rpartition(":")[2])
        for line in shell("log", "chat", "--graph").lines:
            places = [word for word in line.split() if ":" in word and word[0].isalpha()] if "*" in line else []
            assert [shell("show", place).code for place in places[:1]] == [0] * len(places[:1])
        assert [shell("info", line.split()[0]).code for line in shell("ls").lines[1:]] == [0] * 4
        heading = shell("log", "chat", "-n", "1").lines[0].split()[1]
        assert shell("show", heading).lines[0].split()[1] == heading

    def test_show_without_a_place_is_the_head(self, shell: Shell) -> None:
        """show is about the last entry, that of an anchor, or that of a message."""
        seqs = [shell("show", where, "--json").json["seq"] for where in ("chat", "chat@booking", "chat@m", "chat@ask")]
        assert seqs == [13, 13, 7, 2]

    def test_diff_of_one_point_is_against_now(self, shell: Shell) -> None:
        """A point alone is compared with the tape as it is; a tape alone is compared with nothing."""
        assert shell("diff", "chat@7").lines[2:] == [
            "~ 7 user: By {+night +}train, please.",
            "+ 10 assistant: The night train has berths.",
            "@ booking: Night train; hotel open.",
        ]
        assert shell("diff", "chat").code == 2
        assert shell("cat", "chat@7", "--at", "8").code == 2

    def test_a_fork_that_already_exists_is_noted(self, shell: Shell) -> None:
        """A repeated fork returns the same tape, and a note says that it already existed."""
        before = shell("fork", "chat@8", "--id", "what-if")
        again = shell("fork", "chat@8", "--id", "what-if")
        assert (before.out, before.err) == (again.out, "") == ("what-if\n", "")
        assert again.err == "the fork already existed, with 1 entry\n"

    def test_help(self) -> None:
        """help shows what --help does, of one command or of all."""
        assert tape_command("help", "log").out == tape_command("log", "--help").out
        assert tape_command("help").out.split() == tape_command("--help").out.split()
        done = tape_command("help", "nonsense")
        assert (done.code, done.err) == (2, "tape: unknown command 'nonsense'; see: tape help\n")
