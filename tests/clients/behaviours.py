"""What every client is to find: one function for each behaviour, the same for all clients.

A behaviour scripts the provider, has the client's driver play a scenario against the product, and looks at what the
client made of it and at what reached the provider.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.clients.driver import Driver, Said
from tests.harness import toolshed
from tests.harness.wire import raw_connection
from tests.scripted_upstream import Call, ErrorEvent, Hang, Pace, Reply, Shape, Upstream
from tests.scripted_upstream.records import RequestRecord, text_of

KEY = "cg-clients-of-the-matrix"
WRONG_KEY = "cg-somebody-else"
BARE = "bare"
"""A model without server-side tools: what it is asked and what it says passes through."""
TEXTUAL = "agent-xml"
"""A model without function calling, which writes its calls as XML; what it says follows directives in the prompt."""
MODELS = ("m", "org/second", "gpt-5", BARE, TEXTUAL)
SERVER_TOOLS = ("get_weather", "send_mail", "wait_for_gate")
ONE_TURN = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
TWO_TURNS = [20, 10, 30]
WEATHER = Call("get_weather", {"city": "Oslo"})
LOOKUP = Call("lookup_word", {"word": "crane"})
OTHER_LOOKUP = Call("lookup_word", {"word": "bank"})
RAN = [["lookup_word", {"word": "crane"}]]
RAN_BOTH = [*RAN, ["lookup_word", {"word": "bank"}]]
MEANING = "a bird with long legs"
OTHER_MEANING = "the side of a river"
PERSON = {"name": "Ada", "age": 36}
PERSON_TEXT = '{"name": "Ada", "age": 36}'
FIRST_WORDS = "So it begins, and then "
PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Scene:
    """A client, the product and the provider, ready to play."""

    driver: Driver
    provider: Upstream
    url: str

    async def ask(self, do: str, **what: Any) -> Said:
        """A scenario that must not end in an error."""
        said = await self.try_to(do, **what)
        assert said.error is None, said.error
        return said

    async def try_to(self, do: str, **what: Any) -> Said:
        base = {
            "base_url": f"{self.url}/v1",
            "key": KEY,
            "model": "m",
            "prompt": "hello",
            "stream": False,
            "headers": {},
        }
        return await self.driver.ask(do, **{**base, "flavour": self.driver.client.flavour, **what})

    def say(self, *replies: Reply, model: str = "m") -> None:
        """One conversation, whose turns are distinguished by the results that the provider has been given."""
        self.provider.script(model, _by_results(replies))


Play = Callable[[Scene], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One thing a client does; several may share a column of the table."""

    name: str
    column: str
    play: Play


BEHAVIOURS: list[Behaviour] = []
COLUMNS = {
    "plain": "a whole answer, its text and its finish reason.",
    "streamed": "the same in pieces, through the client's own stream helper where it has one.",
    "usage": "tokens of all turns added up, whole and streamed.",
    "own tools": "the client's tool loop: it is handed its call, runs it, and comes back; whole and streamed.",
    "server tools": "tools that run here: the client sees text and no call; alone, and before a call of its own.",
    "mixed": "a server-side tool and one of the client in one turn of the model; whole and streamed.",
    "reasoning": "tools of both sides with a model that thinks aloud (`reasoning_content`) between them.",
    "progress": "the same answer when progress of tools is asked for (`X-Callgate-Events: x` or `reasoning`).",
    "odd providers": "its tools, while the provider leaves out indexes and ids, and says `stop` where it calls.",
    "text calls": "tools of both sides with a model that cannot call functions and writes its calls as XML.",
    "half calls": "a call of its own that the model cut off is asked for again, and seen only once it is whole.",
    "pass-through": "all of that on a model without server-side tools, whose answers go through as they are.",
    "slow tools": "a server-side tool that outlasts the heartbeat of a stream.",
    "errors": "401, 404, 400 and 429 as the client's own exceptions, and an error in the middle of a stream.",
    "written once": "a failure after a tool has written is not repeated by the client's own retries.",
    "models": "the list of models, and one of them.",
    "structured": "a typed answer, whole, streamed, and after a server-side tool.",
    "cancel": "leaving a stream, or giving up on a whole answer, ends the model's answer and the running tools.",
}
"""The columns of the table, and what a `yes` in them means."""


