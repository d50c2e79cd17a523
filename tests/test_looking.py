"""The commands that look: finding tapes, reading and replaying them, as a pipe and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from support import history
from support.backends import MakeBackend
from support.shell import Shell, family

from tape.command.show.views import effect
from tape.core.entries.payloads import KINDS


class TestFinding:
    def test_ls(self, shell: Shell) -> None:
        """ls lists the newest first, as a table or as JSON, by filters, a page at a time."""
        assert [line.split()[0] for line in shell("ls").lines] == ["TAPE", "spare", "trains", "hotels", "chat"]
        found = shell("ls", "--json").json
        assert [one["id"] for one in found["tapes"]] == ["spare", "trains", "hotels", "chat"]
        assert found["cursor"] is None
        assert [one["id"] for one in shell("ls", "--label", "travel", "--json").json["tapes"]] == ["chat"]
        assert [one["id"] for one in shell("ls", "--status", "discarded", "--json").json["tapes"]] == ["spare"]
        assert len(shell("ls", "--parent", "chat", "--since", "1h", "--json").json["tapes"]) == 3
        first = shell("ls", "-n", "3", "--json").json
        rest = shell("ls", "-n", "3", "--cursor", first["cursor"], "--json").json
        assert [one["id"] for one in rest["tapes"]] == ["chat"]
        assert shell("ls", "-n", "3").err.startswith(f"next page: tape ls --cursor {first['cursor']} --store ")

    def test_info(self, shell: Shell) -> None:
        """info tells status, family and anchor."""
        found = shell("info", "chat", "--json").json
        assert (found["id"], found["name"], found["labels"], found["anchor"]["name"]) == (
            "chat",
            "Lisbon",
            ["travel"],
            "booking",
        )
        assert [one["tape"] for one in found["lineage"]["descendants"]] == ["hotels", "trains", "spare"]
        assert len(found["lineage"]["merges"]) == 2
        lines = shell("info", "hotels").lines
        assert "inherits  chat up to seq 2" in lines
        assert "status    active" in lines

    def test_a_tape_goes_by_name_or_the_beginning_of_its_id(self, shell: Shell) -> None:
        """The only tape of a name, or whose id begins so, is found; two are not guessed among."""
        assert shell("info", "Lisbon", "--json").json["id"] == "chat"
        assert shell("info", "hote", "--json").json["id"] == "hotels"

    def test_a_name_of_two_tapes_is_ambiguous(self, lite: Shell) -> None:
        """A name that two tapes have is refused with both ids."""
        store = lite.backend.open()
        for id in ("one", "two"):
            store.create(id, name="same")
        done = lite("info", "same")
        assert (done.code, done.err) == (3, "tape: 'same' matches 2 tapes: two, one; use a full id\n")

    def test_search(self, shell: Shell) -> None:
        """search prints hits with their places; a search without matches succeeds."""
        hits = shell("search", "night train", "--json").json
        assert [(one["tape"], one["role"]) for one in hits] == [
            ("chat", "assistant"),
            ("chat", "user"),
            ("trains", "assistant"),
        ]
        assert [one["seq"] for one in shell("search", "train*", "--tape", "chat", "--role", "user", "--json").json] == [
            8
        ]
        assert shell("search", "night train").lines[-1] == "trains:2 assistant The «night» «train» has berths."
        none = shell("search", "zeppelin")
        assert (none.code, none.out, none.err) == (0, "", "no matches\n")

    def test_anchors(self, shell: Shell) -> None:
        """anchors lists checkpoints with their summaries."""
        (found,) = shell("anchors", "chat", "--json").json
        assert (found["name"], found["summary"], found["next_steps"]) == (
            "booking",
            "Night train; hotel open.",
            ["book a hotel"],
        )
        assert shell("anchors", "chat").lines == [
            f"chat:{found['seq']} booking",
            "    Night train; hotel open.",
            "    next: book a hotel",
        ]
        assert shell("anchors", "chat", "--at", "3", "--json").json == []

    def test_tree(self, lite: Shell) -> None:
        """tree draws branches, the active one marked; a long line does not indent."""
        store = lite.backend.open()
        chat = store.create("t")
        chat.append(role="user", content="one", id="a")
        chat.append(role="assistant", content="two", id="b")
        chat.append(role="assistant", content="other two", id="c", parent="a")
        chat.append(role="user", content="three", id="d")
        assert lite("tree", "t").lines == [
            "* 2 user: one",
            "| o 3 assistant: two",
            "* 4 assistant: other two",
            "* 5 user: three",
        ]
        found = lite("tree", "t", "--json").json
        assert [(one["id"], one["active"]) for one in found] == [("a", True), ("b", False), ("c", True), ("d", True)]
        assert lite("tree", "t", "--at", "3").lines == ["* 2 user: one", "* 3 assistant: two"]

    def test_tree_of_forks(self, shell: Shell) -> None:
        """tree --forks shows the family from any member."""
        assert shell("tree", "chat", "--forks").lines[1:] == [
            "  hotels  forked at 2, merged",
            "  trains  forked at 3, merged",
            "  spare  forked at 8, discarded",
        ]
        assert shell("tree", "hotels", "--forks").lines == ["chat  inherited up to 2", "  * hotels  active, head 3"]
        assert shell("tree", "chat", "--forks", "--json").json["tape"] == "chat"

    def test_stats(self, shell: Shell) -> None:
        """stats counts."""
        found = shell("stats", "--json").json
        assert (found["tapes"], found["by_status"]) == (4, {"active": 3, "discarded": 1})
        assert shell("stats").lines[0] == "tapes       4"


class TestReading:
    def test_log(self, shell: Shell) -> None:
        """log shows newest first; a range, kinds and an order can be chosen."""
        found = shell("log", "chat", "--json").json
        assert [one["seq"] for one in found] == list(range(len(found), 0, -1))
        short = shell("log", "chat", "--oneline", "-n", "2").lines
        assert [re.sub(r" \d{4}-\d\d-\d\d \d\d:\d\d", "", line) for line in short] == [
            "13 handoff booking: Night train; hotel open.",
            "12 discard spare (no flights)",
        ]
        kinds = shell("log", "chat", "--kind", "revise", "--kind", "handoff", "--reverse", "--json").json
        assert [(one["seq"], one["kind"]) for one in kinds] == [(8, "revise"), (13, "handoff")]
        assert len(shell("log", "chat", "--since", "1h", "--json").json) == 13
        assert shell("log", "chat", "--until", "2020-01-01", "--json").json == []
        assert shell("log", "chat", "--since", "2099-01-01").out == ""
        whole = shell("log", "chat", "-n", "1").lines
        assert whole[0].startswith("entry chat:13  ")
        assert whole[1] == "Kind:   handoff"
        assert whole[-2] == "    booking: Night train; hotel open."

    def test_log_graph(self, shell: Shell) -> None:
        """log --graph draws forks and merges at the side of the entries."""
        assert shell("log", "chat", "--graph").lines == [
            "* chat:13 handoff booking: Night train; hotel open.",
            "* chat:12 discard spare (no flights)",
            "* chat:11 merge of trains by replay, 1 message",
            "|\\",
            "| * trains:2 append assistant: The night train has berths.",
            "| * trains:1 open forked from chat at 3",
            "* | chat:10 append assistant: The night train has berths.  <- trains:2",
            "|  \\",
            "| * | spare:2 append assistant: Or by plane?",
            "| * | spare:1 open forked from chat at 8",
            "|/ /",
            "* | chat:9 fork spare at 8",
            "* | chat:8 revise m -> user: By night train, please.",
            "* | chat:7 append user: By train, please.",
            "* | chat:6 merge of hotels by replay, 1 message",
            "|\\ \\",
            "| * | hotels:2 append assistant: Three have rooms.",
            "| * | hotels:1 open hotels forked from chat at 2",
            "* | | chat:5 append assistant: Three have rooms.  <- hotels:2",
            "|_|/",
            "* | chat:4 fork trains at 3",
            "|/",
            "* chat:3 fork hotels at 2",
            "* chat:2 append user: Plan two days in Lisbon.",
            "* chat:1 open Lisbon",
        ]

    def test_log_graph_narrowed(self, shell: Shell) -> None:
        """A graph can be cut short, of one kind, of a fork, or as JSON; what it is made of stays."""
        assert len([line for line in shell("log", "chat", "--graph", "-n", "4").lines if "*" in line]) == 4
        shown = shell("log", "chat", "--graph", "--kind", "revise", "--json").json
        assert {one["kind"] for one in shown} == {"open", "fork", "merge", "discard", "revise"}
        assert shell("log", "trains", "--graph").lines == [
            "* trains:2 append assistant: The night train has berths.",
            "* trains:1 open forked from chat at 3",
            "* chat:3 fork hotels at 2",
            "* chat:2 append user: Plan two days in Lisbon.",
            "* chat:1 open Lisbon",
        ]
        assert shell("log", "chat", "--graph", "--reverse").code == 2

    def test_a_graph_without_the_tapes_of_others(self, fresh: Shell) -> None:
        """A fork that was purged leaves no lane, and no error."""
        store = fresh.backend.open()
        chat = family(store)
        store.purge("spare")
        lines = fresh("log", chat.id, "--graph").lines
        assert [line for line in lines if "spare:" in line] == []
        assert len([line for line in lines if "*" in line]) == 13 + 2 + 2

    def test_log_of_many_entries(self, lite: Shell) -> None:
        """A tape of several pages is shown whole and in order."""
        lite.backend.open().create("long", messages=[{"role": "user", "content": str(n)} for n in range(1_100)])
        assert [one["seq"] for one in lite("log", "long", "--json").json] == list(range(1_101, 0, -1))

    def test_show(self, shell: Shell) -> None:
        """show prints one entry in full, and what it changed."""
        found = shell("show", "chat", "8", "--json").json
        assert (found["kind"], found["payload"]["id"], found["version"]) == ("revise", "m", 2)
        lines = shell("show", "chat", "8").lines
        assert f"Hash:   {found['hash']}" in lines
        assert lines[-1] == "~ 7 user: By {+night +}train, please."
        assert shell("show", "chat", "2", "--json").json["key"] == "web-1"
        assert "forked from" not in shell("show", "chat", "1").out

    def test_cat(self, shell: Shell) -> None:
        """cat prints the messages, now or then."""
        found = shell("cat", "chat", "--json").json
        assert [one["message"]["content"] for one in found][2] == "By night train, please."
        assert shell("cat", "chat", "--at", "7", "--json").json[-1]["message"]["content"] == "By train, please."
        assert shell("cat", "chat", "--last", "1", "--json").json == found[-1:]
        assert shell("cat", "chat", "--branch", "ask", "--json").json == found[:1]
        first, *rest = shell("cat", "chat", "--at", "2").lines
        assert (first[:13], rest) == ("2 user  ask  ", ["    Plan two days in Lisbon.", ""])

    def test_cat_reads_page_by_page(self, busy: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
        """However many messages are read at once, the same is printed, of every tape and fork."""
        for name in (*history.TAPES, *history.FORKS):
            whole = busy("cat", name), busy("cat", name, "--json")
            monkeypatch.setattr("tape.command.show.branches._PAGE", 2)
            paged = busy("cat", name), busy("cat", name, "--json")
            assert [(done.out, done.err) for done in paged] == [(done.out, done.err) for done in whole]
            path = [message.id for message in busy.backend.open().get(name).messages()]
            assert [message["id"] for message in paged[1].json] == path
            monkeypatch.undo()

    def test_context(self, shell: Shell) -> None:
        """context shows what a model would see, in three formats, with a manifest, at any point."""
        found = shell("context", "chat", "--json").json
        assert (found["anchor"]["name"], found["messages"], found["budget"]) == ("booking", [], None)
        then = shell("context", "chat", "--at", "8", "--budget", "500", "--json").json
        assert [one["message"]["content"] for one in then["messages"]][-1] == "By night train, please."
        assert then["tokens"] <= then["budget"] == 500
        openai = shell("context", "chat", "--at", "8", "--format", "openai").json
        assert [one["role"] for one in openai] == ["user", "assistant", "user"]
        assert [*shell("context", "chat", "--format", "anthropic").json] == ["system", "messages"]
        lines = shell("context", "chat").lines
        assert lines[2:5] == ["anchor booking  seq 13", "    Night train; hotel open.", "    next: book a hotel"]
        manifest = shell("context", "chat", "--manifest", "--json").json
        assert (manifest["hash"], manifest["excluded"][0]["tape"]) == (found["manifest"], "chat")
        assert shell("context", "chat", "--manifest").lines[0] == f"manifest {found['manifest']}"

    def test_recorded_context(self, lite: Shell) -> None:
        """A recorded context is rebuilt as it was."""
        chat = lite.backend.open().create("c", messages=[{"role": "user", "content": "Hello"}])
        seen = chat.context(record=True)
        chat.append(role="assistant", content="Hi")
        found = lite("context", "c", "--recorded", "3").json
        assert (found["messages"], found["manifest"]["hash"]) == (
            [{"role": "user", "content": "Hello"}],
            seen.manifest.hash,
        )

    def test_replay(self, shell: Shell) -> None:
        """replay tells each entry with what it changed."""
        assert shell("replay", "chat", "--from", "7", "--to", "9").lines == [
            "7 append user: By train, please.",
            "8 revise m -> user: By night train, please.",
            "    ~ 7 user: By {+night +}train, please.",
            "9 fork spare at 8",
        ]
        found = shell("replay", "chat", "--json").json
        assert [one["entry"]["seq"] for one in found] == list(range(1, 14))
        assert [one["message"]["content"] for one in found[1]["diff"]["added"]] == ["Plan two days in Lisbon."]
        assert [one["name"] for one in found[12]["diff"]["anchored"]] == ["booking"]

    def test_replay_agrees_with_the_difference(self, shell: Shell) -> None:
        """What replay tells of an entry is what the views before and after it differ in."""
        chat = shell.backend.open().get("chat")
        for entry in chat.entries():
            assert effect(chat, entry) == chat.diff(entry.seq - 1, entry.seq), entry.seq

    def test_replay_at_a_point(self, shell: Shell) -> None:
        """replay --at shows the whole view there."""
        found = shell("replay", "chat", "--at", "7", "--json").json
        assert (found["seq"], len(found["messages"]), found["anchors"], found["state"]) == (7, 3, [], {})
        assert shell("replay", "chat", "--at", "2").lines[0] == "view chat:2  1 message"
        assert shell("replay", "chat", "--at", "booking").lines[-1].startswith("anchor booking (seq 13)")

    def test_replay_steps_through_a_pipe(self, shell: Shell) -> None:
        """The stepper reads commands from a pipe as well."""
        done = shell("replay", "chat", "--step", "--at", "7", stdin="n\nd\n99\nq\n")
        assert done.lines == [
            "replay chat from 1 to 13; h for help, q to quit",
            "7 append user: By train, please.",
            "[7/13] 8 revise m -> user: By night train, please.",
            "    ~ 7 user: By {+night +}train, please.",
            "[8/13] ~ 7 user: By {+night +}train, please.",
            "[8/13] seq 99 is not between 1 and 13",
            "[8/13] ",
        ]

    def test_diff_of_two_runs(self, fresh: Shell) -> None:
        """Unrelated tapes are compared by content: where they diverge, and which messages only one of them has."""

        def run(id: str, city: str, result: str, answer: str) -> None:
            call = {"id": f"call-{id}", "type": "function", "function": {"name": "weather", "arguments": city}}
            fresh.backend.open().create(
                id,
                messages=[
                    {"role": "user", "content": "How is the weather?", "id": f"ask-{id}"},
                    {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": call["id"], "content": result},
                    {"role": "assistant", "content": answer},
                    {"role": "user", "content": "Thanks."},
                ],
            )

        run("worked", '{"city": "Lisbon"}', "24 C", "Sunny.")
        run("failed", '{"city":"Lisbon"}', "timeout", "I cannot tell.")
        run("again", '{"city": "Lisbon"}', "24 C", "Sunny.")
        done = fresh("diff", "worked", "failed")
        assert [line[:60] for line in done.lines] == [
            "--- worked",
            "+++ failed",
            "  same up to 3 assistant: calls weather(Lisbon)",
            "~ 4 tool: result of weather: [-24 C-]{+timeout+}",
            "- 5 assistant: Sunny.",
            "+ 5 assistant: I cannot tell.",
        ]
        found = fresh("diff", "worked", "failed", "--json").json
        assert found["same_up_to"] == {"a": 3, "b": 3}
        assert [one["seq"] for one in found["added"]] == [one["seq"] for one in found["retracted"]] == [4, 5]
        same = fresh("diff", "worked", "again", "--exit-code")
        assert (same.code, same.out, same.err) == (0, "", "no differences\n")
        fresh("append", "other", "Hi", "--create")
        assert fresh("diff", "other", "worked").lines[2] == "different from the first message on"

    def test_diff(self, shell: Shell) -> None:
        """diff compares points of a tape, or tapes."""
        assert shell("diff", "chat@2", "@8").lines == [
            "--- chat@2",
            "+++ @8",
            "+ 5 assistant: Three have rooms.",
            "+ 7 user: By night train, please.",
        ]
        found = shell("diff", "chat@7", "chat@booking", "--json").json
        assert [len(found[name]) for name in ("added", "revised", "retracted", "left", "anchored")] == [1, 1, 0, 0, 1]
        forks = shell("diff", "hotels", "trains", "--json").json
        assert [one["message"]["content"] for one in forks["added"]] == ["The night train has berths."]
        same = shell("diff", "chat", "chat@13", "--exit-code")
        assert (same.code, same.out, same.err) == (0, "", "no differences\n")
        assert shell("diff", "chat@2", "chat", "--exit-code").code == 1

    def test_a_tape_with_an_at_sign(self, lite: Shell) -> None:
        """An id that holds an @ is found as it is before it is taken apart."""
        chat = lite.backend.open().create("me@home", messages=[{"role": "user", "content": "hi"}])
        assert lite("diff", "me@home@1", chat.id).lines[-1] == "+ 2 user: hi"

    def test_follow(self, shell: Shell) -> None:
        """follow prints what is there and what comes, until nothing came for a while or there were enough."""
        done = shell("follow", "--all", "--timeout", "0.1", "--json")
        found = [json.loads(line) for line in done.lines]
        assert len(found) == 13 + 3 + 3 + 3
        assert [one["seq"] for one in found if one["tape"] == "chat"] == list(range(1, 14))
        rest = shell("follow", "--after", str(found[-3]["position"]), "--timeout", "0.1", "--json")
        assert [json.loads(line) for line in rest.lines] == found[-2:]
        some = shell("follow", "--all", "--tape", "hotels", "--kind", "append", "-n", "1").lines
        assert [line.split("Z ")[1] for line in some] == ["hotels:2 append assistant: Three have rooms."]
        assert shell("follow", "--timeout", "0.1").out == ""

    def test_follow_begins_with_what_comes(self, fresh: Shell) -> None:
        """Without a place to begin, only what is recorded from now on is printed."""
        from tape.db.maintain.inspect import feed_now

        store = fresh.backend.open()
        chat = store.create("c")
        place = feed_now(store._db)
        chat.append(role="user", content="new")
        found = list(store.feed(place))
        assert [one.seq for one in found if one.kind == "append"] == [2]
        assert len(found) <= 2

    def test_owner(self, fresh: Shell) -> None:
        """With --owner only that owner's tapes are there."""
        store = fresh.backend.open()
        store.create("hers", owner="ann")
        store.create("his", owner="bob")
        assert [one["id"] for one in fresh("--owner", "ann", "ls", "--json").json["tapes"]] == ["hers"]
        assert fresh("info", "his", "--owner", "ann").code == 3

    def test_control_characters_are_shown_not_sent(self, lite: Shell) -> None:
        """A message cannot move the reader's cursor, colour the terminal or forge a line."""
        chat = lite.backend.open().create("c", name="x\x1b[31m")
        chat.append(role="user", content="a\x1b[2Jb\u202ec\r*")
        for command in (["cat", "c"], ["log", "c"], ["log", "c", "--graph"], ["show", "c", "2"], ["ls"], ["tree", "c"]):
            out = lite(*command).out
            assert "\x1b" not in out
            assert "\u202e" not in out
            assert "\r" not in out
        assert "a\\x1b[2Jb\\u202ec\\r*" in lite("cat", "c").out


