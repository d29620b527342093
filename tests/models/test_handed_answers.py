"""Answers that are handed on from within the reads that bring them say the same as those that are iterated."""

import asyncio
import contextlib
import json
from contextvars import ContextVar

import msgspec
import pytest

from callgate.conversation.errors import BrokenOff, ChatError
from callgate.conversation.events import ModelOutput, Passed, TextDelta
from callgate.conversation.listeners import NOTHING
from callgate.conversation.loop import converse
from callgate.conversation.ports import Passthrough
from callgate.http.client import HttpClient
from callgate.http.connection import ClientConnection
from callgate.models.direct.model import PIECE, Endpoint
from callgate.models.direct.passthrough import PassthroughModel
from callgate.policy.litellm_settings import without_settings
from callgate.recorder.recording import RunRecording
from callgate.records.policy import RecordPolicy
from callgate.records.row import RunRow
from tests.fakes import ScriptedToolbox
from tests.models.wire import QUICK, asking, chunk, closing, raw_provider

pytestmark = pytest.mark.anyio

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
ANSWER_BYTES = 3 * PIECE
WHO = ContextVar("WHO", default="nobody")


def event(value):
    return f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode()


def word(text):
    return event(chunk({"content": text}))


def argument(text, **more):
    return event(chunk({"tool_calls": [{"index": 0, **more, "function": {"arguments": text}}]}))


STOP = event(chunk({}, "stop"))
COUNTED = event({**chunk(), "choices": [], "usage": USAGE})
DONE = event("[DONE]")
WORDS = [word(f"word {number} ") for number in range(12)]

STREAMS = {
    "words": [*WORDS, STOP + COUNTED + DONE],
    "an end by itself": [*WORDS, STOP, COUNTED, DONE],
    "events in parts": [*WORDS, word("a")[:9], word("a")[9:-1], b"\n", STOP[:-2], b"\n\n", DONE],
    "two in one read": [*WORDS, word("a") + word("b"), STOP + DONE],
    "comments": [*WORDS, b": ping\n\n", *WORDS, STOP + DONE],
    "a call": [
        word("a"),
        argument("", id="c", type="function"),
        *map(argument, '{"a":1}'),
        event(chunk({}, "tool_calls")) + DONE,
    ],
    "an error": [*WORDS, event({"error": {"message": "no more"}})],
    "no JSON": [*WORDS, event("{nothing"), STOP + DONE],
    "no end": WORDS,
    "a reason alone": [*WORDS, STOP],
    "a long read": [*WORDS, word("x" * 50) * (PIECE // 100), STOP + DONE],
    "more than may be": [*WORDS, *[word("x" * PIECE)] * 4, STOP + DONE],
    "more after its end": [*WORDS, STOP + DONE, word("a")],
    "another body at once": [*WORDS, STOP + DONE + word("a")],
}


@pytest.fixture
async def model():
    client = HttpClient()

    def make(server):
        place = Endpoint(f"{server.url}/v1/chat/completions", "real-m")
        return PassthroughModel("m", place, client, QUICK, answer_bytes=ANSWER_BYTES)

    yield make
    await client.close()


@pytest.fixture
def reads(monkeypatch):
    """Released after each read of a connection."""
    reads = asyncio.Semaphore(0)
    receive = ClientConnection.data_received

    def receive_and_tell(connection, data):
        receive(connection, data)
        reads.release()

    monkeypatch.setattr(ClientConnection, "data_received", receive_and_tell)
    return reads


def passing():
    body = {"model": "mine", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    raw = {name: msgspec.Raw(json.dumps(value).encode()) for name, value in body.items()}
    return Passthrough(without_settings(raw), True, True, 1, has_tools=False, read=asking)


def framed(piece):
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def serve_reads(pieces, reads):
    """Send each piece when the one before has been read."""

    async def serve(request, wire):
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        await reads.acquire()
        for piece in pieces:
            await wire.send(piece)
            await reads.acquire()

    return serve


def serve_framed(pieces, reads):
    return closing(serve_reads([*map(framed, pieces), b"0\r\n\r\n"], reads))


def serve_kept(pieces, reads):
    *earlier, last = map(framed, pieces)
    return serve_reads([*earlier, last + b"0\r\n\r\n"], reads)


async def later():
    await asyncio.sleep(0)


class Taker:
    def __init__(self, *, waits):
        self.events = []
        self.handed = 0
        self._waits = waits

    def take(self, events):
        self.events += events
        return later() if self._waits else NOTHING

    def take_handed(self, events):
        self.handed += 1
        assert WHO.get() == "the asking task"
        return self.take(events)


async def read(model, request, *, is_handed, waits):
    """Return what was taken, how the answer ended, and how many batches were handed on."""
    WHO.set("the asking task")
    taker = Taker(waits=waits)
    end = "whole"
    try:
        async with asyncio.timeout(60), model.send(request) as answer:
            batches = aiter(answer)
            await taker.take(await anext(batches))
            if is_handed:
                answer.hand_to(taker.take_handed)
            async for events in batches:
                await taker.take(events)
    except (BrokenOff, ChatError) as error:
        end = f"{type(error).__name__}: {error}"
    events = taker.events
    if all(isinstance(event, Passed) for event in events):
        reasons = [reason for event in events for reason in event.reasons]
        return b"".join(event.data for event in events), reasons, [event.usage for event in events], end, taker.handed
    return events, end, taker.handed


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "waiting"])
@pytest.mark.parametrize("ask", [passing, asking], ids=["passed on", "read"])
@pytest.mark.parametrize("name", STREAMS)
async def test_a_handed_answer_says_what_an_iterated_one_says(model, reads, name, ask, waits):
    answers = []
    for is_handed in (False, True):
        async with raw_provider(serve_framed(STREAMS[name], reads)) as server:
            answers.append(await read(model(server), ask(), is_handed=is_handed, waits=waits))
        while not reads.locked():
            await reads.acquire()
    (*iterated, none), (*handed, count) = answers
    assert handed == iterated
    assert none == 0
    assert count > 5


class AskedOnce:
    """A model, as the loop asks it."""

    name = "m"

    def __init__(self, model):
        self._model = model

    def send(self, request, attempts=None):
        return self._model.send(request)


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "waiting"])
async def test_what_is_handed_on_of_a_recorded_answer_is_recorded(model, reads, waits):
    recording = RunRecording(RunRow("run_1", 1.0), RecordPolicy(content_bytes=1000), str)
    taker = Taker(waits=waits)

    def emit(event):
        return taker.take(event.events if type(event) is ModelOutput else ())

    async with raw_provider(serve_framed(STREAMS["words"], reads)) as server:
        WHO.set("the asking task")
        await converse(
            asking(),
            AskedOnce(model(server)),
            ScriptedToolbox(),
            emit,
            new_id=str,
            texts=recording.turn_texts(0, ()),
        )
    said = "".join(event.text for event in taker.events if type(event) is TextDelta)
    assert recording.texts["turn.0.text"] == said == "".join(f"word {number} " for number in range(12))