def behaviour(column: str) -> Callable[[Play], Play]:
    def enter(play: Play) -> Play:
        BEHAVIOURS.append(Behaviour(play.__name__, column, play))
        return play

    return enter


# Answers --------------------------------------------------------------------------------------------------------------


@behaviour("plain")
async def plain(scene: Scene) -> None:
    scene.say(Reply(text="Hello there."))
    said = await scene.ask("plain")
    assert (said.text, said.seen) == ("Hello there.", [])
    assert said.finish in ("stop", None)


@behaviour("streamed")
async def streamed(scene: Scene) -> None:
    text = "Hello there, this comes in more than one piece: ä 東京 🙂."
    scene.say(Reply(text=text))
    said = await scene.ask("streamed")
    assert said.text == text
    assert said.pieces > 2
    assert said.finish in ("stop", None)
    assert scene.provider.requests[0].stream


@behaviour("usage")
async def usage_of_all_turns(scene: Scene) -> None:
    scene.say(Reply(calls=[WEATHER], usage=ONE_TURN), Reply(text="4 C", usage=ONE_TURN))
    assert (await scene.ask("plain")).usage == TWO_TURNS


@behaviour("usage")
async def usage_of_all_turns_in_a_stream(scene: Scene) -> None:
    scene.say(Reply(calls=[WEATHER], usage=ONE_TURN), Reply(text="4 C", usage=ONE_TURN))
    assert (await scene.ask("streamed")).usage == TWO_TURNS


# Tools ----------------------------------------------------------------------------------------------------------------


async def _own_tools(scene: Scene, *, stream: bool) -> None:
    scene.say(Reply(calls=[LOOKUP]), Reply(text="A crane is a bird."))
    said = await scene.ask("tools", stream=stream)
    assert (said.text, said.seen, said.ran) == ("A crane is a bird.", ["lookup_word"], RAN)
    [result] = scene.provider.requests[-1].tool_results.values()
    assert MEANING in result


@behaviour("own tools")
async def own_tools(scene: Scene) -> None:
    await _own_tools(scene, stream=False)


@behaviour("own tools")
async def own_tools_streamed(scene: Scene) -> None:
    await _own_tools(scene, stream=True)


async def _two_of_them(scene: Scene, *, stream: bool) -> None:
    """Two calls in one turn, with words before them."""
    scene.provider.script("m", [Reply(text="Two words.", calls=[LOOKUP, OTHER_LOOKUP]), Reply(text="Found.")])
    said = await scene.ask("tools", stream=stream)
    assert (said.text, said.seen) == ("Found.", ["lookup_word"] * 2)
    assert sorted(said.ran, key=str) == sorted(RAN_BOTH, key=str)
    last = scene.provider.requests[-1]
    crane, bank = last.tool_results.values()
    assert MEANING in crane
    assert OTHER_MEANING in bank
    assert [text_of(message["content"]) for message in last.messages if message.get("tool_calls")] == ["Two words."]


@behaviour("own tools")
async def two_own_tools(scene: Scene) -> None:
    await _two_of_them(scene, stream=False)


@behaviour("own tools")
async def two_own_tools_streamed(scene: Scene) -> None:
    await _two_of_them(scene, stream=True)


async def _odd_provider(scene: Scene, *, stream: bool) -> None:
    """A provider that leaves out indexes and ids, says each name again and again, and ends with `stop`."""
    shape = Shape(index="none", ids="none", one_chunk=True, comments=True, crlf=True, usage_everywhere=True)
    odd = Reply(calls=[LOOKUP], finish="stop", shape=shape)
    scene.provider.script("m", [odd, Reply(text="A bird.", finish="eos", shape=shape)], lax=True)
    said = await scene.ask("tools", stream=stream)
    assert (said.text, said.seen, said.ran) == ("A bird.", ["lookup_word"], RAN)
    assert said.finish in ("stop", None)


@behaviour("odd providers")
async def odd_provider(scene: Scene) -> None:
    await _odd_provider(scene, stream=False)


@behaviour("odd providers")
async def odd_provider_streamed(scene: Scene) -> None:
    await _odd_provider(scene, stream=True)


