"""Messages in the words of other APIs and frameworks: shown, found, counted and cut, and none of their text is lost."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from support.backends import Backend
from support.dialects import DIALECTS, MEDIA, NAMELESS, Message, framework_call
from support.parts import APIS, renderings
from support.request_rules import check_all

import tape
from tape import new_ids
from tape.core.context.shorten import shorten
from tape.core.entries import payloads
from tape.core.entries.payloads import Place
from tape.core.messages import toolcalls
from tape.core.messages.dialects import with_result
from tape.core.messages.shapes import Media, as_text, read
from tape.core.messages.text import text_of
from tape.core.plan.lookup import Standing
from tape.db.view.tape_view import TapeView

PICTURE = "iVBORw0KGgo" + "A" * 4_001


@pytest.fixture(scope="module")
def store(standing: Backend) -> tape.Store:
    return standing.open()


@pytest.fixture
def chat(store: tape.Store) -> tape.Tape:
    return store.tape(new_ids.new_id())


def anthropic_call(call: str) -> Message:
    made = {"type": "tool_use", "id": call, "name": "look", "input": {}}
    return {"role": "assistant", "content": [{"type": "text", "text": "I look."}, made]}


def anthropic_result(call: str) -> Message:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": "found"}]}


def shown(chat: tape.Tape) -> list[str]:
    return [message.id for message in chat.messages()]


def answers_of(chat: tape.Tape) -> list[list[str]]:
    """Return, for each message, the calls that it was bound to."""
    recorded = [entry.payload for entry in chat.entries(kinds=["append"])]
    return [[answer.call for answer in one.answers] for one in recorded if isinstance(one, payloads.Append)]


def parts_of(message: Message) -> list[Message]:
    parts: list[Message] = message["parts"] if "parts" in message else message["content"]
    return parts


class TestDialects:
    """What other APIs and frameworks say is shown, found, counted and cut as if it were said in Anthropic's blocks."""

    @pytest.mark.parametrize(("call", "result"), DIALECTS.values(), ids=DIALECTS)
    def test_they_are_rendered_alike(self, store: tape.Store, call: Any, result: Any) -> None:
        """Every request shows the text, the call and its result, with nothing to repair."""
        contexts: list[tape.Context] = []
        for made, answered in ((call, result), (anthropic_call, anthropic_result)):
            chat = store.tape(new_ids.new_id())
            chat.extend([{"role": "user", "content": "look"}, made("c1"), answered("c1")])
            contexts.append(chat.context())
        theirs, ours = contexts
        assert theirs.repairs == []
        for api in APIS:
            request = repr(renderings(theirs)[api])
            for found in ("{'result': 'found'}", '{"result":"found"}'):
                request = request.replace(found, "found")
            assert request == repr(renderings(ours)[api])
        assert 0 <= theirs.tokens - ours.tokens <= 8

    @pytest.mark.parametrize(("call", "result"), DIALECTS.values(), ids=DIALECTS)
    def test_c3_their_results_are_cut(self, call: Any, result: Any) -> None:
        """A long result is cut inside its own shape; the call is left alone."""
        long = repr(result("c1")).replace("found", "found " * 500)
        message: Message = ast.literal_eval(long)
        short = shorten(message, 100)
        assert "characters cut" in repr(short)
        assert len(repr(short)) < 600
        assert toolcalls.find(short) == ([], ["c1"])
        assert shorten(call("c1"), 100) == call("c1")

    @pytest.mark.parametrize(("call", "result"), DIALECTS.values(), ids=DIALECTS)
    def test_s7_their_words_are_found(self, chat: tape.Tape, call: Any, result: Any) -> None:
        """Texts, tools and results with their names and numbers are; what names a part is not."""
        report = {"status": "delayed", "temperature": 21, "detail": "platform nine", "by": [{"state": "boarding"}]}
        chat.extend([call("c1"), result("c1", value=report)])
        assert [hit.role in ("assistant", "model") for hit in chat.search("look")] == [True]
        for word in ("delayed", "temperature", "21", "detail", "platform nine", "state", "boarding"):
            assert [hit.role in ("user", "tool") for hit in chat.search(word)] == [True], word
        for word in ("function_call", "toolUse", "part_kind", "tool-return", "tool_call_response", "c1"):
            assert chat.search(word) == []
        assert chat.messages()[0].text == "I look."

    @pytest.mark.parametrize(
        "part",
        [
            *(result("c1").get("parts", result("c1").get("content"))[0] for _, result in DIALECTS.values()),
            {"part_kind": "retry-prompt", "tool_name": "look", "tool_call_id": "c1", "content": "found"},
            {"type": "tool_call_response", "id": "c1", "result": "found"},
            {"type": "function_result", "call_id": "c1", "items": [{"type": "text", "text": "found"}]},
            {"type": "function_result", "call_id": "c1", "result": "", "exception": "found"},
            {"type": "tool_call", "id": "c1", "name": "look", "arguments": {}, "result": "found"},
            {"toolResult": {"toolUseId": "c1", "content": [{"json": {"was": "found"}}]}},
            *(result("found")["parts"][0] for _, result in NAMELESS.values()),
        ],
    )
    def test_every_result_can_be_changed(self, part: Message) -> None:
        """What is read as a result is what redaction and cutting take out, in the part's own shape."""
        (result,) = read({"role": "user", "content": [part]}).results
        assert "found" in repr(result.content)
        changed = with_result(part, lambda held: "gone")
        assert "found" not in repr(changed)
        assert (part.keys(), "found" in repr(part)) == (changed.keys(), True)

    @pytest.mark.parametrize(
        ("message", "word"),
        [
            (
                anthropic_result("c1") | {"content": [{"type": "uri", "uri": "s3://b", "title": "Quarterly"}]},
                "quarterly",
            ),
            ({"role": "user", "content": [{"type": "data", "uri": "r://a", "description": "Quarterly"}]}, "quarterly"),
            ({"role": "assistant", "content": "The answer", "text": "t", "thought": "because"}, "answer because"),
            ({"role": "user", "type": "text", "content": "hi", "title": "Important"}, "important"),
            ({"role": "user", "content": "x", "source": {"type": "text", "content": "abc", "by": "Ann"}}, "ann abc"),
            ({"role": "user", "content": "x", "layout": {"block_type": {"a": "deep"}}}, "deep"),
            ({"role": "user", "content": [{"block_type": ["x"], "text": "odd"}, {"part_kind": {}}]}, "odd"),
            (
                {"role": "user", "content": [{"block_type": "text", "title": "Headline", "body": "World news"}]},
                "headline world news",
            ),
            (
                {"role": "user", "content": [{"text": "Answer", "thought": "because", "title": "Headline"}]},
                "answer because headline",
            ),
            (
                {"role": "user", "content": [{"type": "text", "content": "Answer", "title": "Headline"}]},
                "answer headline",
            ),
            ({"role": "user", "content": [{"part_kind": "engine", "name": "piston"}]}, "engine piston"),
            ({"role": "user", "content": [{"part_kind": "text", "content": {"was": "odd"}}]}, "odd"),
            ({"role": "user", "content": [{"image": {"source": {"bytes": "odd"}}}]}, "odd"),
            ({"role": "user", "content": [{"type": "tool_call", "name": "odd"}]}, "odd"),
            (
                {"role": "user", "content": [{"text": "So", "thought": True, "function_call": "odd", "by": "Ann"}]},
                "so odd ann",
            ),
        ],
    )
    def test_what_only_looks_alike_is_data(self, chat: tape.Tape, message: Message, word: str) -> None:
        """Outside of parts, and in parts that tell nothing of a dialect, every text is found as it always was."""
        chat.append(message)
        assert len(chat.search(word)) == 1
        assert chat.messages()[0].to_dict() == message
        assert chat.context().tokens < 100

    @pytest.mark.parametrize(
        "content",
        [
            "",
            [
                {"type": "text", "text": "ok"},
                {"type": "tool_call", "id": "c1", "name": "look", "args": {"city": "Oslo"}},
            ],
            [{"type": "text", "text": "ok"}, {"type": "tool_use", "id": "c1", "name": "look", "input": {}}],
            [{"type": "function_call", "id": "f", "call_id": "c1", "name": "look", "arguments": '{"city": "Oslo"}'}],
        ],
        ids=["in tool_calls only", "LangChain's block", "Anthropic's block as it streamed", "OpenAI's item"],
    )
    def test_calls_of_langchain(self, chat: tape.Tape, content: Any) -> None:
        """One id in the content and in the calls beside it is one call, with the arguments of either."""
        call = {"type": "tool_call", "id": "c1", "name": "look", "args": {"city": "Oslo"}}
        chat.append({"role": "assistant", "content": content, "tool_calls": [call]})
        chat.append({"role": "tool", "tool_call_id": "c1", "content": "Drizzle"})
        assert [hit.role for hit in chat.search("oslo")] == ["assistant"]
        context = chat.context()
        check_all(context)
        assert context.repairs == []
        said, answered = context.to_openai()
        (made,) = said["tool_calls"]
        assert (made["id"], json.loads(made["function"]["arguments"])) == ("c1", {"city": "Oslo"})
        assert answered["content"] == "Drizzle"

    def test_a_call_of_langchain_in_the_content_only(self, chat: tape.Tape) -> None:
        """Its arguments are found and sent."""
        call = {"type": "tool_call", "id": "c1", "name": "look", "args": {"city": "Oslo"}}
        chat.append({"role": "assistant", "content": [call]})
        assert len(chat.search("oslo")) == 1
        assert chat.context().to_openai()[0]["tool_calls"][0]["function"]["arguments"] == '{"city":"Oslo"}'

    def test_a_call_with_its_result_in_one_part(self, chat: tape.Tape) -> None:
        """It is shown as both, and waits for nothing."""
        part = {"type": "tool_call", "id": "c1", "name": "look", "arguments": {}, "result": "marble"}
        chat.append({"role": "assistant", "content": [part]})
        context = chat.context()
        check_all(context)
        assert context.repairs == []
        assert context.to_openai()[1]["content"] == "marble"
        assert len(chat.search("marble")) == 1

    @pytest.mark.parametrize(
        "part",
        [
            {"type": "uri", "uri": "https://a.b/c.pdf", "media_type": "application/pdf", "title": "Quarterly"},
            {"fileData": {"fileUri": "gs://a", "mimeType": "application/pdf", "displayName": "Quarterly"}},
            {"inlineData": {"data": "JVBERi0=", "mimeType": "application/pdf", "displayName": "Quarterly"}},
            {"document": {"format": "pdf", "name": "Quarterly", "source": {"bytes": "JVBERi0="}}},
            {"document": {"format": "txt", "name": "Quarterly", "source": {"text": "Growth"}}},
            {"block_type": "document", "data": "JVBERi0=", "title": "Quarterly", "document_mimetype": "a/pdf"},
        ],
    )
    def test_names_of_files_are_kept(self, chat: tape.Tape, part: Message) -> None:
        """A file's name is found and sent; what it holds as data is not found."""
        chat.append({"role": "user", "content": [part]})
        assert len(chat.search("quarterly")) == 1
        assert chat.search("JVBERi0") == []
        for request in (chat.context().to_openai(), chat.context().to_anthropic()):
            assert "Quarterly" in repr(request)

    def test_files_thoughts_and_other_parts(self, chat: tape.Tape) -> None:
        """Pictures become those of each API; a model's thinking is no text of its own."""
        picture = {"inline_data": {"mime_type": "image/png", "data": "-_-_"}}
        chat.append({"role": "user", "parts": [{"text": "See"}, picture]})
        said = {"text": "A cat.", "thought_signature": "c2ln"}
        chat.append({"role": "model", "parts": [{"text": "Hm.", "thought": True}, said]})
        item = {"kind": "image-url", "url": "https://a.b/c.png"}
        chat.append({"role": "user", "parts": [{"part_kind": "user-prompt", "content": ["And", item]}]})
        chat.append(
            {"role": "user", "content": [{"type": "uri", "uri": "https://a.b/d.png", "media_type": "image/png"}]}
        )
        image = {"block_type": "image", "image": "aGk=", "image_mimetype": "image/png"}
        chat.append({"role": "user", "content": [{"block_type": "text", "text": "Here"}, image]})
        first, second, third, fourth, fifth = chat.context().to_openai()
        assert first["content"][1]["image_url"]["url"] == "data:image/png;base64,+/+/"
        assert (second["role"], second["content"][-6:]) == ("assistant", "A cat.")
        assert chat.messages()[1].text == "A cat."
        assert chat.search("c2ln") == []
        assert [part["type"] for part in third["content"]] == ["text", "image_url"]
        assert fourth["content"][0]["image_url"]["url"] == "https://a.b/d.png"
        assert fifth["content"][1]["image_url"]["url"] == "data:image/png;base64,aGk="

    @pytest.mark.parametrize(
        ("form", "media_type"),
        [
            ("pdf", "application/pdf"),
            ("doc", "application/msword"),
            ("docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
            ("xls", "application/vnd.ms-excel"),
            ("xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
            ("html", "text/html"),
            ("md", "text/markdown"),
            ("csv", "text/csv"),
            ("txt", "text/plain"),
        ],
    )
    def test_documents_of_bedrock_have_their_media_type(self, form: str, media_type: str) -> None:
        """Each format is named as files of it are named elsewhere."""
        document = {"format": form, "name": "n", "source": {"bytes": "aGk="}}
        (part,) = read({"role": "user", "content": [{"document": document}]}).parts
        assert isinstance(part, Media)
        assert part.media_type == media_type

    @pytest.mark.parametrize(
        ("part", "text"),
        [
            ({"document": {"format": "txt", "name": "N", "source": {"text": "plain words"}}}, "plain words"),
            ({"image": {"format": "png", "source": {"s3Location": {"uri": "s3://b/k"}}}}, "[image/png, s3://b/k, not"),
            ({"citationsContent": {"content": [{"text": "plain words"}], "citations": []}}, "plain words"),
            (
                {"part_kind": "user-prompt", "content": [{"kind": "text-content", "content": "plain words"}]},
                "plain words",
            ),
            ({"part_kind": "retry-feedback", "content": "plain words", "retry": {"cause": "no_output"}}, "plain words"),
            (
                {
                    "block_type": "citable",
                    "title": "T",
                    "source": "s",
                    "content": [{"block_type": "text", "text": "plain words"}],
                },
                "plain words",
            ),
        ],
    )
    def test_texts_in_every_part_are_shown(self, chat: tape.Tape, part: Message, text: str) -> None:
        """Wherever a dialect has a text for the model, every request has it, and no part as JSON."""
        chat.append({"role": "user", "content": [part]})
        for api in APIS:
            request = repr(renderings(chat.context())[api])
            assert text in request
            assert "{\\" not in request
        if "words" in text:
            assert len(chat.search("plain words")) == 1

    def test_marks_for_a_cache_are_not_shown(self, chat: tape.Tape) -> None:
        """A part that only tells where a request is cached is none for the model."""
        points = [{"cachePoint": {"type": "default"}}, {"block_type": "cache", "cache_control": {"type": "ephemeral"}}]
        user = {"part_kind": "user-prompt", "content": ["hi", {"kind": "cache-point", "ttl": "5m"}]}
        chat.append({"role": "user", "content": [*points, user]})
        assert chat.context().to_openai() == [{"role": "user", "content": "hi"}]

    @pytest.mark.parametrize(
        "held", [{"result": None}, {"result": "", "items": [{"type": "text", "text": "", "additional_properties": {}}]}]
    )
    def test_a_tool_that_failed_tells_how(self, chat: tape.Tape, held: Message) -> None:
        """Agent Framework has no result then, but an exception."""
        failed = {"type": "function_result", "call_id": "c1", "exception": "boom", **held}
        chat.extend([framework_call("c1"), {"role": "tool", "content": [failed]}])
        assert chat.context().to_openai()[-1]["content"] == "boom"
        assert len(chat.search("boom")) == 1

    def test_sounds_of_llamaindex(self, chat: tape.Tape) -> None:
        """Their format is their media type."""
        chat.append({"role": "user", "content": [{"block_type": "audio", "audio": "UklGRg==", "format": "wav"}]})
        (part,) = chat.context().to_openai()[0]["content"]
        assert part == {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}

    def test_pictures_of_langchain(self, chat: tape.Tape) -> None:
        """Its own blocks have the data under another name; they are sent and not found."""
        image = {"type": "image", "base64": "iVBORw0KGgo", "mime_type": "image/png"}
        chat.append({"role": "user", "content": [{"type": "text", "text": "See"}, image]})
        picture = chat.context().to_openai()[0]["content"][1]
        assert picture == {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo"}}
        assert chat.search("iVBORw0KGgo") == []

    @pytest.mark.parametrize(("provider", "kind"), [("anthropic", "thinking"), ("google", "text")])
    def test_thinking_of_pydantic_ai(self, chat: tape.Tape, provider: str, kind: str) -> None:
        """Only what Anthropic signed goes back to it."""
        thought = {"part_kind": "thinking", "content": "Hm.", "signature": "c2ln", "provider_name": provider}
        chat.append({"role": "assistant", "parts": [thought, {"part_kind": "text", "content": "Yes."}]})
        assert chat.context().to_anthropic()["messages"][1]["content"][0]["type"] == kind

    def test_signed_thinking_goes_back_to_anthropic(self, chat: tape.Tape) -> None:
        """Claude signs what it thinks also where others serve it."""
        thought = {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}}}
        chat.append({"role": "assistant", "content": [thought, {"text": "Yes."}]})
        first = chat.context().to_anthropic()["messages"][1]["content"][0]
        assert first == {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
        assert chat.search("c2ln") == []

    @pytest.mark.parametrize(
        "part",
        [
            *(part for call, _ in DIALECTS.values() for part in parts_of(call("c1"))),
            *(part for _, result in DIALECTS.values() for part in parts_of(result("c1"))),
            *(part for _, result in MEDIA.values() for part in parts_of(result("AAAA"))),
            {"text": "So", "thought": True},
            {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
            {"fileData": {"mimeType": "image/png", "fileUri": "gs://a"}},
            {"image": {"format": "png", "source": {"bytes": "AAAA"}}},
            {"document": {"format": "txt", "name": "n", "source": {"text": "words"}}},
            {"reasoningContent": {"reasoningText": {"text": "So"}}},
            {"type": "data", "uri": "data:image/png;base64,AAAA"},
            {"type": "blob", "mime_type": "image/png", "content": "AAAA"},
            {"part_kind": "user-prompt", "content": "hi"},
            {"part_kind": "builtin-tool-return", "tool_name": "look", "content": {"was": "found"}},
            {"block_type": "image", "image": "AAAA", "image_mimetype": "image/png"},
        ],
    )
    def test_s7_what_a_part_has_besides_is_found(self, part: Message) -> None:
        """A field that a dialect does not have is the caller's, and its text is found in every part; data are not."""
        inner = {name: {**value, "note": "zebra"} for name, value in part.items() if isinstance(value, dict)}
        for noted in ({**part, "note": "zebra"}, *([{**part, **inner}] if inner else [])):
            words = text_of({"role": "user", "content": [noted]}).split()
            assert "zebra" in words
            assert "AAAA" not in words


class TestMediaInResults:
    """A picture in a result is sent as one, or named."""

    @pytest.mark.parametrize(("call", "result"), MEDIA.values(), ids=MEDIA)
    def test_a_picture_is_a_part_of_its_own(self, chat: tape.Tape, call: Any, result: Any) -> None:
        """Anthropic gets the text and the picture; nobody gets the data as text; it counts as a picture."""
        chat.extend([{"role": "user", "content": "look"}, call("c1"), result(PICTURE)])
        context = chat.context()
        check_all(context)
        assert context.repairs == []
        held = context.to_anthropic()["messages"][-1]["content"][0]["content"]
        assert [part["type"] for part in held] == ["text", "image"]
        assert "seen" in held[0]["text"]
        assert held[1]["source"] == {"type": "base64", "media_type": "image/png", "data": PICTURE}
        answered, attached = context.to_openai()[-2:]
        assert PICTURE not in answered["content"]
        assert attached["content"][1]["image_url"]["url"].endswith(PICTURE)
        assert 1_000 < context.tokens < 1_200
        assert chat.search(PICTURE) == []
        assert len(chat.search("seen")) == 1

    @pytest.mark.parametrize("limit", [0, 500])
    @pytest.mark.parametrize("result", [result for _, result in MEDIA.values()], ids=MEDIA)
    def test_c3_it_is_cut_whole(self, result: Any, limit: int) -> None:
        """What is cut has a mark in place of the picture, and no piece of its data."""
        short = shorten(result(PICTURE), limit, "t:3")
        assert PICTURE[:12] not in repr(short)
        assert "image/png, 3 KB" in repr(short)
        (answered,) = read(short).results
        assert answered.id == "c1"
        assert "recorded at t:3" in as_text(answered.content)

    @pytest.mark.parametrize(("call", "result"), MEDIA.values(), ids=MEDIA)
    def test_c3_no_request_has_a_piece_of_it(self, chat: tape.Tape, call: Any, result: Any) -> None:
        """In a context within a budget an old picture is either whole or not there."""
        chat.extend([{"role": "user", "content": "look"}, call("c1"), result(PICTURE)])
        chat.extend([{"role": "user" if n % 2 else "assistant", "content": "word " * 300} for n in range(40)])
        context = chat.context(budget=9_000)
        check_all(context)
        for api in APIS:
            request = repr(renderings(context)[api])
            assert "image/png, 3 KB, cut" in request
            assert PICTURE[:12] not in request

    @pytest.mark.parametrize(
        "message",
        [
            {"role": "tool", "content": [{"type": "tool-result", "toolCallId": "c1", "output": "found " * 100}]},
            {"role": "tool", "content": [{"type": "function_result", "call_id": "c1", "result": "found " * 100}]},
            {"role": "tool", "tool_call_id": "c1", "parts": [{"text": "found " * 100}]},
        ],
    )
    @pytest.mark.parametrize("limit", [0, 100])
    def test_c3_a_result_in_a_tool_message_stays_one(self, message: Message, limit: int) -> None:
        """Parts that name their calls keep their names, however short they are cut, and have one mark."""
        (answered,) = read(shorten(message, limit, "t:3")).results
        assert answered.id == "c1"
        assert as_text(answered.content).count("cut") == 1


class TestWithoutIds:
    """Calls without ids are answered by their tool and in their order."""

    @pytest.mark.parametrize(("call", "result"), NAMELESS.values(), ids=NAMELESS)
    def test_they_are_shown_as_pairs(self, chat: tape.Tape, call: Any, result: Any) -> None:
        """Every request has each call with its own result, in every turn, with nothing to repair."""
        for day in ("Monday", "Tuesday"):
            chat.append(role="user", content=day)
            chat.extend([call("Oslo", "Rome"), result(f"{day} rain", f"{day} sun")])
        context = chat.context()
        check_all(context)
        assert context.repairs == []
        request = context.to_openai()
        answers = {one["tool_call_id"]: one["content"] for one in request if one["role"] == "tool"}
        calls = [made for one in request for made in one.get("tool_calls", [])]
        cities = [json.loads(made["function"]["arguments"])["city"] for made in calls]
        assert cities == ["Oslo", "Rome"] * 2
        words = ("Monday rain", "Monday sun", "Tuesday rain", "Tuesday sun")
        assert [word in answers[made["id"]] for made, word in zip(calls, words, strict=True)] == [True] * 4

    @pytest.mark.parametrize(("call", "result"), NAMELESS.values(), ids=NAMELESS)
    def test_results_one_by_one_are_no_guess(self, chat: tape.Tape, call: Any, result: Any) -> None:
        """Where nobody knows which call of a tool a result answers it is shown as text, never under another call."""
        chat.append(call("Oslo", "Rome"), id="call")
        chat.append(result("rain"), id="first")
        chat.append(result("sun"), id="second")
        for step in ("as they came", "one is taken out", "it comes again"):
            if step == "one is taken out":
                chat.retract("first")
            elif step == "it comes again":
                chat.append(result("rain"), id="again")
            context = chat.context()
            check_all(context)
            request = context.to_openai()
            assert ["no result" in one["content"] for one in request if one["role"] == "tool"] == [True, True]
            said = " ".join(str(one["content"]) for one in request if one["role"] != "tool")
            assert ("rain" in said, "sun" in said) == (step != "one is taken out", True)
            assert "unclear result" in {repair.what for repair in context.repairs}

    @pytest.mark.parametrize(("call", "result"), NAMELESS.values(), ids=NAMELESS)
    def test_t11_a_call_that_is_revised_keeps_no_result_of_another(
        self, chat: tape.Tape, call: Any, result: Any
    ) -> None:
        """Calls without ids are known by their number, which is another one when there are fewer."""
        chat.append(call("Oslo", "Rome"), id="call")
        chat.append(result("rain", "sun"), id="results")
        chat.revise("call", call("Rome"))
        assert shown(chat) == ["call"]
        chat.revise("call", call("Oslo", "Bonn"))
        assert shown(chat) == ["call", "results"]
        assert chat.verify().ok

    @pytest.mark.parametrize(("call", "result"), NAMELESS.values(), ids=NAMELESS)
    def test_a_call_that_nobody_answered_takes_no_later_result(self, chat: tape.Tape, call: Any, result: Any) -> None:
        """Results go to the nearest message that calls their tool."""
        chat.extend([call("Bonn"), {"role": "user", "content": "go on"}])
        chat.extend([call("Oslo", "Rome"), result("rain", "sun")])
        context = chat.context()
        check_all(context)
        assert [repair.what for repair in context.repairs] == ["unsettled call"]
        lost, *answers = [one["content"] for one in context.to_openai() if one["role"] == "tool"]
        assert ["no result" in lost, "rain" in answers[0], "sun" in answers[1]] == [True] * 3

    @pytest.mark.parametrize(("call", "result"), NAMELESS.values(), ids=NAMELESS)
    def test_a_result_goes_with_its_call(self, chat: tape.Tape, call: Any, result: Any) -> None:
        """They are bound when they are recorded: the result of the same tool in another turn stays."""
        chat.append(call("Oslo"), id="call")
        chat.append(result("rain"), id="result")
        chat.append(call("Rome"), id="again")
        chat.append(result("sun"), id="more")
        chat.retract("call")
        assert shown(chat) == ["again", "more"]
        chat.restore("call")
        chat.retract("again")
        assert shown(chat) == ["call", "result"]

    @pytest.mark.parametrize("batch", [True, False], ids=["as a batch", "one by one"])
    @pytest.mark.parametrize("at_once", [True, False], ids=["in one message", "in one each"])
    @pytest.mark.parametrize(("call", "result"), NAMELESS.values(), ids=NAMELESS)
    def test_the_entry_names_the_calls_it_answers(
        self, chat: tape.Tape, call: Any, result: Any, at_once: bool, batch: bool
    ) -> None:
        """Each result is bound to the next call, so that a fork and a compaction wait for none that was answered."""
        results = [result("rain", "sun")] if at_once else [result("rain"), result("sun")]
        messages = [{"role": "user", "content": "look"}, call("Oslo", "Rome"), *results]
        for group in [messages] if batch else [[message] for message in messages]:
            chat.extend(group)
        answers = [call for calls in answers_of(chat) for call in calls]
        assert answers == toolcalls.find(call("Oslo", "Rome"))[0]
        child = chat.fork(new_ids.new_id())
        child.append(role="assistant", content="Rain and sun.")
        chat.merge(child)
        chat.extend([{"role": "user" if n % 2 else "assistant", "content": "word " * 200} for n in range(20)])
        chat.compact(lambda request: "Rain in Oslo.", budget=2_000, head=0)
        summary = chat.summary()
        assert summary is not None
        assert {message.id for message in chat.messages()[:4]} <= set(summary.covers)
        assert chat.verify().ok

    def test_a_result_on_another_branch_answers_nothing_here(self, chat: tape.Tape) -> None:
        """An answer that is made again on a branch of its own is bound as the first was."""
        call, result = NAMELESS["gemini"]
        chat.append(call("Oslo", "Rome"), id="call")
        chat.append(result("rain"), id="first")
        chat.append(result("snow"), id="second", parent="call")
        first, second = answers_of(chat)[1:]
        assert first == second

    def test_more_results_than_calls_are_bound_once(self, chat: tape.Tape) -> None:
        """What answers a call again is bound to it, never twice by one message."""
        call, result = NAMELESS["gemini"]
        chat.extend([call("Oslo", "Rome"), result("rain"), result("rain", "sun", "snow")])
        assert len(chat.messages()) == 3
        assert chat.verify().ok
        check_all(chat.context())

    def test_r1_binding_costs_the_same_in_every_turn(self, chat: tape.Tape, monkeypatch: pytest.MonkeyPatch) -> None:
        """Though each turn makes a call of the same name, a result asks for as many messages as in the first."""
        call, result = NAMELESS["gemini"]
        asked: list[Place] = []
        standing = TapeView.standing

        def counted(view: TapeView, place: Place) -> Standing:
            asked.append(place)
            return standing(view, place)

        monkeypatch.setattr(TapeView, "standing", counted)
        costs = []
        for turn in range(40):
            chat.append(call(f"city {turn}"))
            asked.clear()
            chat.append(result(f"rain {turn}"))
            costs.append(len(asked))
        assert max(costs[5:]) == costs[5]

    def test_c2_a_budget_parts_no_call_from_its_result(self, chat: tape.Tape) -> None:
        """Whatever is left out, each call that is shown has the result that it had."""
        call, result = NAMELESS["gemini"]
        for turn in range(6):
            chat.append(role="user", content="look " * 9)
            for step in range(3):
                places = [f"{turn}{step}{n}" for n in range(3)]
                chat.append(call(*places))
                chat.append(result(*(f"in {place} " + "rain " * 30 for place in places)))
        for budget in range(450, 3_000, 150):
            context = chat.context(budget=budget)
            check_all(context)
            assert context.repairs == []
            request = context.to_openai()
            calls = {made["id"]: made["function"]["arguments"] for one in request for made in one.get("tool_calls", [])}
            for one in request:
                if one["role"] == "tool" and "in " in one["content"]:
                    place = json.loads(calls[one["tool_call_id"]])["city"]
                    assert f"in {place} " in one["content"]

    def test_what_is_opaque_is_neither_shown_nor_found(self, chat: tape.Tape) -> None:
        """The signature of a call is for the model that made it."""
        call, result = NAMELESS["gemini"]
        snake = {"function_call": {"name": "look", "args": {}}, "thought_signature": "c2ln"}
        chat.extend([call("Oslo"), result("rain"), {"role": "model", "parts": [snake]}])
        assert chat.search("c2ln") == []
        for api in APIS:
            assert "c2ln" not in repr(renderings(chat.context())[api])

    @pytest.mark.parametrize(("call", "result"), NAMELESS.values(), ids=NAMELESS)
    def test_c3_their_results_are_cut(self, call: Any, result: Any) -> None:
        """A long result is cut, and still answers its call."""
        short = shorten(result("found " * 500), 100)
        assert "characters cut" in repr(short)
        assert toolcalls.find(short)[1] == toolcalls.find(call("Oslo"))[0]