@pytest.fixture(scope="module")
def busy(make_backend: MakeBackend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """The command on a history in which everything happens."""
    with make_backend("sqlite", tmp_path_factory.mktemp("busy")) as made:
        store = made.open()
        history.write(store)
        history.branch(store)
        yield Shell(made)


class TestEverythingThatCanHappen:
    """The commands on a history that has every verb, branches, clears, tool calls and forks of forks."""

    def test_replay_tells_what_changed(self, busy: Shell) -> None:
        """Of every entry but an opening, which may inherit, replay tells what the views before and after differ in."""
        store = busy.backend.open()
        kinds = set()
        for name in (*history.TAPES, *history.FORKS):
            chat = store.get(name)
            for entry in chat.entries():
                kinds.add(entry.kind)
                if entry.kind != "open":
                    assert effect(chat, entry) == chat.diff(entry.seq - 1, entry.seq), (name, entry.seq)
        assert set(KINDS) - kinds == {"erase", "label"}

    def test_every_kind_is_told_in_words(self, busy: Shell) -> None:
        """No entry is told as bare JSON, and none without a word but an opening without a name."""
        for name in (*history.TAPES, *history.FORKS):
            for line in busy("log", name, "--oneline").lines:
                seq, kind, *rest = line.split(" ", 2)
                assert int(seq) > 0
                assert rest[0].strip() or kind == "open", line
                assert not rest[0].startswith("{"), line

    def test_every_way_to_look_works(self, busy: Shell) -> None:
        """Every command that reads a tape prints something of every tape, as text and as JSON."""
        for name in (*history.TAPES, *history.FORKS):
            for command in ("info", "log", "cat", "context", "replay", "tree", "anchors"):
                assert busy(command, name).code == 0
                assert busy(command, name, "--json").json is not None
            assert busy("log", name, "--graph").lines
            head = busy("info", name, "--json").json["head"]
            assert busy("replay", name, "--at", str(head)).lines[0].startswith(f"view {name}:{head}")
            for seq in range(1, head + 1):
                assert busy("show", name, str(seq)).code == 0
            stepped = busy("replay", name, "--step", stdin="\n" * head + "v\nc\nd\ns\n")
            assert (stepped.code, stepped.err) == (0, "")

    def test_state_blocks_and_summaries_are_in_the_view(self, busy: Shell) -> None:
        """replay --at shows all that a tape keeps."""
        head = busy("info", "chat", "--json").json["head"]
        found = busy("replay", "chat", "--at", str(head), "--json").json
        assert found["state"]["form"] == {"city": None, "nights": 4}
        assert found["blocks"]["memory"].splitlines() == ["likes tea", "hates rain", "travels light"]
        (compacted,) = busy("log", "chat", "--kind", "compact", "--json").json
        then = busy("replay", "chat", "--at", str(compacted["seq"]), "--json").json
        assert [one["text"] for one in then["summaries"]] == ["One and two."]
        assert busy("info", "chat", "--json").json["usage"]["input_tokens"] == 14