async def test_what_fails_while_it_is_handed_on_is_raised_by_the_iteration(model, reads):
    def fail(_):
        raise ChatError(400, "no more")

    async with raw_provider(serve_framed(STREAMS["words"], reads)) as server, model(server).send(passing()) as answer:
        batches = aiter(answer)
        await anext(batches)
        answer.hand_to(fail)
        with pytest.raises(ChatError, match="no more"):
            await anext(batches)


async def test_nothing_is_handed_on_to_who_was_cancelled(model, reads):
    taken = []

    async def ask(server):
        task = asyncio.current_task()
        assert task is not None

        def take(events):
            taken.append(events)
            task.cancel()
            return later()  # is closed, or Python would warn that nobody awaited it

        async with model(server).send(passing()) as answer:
            batches = aiter(answer)
            await anext(batches)
            answer.hand_to(take)
            await anext(batches)

    async with raw_provider(serve_framed(STREAMS["words"], reads)) as server:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.create_task(ask(server))
    assert len(taken) == 1
    assert type(taken[0][0]) is Passed


async def test_a_connection_that_was_handed_on_from_can_be_used_again(model, reads):
    async with raw_provider(serve_kept([*WORDS, STOP + DONE], reads)) as server:
        for _ in range(2):
            taker = Taker(waits=False)
            WHO.set("the asking task")
            async with model(server).send(asking()) as answer:
                batches = aiter(answer)
                await anext(batches)
                answer.hand_to(taker.take_handed)
                async for events in batches:
                    await taker.take(events)
            assert [event.text for event in taker.events if type(event) is TextDelta] == [
                f"word {number} " for number in range(1, 12)
            ]
        assert server.connections == 1