async def _calls_as_text(scene: Scene, *, stream: bool) -> None:
    """Calls that the model wrote into its text: ours run, the client's come to it as calls, and no XML as text."""
    directives = [
        'CALL get_weather {"city": "Oslo"}',
        "THEN",
        'CALL lookup_word {"word": "crane"}',
        "THEN",
        "SAY A bird.",
    ]
    said = await scene.ask("tools", stream=stream, model=TEXTUAL, prompt="\n".join(directives))
    assert (said.text, said.seen, said.ran) == ("A bird.", ["lookup_word"], RAN)
    assert not scene.provider.requests[0].tool_names


@behaviour("text calls")
async def calls_as_text(scene: Scene) -> None:
    await _calls_as_text(scene, stream=False)


@behaviour("text calls")
async def calls_as_text_streamed(scene: Scene) -> None:
    await _calls_as_text(scene, stream=True)


async def _half_a_call(scene: Scene, *, stream: bool) -> None:
    """The model's call is cut off. It is asked again, and the client sees only the call that came whole."""
    half = Reply(calls=[Call("lookup_word", '{"word": "cra')], finish="tool_calls")
    scene.provider.script("m", [half, Reply(calls=[LOOKUP]), Reply(text="A bird.")])
    said = await scene.ask("tools", stream=stream)
    assert (said.text, said.seen, said.ran) == ("A bird.", ["lookup_word"], RAN)


@behaviour("half calls")
async def half_a_call(scene: Scene) -> None:
    await _half_a_call(scene, stream=False)


@behaviour("half calls")
async def half_a_call_streamed(scene: Scene) -> None:
    await _half_a_call(scene, stream=True)


async def _server_tool(scene: Scene, *, stream: bool) -> None:
    """The client has its tool loop ready, and must find nothing to run."""
    scene.say(Reply(text="Let me see.", calls=[WEATHER]), Reply(text="It is 4 C."))
    said = await scene.ask("tools", stream=stream)
    assert (said.text, said.seen, said.ran) == ("Let me see.\n\nIt is 4 C.", [], [])
    assert said.finish in ("stop", None)
    assert list(scene.provider.requests[-1].tool_results.values()) == ["4 C in Oslo"]


@behaviour("server tools")
async def server_tool(scene: Scene) -> None:
    await _server_tool(scene, stream=False)


@behaviour("server tools")
async def server_tool_streamed(scene: Scene) -> None:
    await _server_tool(scene, stream=True)


async def _progress_shown(scene: Scene, dialect: str) -> None:
    """On request a stream shows what its tools do, and no client takes that for the answer."""
    scene.say(Reply(text="Let me see.", calls=[WEATHER]), Reply(text="It is 4 C."))
    refused = await scene.try_to("plain", headers={"x-callgate-events": "nonsense"})
    assert refused.error is not None, "the header did not arrive"
    said = await scene.ask("tools", stream=True, headers={"x-callgate-events": dialect})
    assert (said.text, said.seen, said.ran) == ("Let me see.\n\nIt is 4 C.", [], [])


@behaviour("progress")
async def progress_beside_the_chunks(scene: Scene) -> None:
    await _progress_shown(scene, "x")


@behaviour("progress")
async def progress_as_reasoning(scene: Scene) -> None:
    await _progress_shown(scene, "reasoning")


async def _reasoning(scene: Scene, *, stream: bool) -> None:
    """A model that thinks aloud before its calls and its answer."""
    turns = [Reply(reasoning="First the weather.", calls=[WEATHER]), Reply(reasoning="Now the word.", calls=[LOOKUP])]
    scene.say(*turns, Reply(reasoning="That is all.", text="4 C, and a bird."))
    said = await scene.ask("tools", stream=stream)
    assert (said.text, said.seen, said.ran) == ("4 C, and a bird.", ["lookup_word"], RAN)


@behaviour("reasoning")
async def reasoning(scene: Scene) -> None:
    await _reasoning(scene, stream=False)


@behaviour("reasoning")
async def reasoning_streamed(scene: Scene) -> None:
    await _reasoning(scene, stream=True)


async def _server_then_client(scene: Scene, *, stream: bool) -> None:
    scene.say(Reply(calls=[WEATHER]), Reply(calls=[LOOKUP]), Reply(text="4 C, and a bird."))
    said = await scene.ask("tools", stream=stream)
    assert (said.text, said.seen, said.ran) == ("4 C, and a bird.", ["lookup_word"], RAN)


