"""Twelve probes of a tool loop, played over the wire in both modes: an unreliable loop fails some of them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from callgate.application import create_app
from callgate.config.schema.whole import Config
from tests.harness import toolshed
from tests.harness.configs import config_dict, make_config
from tests.harness.server import serve
from tests.harness.wire import RawAnswer, raw_connection, raw_post
from tests.scripted_upstream import Call, Cut, Reply, Shape, Upstream

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
WRITTEN = pytest.mark.parametrize("form", ["json", "hermes", "xml"])
QUESTION = {"role": "user", "content": "Clear the old reports away."}
CLIENT_TOOL = {"type": "function", "function": {"name": "ask_user", "parameters": {"type": "object"}}}
PATH = "/reports/2019/january.txt"


@dataclass(slots=True)
class Workplace:
    """What the tools of these tests did, and where some of them meet."""

    deleted: list[str] = field(default_factory=list)
    searched: list[str] = field(default_factory=list)
    meeting: asyncio.Barrier = field(default_factory=lambda: asyncio.Barrier(5))


_at_work = Workplace()


@pytest.fixture
def work() -> Workplace:
    global _at_work  # noqa: PLW0603 - the tools are found by import path and can be given nothing
    _at_work = Workplace()
    return _at_work


async def delete(path: str = "/") -> str:
    """Deletes a file; without a path, everything. Arguments that are lost and taken as none would be seen."""
    _at_work.deleted.append(path)
    return f"deleted {path}"


async def search(query: str = "") -> str:
    """Finds files."""
    _at_work.searched.append(query)
    return PATH


async def meet(label: str) -> str:
    """Comes back only when five of its kind are at it at the same time."""
    await _at_work.meeting.wait()
    return f"met {label}"


def tool(name: str) -> dict[str, Any]:
    return {"kind": "python", "function": f"{__name__}:{name}", "safety": "write" if name == "delete" else "read_only"}


TOOLS = [tool("delete"), tool("search"), tool("meet")]


@contextlib.asynccontextmanager
async def served_in_form(provider: Upstream, form: str = "native", **options: Any) -> AsyncIterator[str]:
    config = make_config(provider.url, tools=TOOLS, entry={"tool_calling": form}, **options)
    async with serve(create_app(config)) as url:
        yield url


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    finish_reason: str
    calls: Sequence[dict[str, Any]]
    diagnostics: dict[str, Any]

    @property
    def flaws(self) -> list[str]:
        return [call["flaw"] for turn in self.diagnostics["turns"] for call in turn["calls"] if "flaw" in call]


async def ask(url: str, stream: bool, messages: Sequence[Any] = (QUESTION,), **fields: Any) -> Answer:
    """One request; whatever is not exactly one clean answer fails."""
    answer = await raw_post(url, {"model": "m", "messages": list(messages), "stream": stream, **fields})
    assert answer.status == 200, answer.body
    assert answer.ended == "complete"
    return read_stream(answer) if stream else read_whole(answer)


def read_whole(answer: RawAnswer) -> Answer:
    body = json.loads(answer.body)
    [choice] = body["choices"]
    message = choice["message"]
    return Answer(
        message["content"] or "", choice["finish_reason"], message.get("tool_calls") or [], body["x_callgate"]
    )


def read_stream(answer: RawAnswer) -> Answer:
    assert answer.data.count("[DONE]") == 1
    assert answer.data[-1] == "[DONE]"
    assert not any("error" in chunk for chunk in answer.chunks)
    choices = [choice for chunk in answer.chunks for choice in chunk["choices"]]
    [finish] = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    assert sum("role" in choice["delta"] for choice in choices) == 1
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    calls: dict[int, dict[str, Any]] = {}
    for piece in (piece for choice in choices for piece in choice["delta"].get("tool_calls") or []):
        call = calls.setdefault(piece["index"], {"id": piece.get("id"), "function": {"name": "", "arguments": ""}})
        for key, value in piece["function"].items():
            call["function"][key] += value
    [diagnostics] = [chunk["x_callgate"] for chunk in answer.chunks if "turns" in chunk.get("x_callgate", {})]
    return Answer(text, finish, list(calls.values()), diagnostics)


def results(provider: Upstream) -> list[str]:
    """The results of tools that the model read last."""
    return [message["content"] for message in provider.requests[-1].messages if message["role"] == "tool"]


# 1: truncated arguments -----------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("arguments", ["", "{", '{"path', '{"path":', '{"path":"/rep', '{"path":"/reports"'])
async def test_a_call_cut_by_the_limit_is_not_run_and_the_model_repeats_it(
    upstream: Upstream, work: Workplace, stream: bool, arguments: str
) -> None:
    upstream.script(
        "m",
        [
            Reply(calls=[Call("delete", arguments)], finish="length"),
            Reply(calls=[Call("delete", {"path": PATH})]),
            Reply(text="Gone."),
        ],
    )
    async with served_in_form(upstream) as url:
        answer = await ask(url, stream)
    assert work.deleted == [PATH]
    assert (answer.text, answer.finish_reason, answer.calls) == ("Gone.", "stop", [])
    assert len(answer.flaws) == 1
    assert json.loads(upstream.requests[1].messages[-1]["content"])["error"]["code"] == answer.flaws[0]


@BOTH
async def test_a_call_that_is_cut_every_time_is_never_run_and_never_shown(
    upstream: Upstream, work: Workplace, stream: bool
) -> None:
    upstream.script("m", [Reply(calls=[Call("delete", '{"path":"/rep')], finish="length")], repeat_last=True)
    async with served_in_form(upstream) as url:
        answer = await ask(url, stream)
    assert work.deleted == []
    assert answer.calls == []
    assert "/rep" not in answer.text
    assert set(answer.flaws) == {"truncated"}
    assert (answer.finish_reason, answer.diagnostics["ending"], len(upstream.requests)) == ("length", "gave_up", 2)


# 2: the wrong finish reason -------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("finish", ["stop", None, "function_call", "end_turn"])
async def test_whole_calls_run_whatever_the_finish_reason(
    upstream: Upstream, work: Workplace, stream: bool, finish: str | None
) -> None:
    upstream.script("m", [Reply(calls=[Call("search", {"query": "2019"})], finish=finish), Reply(text="One file.")])
    async with served_in_form(upstream) as url:
        answer = await ask(url, stream)
    assert work.searched == ["2019"]
    assert (answer.text, answer.finish_reason, answer.calls) == ("One file.", "stop", [])


# 3: a chain -----------------------------------------------------------------------------------------------------------


@BOTH
async def test_a_chain_goes_on_until_the_model_answers(upstream: Upstream, work: Workplace, stream: bool) -> None:
    upstream.script(
        "m",
        [
            Reply(calls=[Call("search", {"query": "2019"})]),
            Reply(calls=[Call("delete", {"path": PATH})]),
            Reply(text="Cleared."),
        ],
    )
    async with served_in_form(upstream) as url:
        answer = await ask(url, stream)
    assert (work.searched, work.deleted) == (["2019"], [PATH])
    assert (answer.text, answer.finish_reason, answer.calls) == ("Cleared.", "stop", [])
    assert results(upstream) == [PATH, f"deleted {PATH}"]


# 4: tools of both sides in one turn -----------------------------------------------------------------------------------


@BOTH
async def test_a_turn_with_tools_of_both_sides_loses_no_result(
    upstream: Upstream, work: Workplace, stream: bool
) -> None:
    both = [Call("delete", {"path": PATH}, id="call_s"), Call("ask_user", {"what": "more?"}, id="call_c")]
    upstream.script("m", [Reply(calls=both), Reply(text="Both done.")])
    async with served_in_form(upstream) as url:
        first = await ask(url, stream, tools=[CLIENT_TOOL])
        [call] = first.calls
        assert (call["id"], call["function"]["name"], first.finish_reason) == ("call_c", "ask_user", "tool_calls")
        assert json.loads(call["function"]["arguments"]) == {"what": "more?"}
        turn = {"role": "assistant", "content": first.text or None, "tool_calls": [{"type": "function", **call}]}
        own = {"role": "tool", "tool_call_id": "call_c", "content": "no"}
        second = await ask(url, stream, [QUESTION, turn, own], tools=[CLIENT_TOOL])
    assert work.deleted == [PATH]
    assert results(upstream) == [f"deleted {PATH}", "no"]
    assert (second.text, second.finish_reason, second.calls) == ("Both done.", "stop", [])


@BOTH
async def test_a_cut_call_beside_a_clients_whole_call_is_not_run_and_the_model_reads_why(
    upstream: Upstream, work: Workplace, stream: bool
) -> None:
    cut = [Call("ask_user", {"what": "more?"}, id="call_c"), Call("delete", '{"path":"/rep', id="call_s")]
    upstream.script("m", [Reply(calls=cut, finish="length"), Reply(text="Never mind.")])
    async with served_in_form(upstream) as url:
        first = await ask(url, stream, tools=[CLIENT_TOOL])
        [call] = first.calls
        assert (call["id"], first.finish_reason) == ("call_c", "tool_calls")
        assert json.loads(call["function"]["arguments"]) == {"what": "more?"}
        turn = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", **call}]}
        own = {"role": "tool", "tool_call_id": "call_c", "content": "no"}
        second = await ask(url, stream, [QUESTION, turn, own], tools=[CLIENT_TOOL])
    assert work.deleted == []
    read = {message["tool_call_id"]: message["content"] for message in upstream.requests[1].messages[2:]}
    assert read["call_c"] == "no"
    assert json.loads(read["call_s"])["error"]["code"] == "truncated"
    assert (second.text, second.finish_reason) == ("Never mind.", "stop")


# 5: a demanded call ---------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "search"}}])
async def test_a_demanded_call_is_demanded_once(upstream: Upstream, work: Workplace, stream: bool, choice: Any) -> None:
    def obedient(request: Any) -> Reply:
        demanded = request.body.get("tool_choice") == choice
        return Reply(calls=[Call("search", {"query": "2019"})]) if demanded else Reply(text="One file.")

    upstream.script("m", obedient)
    async with served_in_form(upstream) as url:
        answer = await ask(url, stream, tool_choice=choice)
    assert work.searched == ["2019"]
    assert (answer.text, answer.finish_reason) == ("One file.", "stop")


# 6: several at once ---------------------------------------------------------------------------------------------------


@BOTH
async def test_five_calls_of_one_turn_are_under_way_at_the_same_time(
    upstream: Upstream, work: Workplace, stream: bool
) -> None:
    upstream.script("m", [Reply(calls=[Call("meet", {"label": str(n)}) for n in range(5)]), Reply(text="All met.")])
    async with asyncio.timeout(30), served_in_form(upstream) as url:
        answer = await ask(url, stream)
    assert results(upstream) == [f"met {n}" for n in range(5)]
    assert answer.text == "All met."


# 7: the limit of turns ------------------------------------------------------------------------------------------------


@BOTH
async def test_at_the_limit_of_turns_the_model_answers_with_what_it_has(
    upstream: Upstream, work: Workplace, stream: bool
) -> None:
    def endless(request: Any) -> Reply:
        if not request.body.get("tools") or request.body.get("tool_choice") == "none":
            return Reply(text="As far as I came.")
        return Reply(calls=[Call("search", {"query": str(request.turn)})])

    upstream.script("m", endless)
    async with served_in_form(upstream, loop={"max_iterations": 3}) as url:
        answer = await ask(url, stream)
    assert work.searched == ["0", "1", "2"]
    *found, refused = results(upstream)
    assert found == [PATH] * 3
    assert json.loads(refused)["error"]["code"] == "limit_reached"
    assert (answer.text, answer.finish_reason, answer.calls) == ("As far as I came.", "stop", [])
    assert answer.diagnostics["ending"] == "turn_limit"


@BOTH
async def test_a_model_that_calls_on_past_the_limit_runs_nothing_more_and_shows_no_call(
    upstream: Upstream, work: Workplace, stream: bool
) -> None:
    upstream.script("m", lambda request: Reply(calls=[Call("search", {"query": str(request.turn)})]))
    async with served_in_form(upstream, loop={"max_iterations": 3}) as url:
        answer = await ask(url, stream)
    assert work.searched == ["0", "1", "2"]
    assert (answer.finish_reason, answer.diagnostics["ending"], answer.calls) == ("stop", "turn_limit", [])


# 8: no call at all ----------------------------------------------------------------------------------------------------


@BOTH
async def test_a_text_answer_while_tools_are_on_offer_is_asked_for_once(
    upstream: Upstream, work: Workplace, stream: bool
) -> None:
    upstream.script("m", [Reply(text="There is nothing to clear away.")])
    async with served_in_form(upstream) as url:
        answer = await ask(url, stream)
    assert len(upstream.requests) == 1
    assert (answer.text, answer.finish_reason, answer.calls) == ("There is nothing to clear away.", "stop", [])


# 9: quoted calls ------------------------------------------------------------------------------------------------------

CALL = json.dumps({"name": "delete", "arguments": {"path": PATH}})
MARKED = {
    "json": CALL,
    "hermes": f"<tool_call>\n{CALL}\n</tool_call>",
    "xml": f'<function_calls>\n<invoke name="delete">\n<parameter name="path">{PATH}</parameter>\n</invoke>\n'
    "</function_calls>",
}
FENCED = "To delete it one would write:\n\n```\n{call}\n```\n\nShall I?"
QUOTES = {
    "fenced": "To delete it one would write:\n\n```\n# gone for good\n{call}\n```\n\nShall I?",
    "inline": "One would write `{call}` here. Shall I?",
    "block_quote": "The manual says:\n\n{quoted}\n\nShall I?",
}


@BOTH
@WRITTEN
@pytest.mark.parametrize("piece", [1, 8])
@pytest.mark.parametrize("quote", QUOTES)
async def test_a_call_that_is_only_quoted_is_shown_as_written_and_not_run(
    upstream: Upstream, work: Workplace, stream: bool, form: str, piece: int, quote: str
) -> None:
    call = MARKED[form] if quote != "inline" else MARKED[form].replace("\n", "")
    text = QUOTES[quote].format(call=call, quoted="\n".join(f"> {line}" for line in call.splitlines()))
    upstream.script("m", [Reply(text=text, shape=Shape(piece=piece))])
    async with served_in_form(upstream, form) as url:
        answer = await ask(url, stream)
    assert work.deleted == []
    assert (answer.text, answer.finish_reason, answer.calls) == (text, "stop", [])


@BOTH
@WRITTEN
async def test_what_a_model_with_calls_of_its_own_writes_as_text_is_text_where_it_is_quoted(
    upstream: Upstream, work: Workplace, stream: bool, form: str
) -> None:
    text = QUOTES["fenced"].format(call=MARKED[form])
    upstream.script("m", [Reply(text=text)])
    async with served_in_form(upstream) as url:
        answer = await ask(url, stream)
    assert work.deleted == []
    assert answer.text == text


@BOTH
@WRITTEN
@pytest.mark.parametrize("lead", ["", "I delete it:\n\n"])
async def test_a_fence_that_ends_the_message_and_holds_only_a_call_runs(
    upstream: Upstream, work: Workplace, stream: bool, form: str, lead: str
) -> None:
    upstream.script("m", [Reply(text=f"{lead}```\n{MARKED[form]}\n```"), Reply(text="Done.")], repeat_last=True)
    async with served_in_form(upstream, form) as url:
        answer = await ask(url, stream)
    assert work.deleted == [PATH]
    assert answer.text == f"{lead}Done."


@BOTH
@WRITTEN
@pytest.mark.parametrize("piece", [1, 8])
async def test_a_call_with_prose_behind_it_is_asked_back_and_runs_once_it_stands_alone(
    upstream: Upstream, work: Workplace, stream: bool, form: str, piece: int
) -> None:
    shown, alone = FENCED.format(call=MARKED[form]), f"I delete it:\n\n{MARKED[form]}"
    upstream.script("m", [Reply(text=shown, shape=Shape(piece=piece)), Reply(text=alone), Reply(text="Done.")])
    async with served_in_form(upstream, form) as url:
        answer = await ask(url, stream)
    assert work.deleted == [PATH]
    assert answer.text == "To delete it one would write:\n\nShall I?\n\nI delete it:\n\nDone."
    assert answer.flaws == ["not_alone"]


@BOTH
@WRITTEN
@pytest.mark.parametrize("piece", [1, 8])
async def test_the_third_answer_running_with_prose_behind_its_call_is_passed_on_as_it_was_written(
    upstream: Upstream, work: Workplace, stream: bool, form: str, piece: int
) -> None:
    text = FENCED.format(call=MARKED[form])
    upstream.script("m", [Reply(text=text, shape=Shape(piece=piece))], repeat_last=True)
    async with served_in_form(upstream, form) as url:
        answer = await ask(url, stream)
    assert (work.deleted, answer.calls, answer.finish_reason) == ([], [], "stop")
    assert len(upstream.requests) == 3
    assert answer.text == "\n\n".join(["To delete it one would write:\n\nShall I?"] * 2 + [text])
    assert answer.diagnostics["ending"] == "answered"
    assert answer.diagnostics["turns"][2]["not_run"] == [{"name": "delete", "reason": "not_alone"}]


# 10: a truncated call in text with another inside -----------------------------------------------------------------------


@BOTH
@WRITTEN
@pytest.mark.parametrize("finish", ["length", "stop"])
async def test_what_stands_inside_a_truncated_call_in_text_is_not_taken_for_a_call(
    upstream: Upstream, work: Workplace, stream: bool, form: str, finish: str
) -> None:
    cut = {
        "json": f'{{"name": "search", "arguments": {{"query": {CALL}, "also": "x',
        "hermes": f'<tool_call>\n{{"name": "search", "arguments": {{"query": {CALL}, "also": "x',
        "xml": f'<function_calls>\n<invoke name="search">\n<parameter name="query">{CALL} and {MARKED["hermes"]}',
    }[form]
    upstream.script("m", [Reply(text=cut, finish=finish), Reply(text="Never mind.")], repeat_last=True)
    async with served_in_form(upstream, form) as url:
        answer = await ask(url, stream)
    assert (work.deleted, work.searched) == ([], [])
    assert answer.calls == []
    assert "delete" not in answer.text
    assert "truncated" in answer.flaws


# 11: a cut answer -----------------------------------------------------------------------------------------------------


@BOTH
async def test_an_answer_cut_by_the_limit_is_given_once_with_the_reason(
    upstream: Upstream, work: Workplace, stream: bool
) -> None:
    upstream.script("m", [Reply(text="There are many reports, of whi", finish="length")])
    async with served_in_form(upstream) as url:
        answer = await ask(url, stream)
    assert len(upstream.requests) == 1
    assert (answer.text, answer.finish_reason) == ("There are many reports, of whi", "length")


@BOTH
async def test_an_answer_cut_by_the_limit_after_a_tool_keeps_the_work_and_does_it_once(
    upstream: Upstream, work: Workplace, stream: bool
) -> None:
    upstream.script("m", [Reply(calls=[Call("delete", {"path": PATH})]), Reply(text="I have del", finish="length")])
    async with served_in_form(upstream) as url:
        answer = await ask(url, stream)
    assert work.deleted == [PATH]
    assert len(upstream.requests) == 2
    assert (answer.text, answer.finish_reason) == ("I have del", "length")


# 12: a slow tool in a stream ------------------------------------------------------------------------------------------


async def test_a_stream_shows_text_before_a_slow_tool_at_once_and_stays_alive_while_it_runs(
    upstream: Upstream,
) -> None:
    upstream.script("m", [Reply(text="One moment.", calls=[Call("wait_for_gate")]), Reply(text="Done.")])
    config = make_config(
        upstream.url, tools=["wait_for_gate"], server={"first_chunk_seconds": 0.05, "heartbeat_seconds": 0.05}
    )
    async with toolshed.held() as running, serve(create_app(config)) as url, raw_connection(url) as connection:
        await connection.post("/v1/chat/completions", {"model": "m", "messages": [QUESTION], "stream": True})
        await running.started.wait()
        opened = await connection.until(b'"delta":{"content":""}', times=3)
        assert opened.startswith(b"HTTP/1.1 200")
        assert b'"One mome"' in opened
        assert not running.gate.is_set()
        running.gate.set()
        answer = read_stream(await connection.answer())
    assert answer.text.split() == ["One", "moment.", "Done."]
    assert (answer.finish_reason, answer.calls) == ("stop", [])


# A first attempt that broke off ---------------------------------------------------------------------------------------

OTHER_PATH = "/reports/2018/december.txt"
BROKEN = [Cut(after=2), Cut(after=2, into=300), Cut(after=4), Cut(after=4, into=300), Cut(after=7)]
ATTEMPTS = pytest.mark.parametrize("fault", BROKEN, ids=lambda fault: f"{fault.after}+{fault.into}")


@BOTH
@ATTEMPTS
async def test_a_call_of_which_a_fragment_came_before_the_break_is_run_once_as_the_second_attempt_writes_it(
    upstream: Upstream, work: Workplace, stream: bool, fault: Cut
) -> None:
    upstream.script(
        "m",
        [
            Reply(calls=[Call("delete", {"path": OTHER_PATH})], fault=fault),
            Reply(calls=[Call("delete", {"path": PATH})]),
            Reply(text="Gone."),
        ],
    )
    async with served_in_form(upstream) as url:
        answer = await ask(url, stream)
    assert work.deleted == [PATH]
    assert results(upstream) == [f"deleted {PATH}"]
    assert (answer.text, answer.finish_reason, answer.calls) == ("Gone.", "stop", [])


@BOTH
@ATTEMPTS
async def test_a_call_of_which_a_fragment_came_before_the_break_is_run_once_as_the_fallback_writes_it(
    upstream: Upstream, work: Workplace, stream: bool, fault: Cut
) -> None:
    broken = Reply(calls=[Call("delete", {"path": OTHER_PATH})], fault=fault)
    upstream.script("m", [broken, Reply(status=503)], repeat_last=True)
    upstream.script("other", [Reply(calls=[Call("delete", {"path": PATH})]), Reply(text="Gone.")], repeat_last=True)
    config = config_dict(upstream.url, models=("m", "other"), tools=TOOLS, upstream={"retries": 0})
    config["model_list"][0]["fallbacks"] = ["other"]
    async with serve(create_app(Config.model_validate(config))) as url:
        answer = await ask(url, stream)
    assert work.deleted == [PATH]
    assert (answer.text, answer.finish_reason, answer.calls) == ("Gone.", "stop", [])


async def test_a_call_that_breaks_off_after_text_was_shown_is_one_error_and_runs_nothing(
    upstream: Upstream, work: Workplace
) -> None:
    upstream.script("m", [Reply(text="At once.", calls=[Call("delete", {"path": PATH})], fault=Cut(after=5))])
    async with served_in_form(upstream) as url:
        answer = await raw_post(url, {"model": "m", "messages": [QUESTION], "stream": True})
    assert work.deleted == []
    assert [chunk["error"]["code"] for chunk in answer.chunks if "error" in chunk] == ["upstream_broke_off"]
    assert answer.data[-1] == "[DONE]"
    assert b"tool_calls" not in answer.body
    assert len(upstream.requests) == 1