@behaviour("server tools")
async def server_tool_then_own(scene: Scene) -> None:
    await _server_then_client(scene, stream=False)


@behaviour("server tools")
async def server_tool_then_own_streamed(scene: Scene) -> None:
    await _server_then_client(scene, stream=True)


async def _mixed(scene: Scene, *, stream: bool) -> None:
    """Both in one turn: the client runs its own, and the provider gets the results of both in the order of the calls."""
    scene.say(Reply(calls=[WEATHER, LOOKUP]), Reply(text="4 C, and a bird."))
    said = await scene.ask("tools", stream=stream)
    assert (said.text, said.seen, said.ran) == ("4 C, and a bird.", ["lookup_word"], RAN)
    last = scene.provider.requests[-1]
    ours, theirs = last.tool_results.values()
    assert ours == "4 C in Oslo"
    assert MEANING in theirs


@behaviour("mixed")
async def mixed(scene: Scene) -> None:
    await _mixed(scene, stream=False)


@behaviour("mixed")
async def mixed_streamed(scene: Scene) -> None:
    await _mixed(scene, stream=True)


async def _mixed_twice(scene: Scene, *, stream: bool) -> None:
    """Two mixed turns one after the other: the provider knows the whole history, in its order."""
    replies = [Reply(calls=[WEATHER, LOOKUP]), Reply(calls=[OTHER_LOOKUP, WEATHER]), Reply(text="All found.")]
    scene.provider.script("m", replies)
    said = await scene.ask("tools", stream=stream)
    assert (said.text, said.ran) == ("All found.", RAN_BOTH)
    results = [*scene.provider.requests[-1].tool_results.values()]
    weather = "4 C in Oslo"
    assert len(results) == 4
    assert all(part in result for part, result in zip([weather, MEANING, OTHER_MEANING, weather], results, strict=True))


@behaviour("mixed")
async def mixed_twice(scene: Scene) -> None:
    await _mixed_twice(scene, stream=False)


@behaviour("mixed")
async def mixed_twice_streamed(scene: Scene) -> None:
    await _mixed_twice(scene, stream=True)


async def _slow_server_tool(scene: Scene, *, stream: bool) -> None:
    """The tool takes longer than the heartbeat, so that a stream carries chunks which say nothing."""
    scene.say(Reply(text="Let me see.", calls=[Call("wait_for_gate")]), Reply(text="Seen."))
    async with toolshed.held() as running, raw_connection(scene.url) as beside:
        asking = asyncio.create_task(scene.ask("tools", stream=stream))
        try:
            await _until(running.started)
            question = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
            await beside.post("/v1/chat/completions", question, {"authorization": f"Bearer {KEY}"})
            for _ in range(3):
                # the opening chunk, and two heartbeats: by then the client, who was earlier, has had one as well
                await beside.until(b'"content":""')
                beside.received.clear()
            running.gate.set()
            said = await asking
        finally:
            asking.cancel()
        await beside.until(b"[DONE]")
    assert (said.text, said.seen, said.ran) == ("Let me see.\n\nSeen.", [], [])


@behaviour("slow tools")
async def slow_server_tool(scene: Scene) -> None:
    await _slow_server_tool(scene, stream=False)


@behaviour("slow tools")
async def slow_server_tool_streamed(scene: Scene) -> None:
    await _slow_server_tool(scene, stream=True)


# Passed through -------------------------------------------------------------------------------------------------------


@behaviour("pass-through")
async def passed_whole(scene: Scene) -> None:
    scene.say(Reply(text="Hello there.", usage=ONE_TURN), model=BARE)
    said = await scene.ask("plain", model=BARE)
    assert (said.text, said.usage) == ("Hello there.", [10, 5, 15])


@behaviour("pass-through")
async def passed_streamed(scene: Scene) -> None:
    text = "Hello there, this comes in more than one piece."
    scene.say(Reply(text=text, usage=ONE_TURN), model=BARE)
    said = await scene.ask("streamed", model=BARE)
    assert (said.text, said.usage) == (text, [10, 5, 15])
    assert said.pieces > 2


async def _passed_tools(scene: Scene, *, stream: bool) -> None:
    scene.say(Reply(calls=[LOOKUP]), Reply(text="A crane is a bird."), model=BARE)
    said = await scene.ask("tools", stream=stream, model=BARE)
    assert (said.text, said.seen, said.ran) == ("A crane is a bird.", ["lookup_word"], RAN)
    assert scene.provider.requests[0].tool_names == ["lookup_word"]


@behaviour("pass-through")
async def passed_tools(scene: Scene) -> None:
    await _passed_tools(scene, stream=False)


@behaviour("pass-through")
async def passed_tools_streamed(scene: Scene) -> None:
    await _passed_tools(scene, stream=True)


@behaviour("pass-through")
async def passed_structured_streamed(scene: Scene) -> None:
    scene.provider.script(BARE, _person)
    assert (await scene.ask("structured", stream=True, model=BARE)).parsed == PERSON


@behaviour("pass-through")
async def passed_refusal(scene: Scene) -> None:
    await _refused(scene, "plain", model=BARE)


@behaviour("pass-through")
async def passed_error_inside_a_stream(scene: Scene) -> None:
    # paced, because an error that comes with the first words is an error of the whole answer
    reply = Reply(text=FIRST_WORDS * 3, fault=ErrorEvent(after=4, code="server_error"), pace=Pace(between=0.05))
    scene.say(reply, model=BARE)
    said = await scene.try_to("streamed", model=BARE)
    assert said.error is not None
    assert said.error.type == scene.driver.client.errors["stream"]


@behaviour("pass-through")
async def leaving_what_passes_through(scene: Scene) -> None:
    scene.say(Reply(text=FIRST_WORDS * 3, fault=Hang(after=5)), model=BARE)
    await scene.ask("leave", stream=True, model=BARE)
    assert await scene.provider.requests[0].until_closed() == "client_disconnected"


# Errors ---------------------------------------------------------------------------------------------------------------


def _check_fault(
    scene: Scene, said: Said, kind: str, *, message: str, code: str | None, param: str | None = None
) -> None:
    fault, shown = said.error, scene.driver.client.error_fields
    assert fault is not None, f"no error was raised: {said}"
    if kind == "stream":
        code = scene.driver.client.stream_code
    assert fault.type == scene.driver.client.errors[kind], fault
    assert message in fault.message
    if kind.isdigit() and "status" in shown:
        assert fault.status == int(kind)
    if "code" in shown:
        assert fault.code == code
    if "param" in shown:
        assert fault.param == param


@behaviour("errors")
async def wrong_key(scene: Scene) -> None:
    scene.say()
    said = await scene.try_to("plain", key=WRONG_KEY)
    _check_fault(scene, said, "401", message="key", code="invalid_api_key")


@behaviour("errors")
async def unknown_model(scene: Scene) -> None:
    scene.say()
    said = await scene.try_to("plain", model="no-such-model")
    _check_fault(scene, said, "404", message="no-such-model", code="model_not_found", param="model")


async def _refused(scene: Scene, do: str, *, model: str = "m") -> None:
    error = {
        "message": "This model's maximum context length is 8 tokens.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
    scene.say(Reply(status=400, body={"error": error}), model=model)
    said = await scene.try_to(do, model=model)
    _check_fault(scene, said, "400", message="maximum context", code="context_length_exceeded", param="messages")


@behaviour("errors")
async def refused_by_the_provider(scene: Scene) -> None:
    await _refused(scene, "plain")


@behaviour("errors")
async def refused_before_a_stream(scene: Scene) -> None:
    """A stream is not promised with a 200 before the provider has said its first word."""
    await _refused(scene, "streamed")


@behaviour("errors")
async def too_many_requests(scene: Scene) -> None:
    error = {"message": "Slow down.", "type": "requests", "param": None, "code": "rate_limit_exceeded"}
    scene.say(Reply(status=429, headers={"retry-after": "1"}, body={"error": error}))
    said = await scene.try_to("plain")
    _check_fault(scene, said, "429", message="", code="rate_limit_exceeded")


@behaviour("errors")
async def repeated_after_too_many_requests(scene: Scene) -> None:
    """The client waits as long as the header says, and then has its answer."""
    error = {"message": "Slow down.", "type": "requests", "param": None, "code": "rate_limit_exceeded"}
    full = Reply(status=429, headers={"retry-after": "1"}, body={"error": error})
    scene.provider.script("m", [full, Reply(text="Here you are.")])
    began = asyncio.get_running_loop().time()
    assert (await scene.ask("plain", retries=1)).text == "Here you are."
    assert asyncio.get_running_loop().time() - began > 0.9


@behaviour("errors")
async def error_inside_a_stream(scene: Scene) -> None:
    scene.say(Reply(text=FIRST_WORDS * 3, fault=ErrorEvent(after=4)))
    said = await scene.try_to("streamed")
    _check_fault(scene, said, "stream", message="in the middle of its answer", code="upstream_error")


async def _written_once(scene: Scene, do: str) -> None:
    """A tool that writes has run when the provider fails. The client repeats failures, but must not repeat this one."""
    scene.say(Reply(calls=[Call("send_mail", {"to": "ada", "text": "hi"})]), Reply(status=500, body={}))
    said = await scene.try_to(do, retries=2)
    assert said.error is not None
    assert len([request for request in scene.provider.requests if not request.tool_results]) == 1


@behaviour("written once")
async def written_once(scene: Scene) -> None:
    await _written_once(scene, "plain")


@behaviour("written once")
async def written_once_streamed(scene: Scene) -> None:
    await _written_once(scene, "streamed")


# The rest -------------------------------------------------------------------------------------------------------------


@behaviour("models")
async def models(scene: Scene) -> None:
    scene.say()
    assert (await scene.ask("models")).models == list(MODELS)
    assert not scene.provider.requests


async def _structured(scene: Scene, *, stream: bool) -> None:
    scene.provider.script("m", _person)
    assert (await scene.ask("structured", stream=stream)).parsed == PERSON


@behaviour("structured")
async def structured(scene: Scene) -> None:
    await _structured(scene, stream=False)


@behaviour("structured")
async def structured_streamed(scene: Scene) -> None:
    await _structured(scene, stream=True)


@behaviour("structured")
async def structured_after_a_server_tool(scene: Scene) -> None:
    def answer(request: RequestRecord) -> Reply:
        forced = isinstance(request.body.get("tool_choice"), dict)
        return _person(request) if forced or request.tool_results else Reply(calls=[WEATHER])

    scene.provider.script("m", answer)
    assert (await scene.ask("structured")).parsed == PERSON


@behaviour("cancel")
async def leaving_while_the_model_speaks(scene: Scene) -> None:
    scene.say(Reply(text=FIRST_WORDS * 3, fault=Hang(after=5)))
    said = await scene.ask("leave", stream=True)
    assert FIRST_WORDS.startswith(said.text[:2])
    assert await scene.provider.requests[0].until_closed() == "client_disconnected"


@behaviour("cancel")
async def leaving_while_a_server_tool_runs(scene: Scene) -> None:
    scene.say(Reply(text=FIRST_WORDS, calls=[Call("wait_for_gate")]))
    async with toolshed.held() as running:
        await scene.ask("leave", stream=True)
        await _until(running.cancelled)


@behaviour("cancel")
async def giving_up_on_a_whole_answer(scene: Scene) -> None:
    scene.say(Reply(text="Never.", fault=Hang()))
    said = await scene.try_to("give_up", patience=0.5)
    assert said.error is not None
    assert await scene.provider.requests[0].until_closed() == "client_disconnected"


async def _until(event: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE):
        await event.wait()


def _by_results(replies: Sequence[Reply]) -> Callable[[RequestRecord], Reply]:
    """The reply after which the results that are there were given: rounds that run here may not come back to us."""

    def choose(request: RequestRecord) -> Reply:
        known = " ".join(request.tool_results.values())
        marks = {
            "get_weather": "4 C in Oslo",
            "lookup_word": MEANING,
            "wait_for_gate": "waited",
            "send_mail": "refused",
        }
        at = 0
        for number, reply in enumerate(replies):
            if reply.calls and marks[str(reply.calls[-1].name)] in known:
                at = number + 1
        return replies[at]

    return choose


def _person(request: RequestRecord) -> Reply:
    """The person that was asked for, in the way it was asked for: as text, or as a call."""
    choice = request.body.get("tool_choice")
    if isinstance(choice, dict):
        return Reply(calls=[Call(choice["function"]["name"], PERSON)])
    theirs = [name for name in request.tool_names if name not in (*toolshed.SAFETY, "read_more")]
    return Reply(calls=[Call(theirs[-1], PERSON)]) if theirs else Reply(text=PERSON_TEXT)
