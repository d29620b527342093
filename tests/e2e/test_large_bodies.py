"""Bodies with as many values as are taken, on every face: none keeps the loop for longer than others may wait."""

from collections.abc import Mapping
from typing import Any

import pytest

from callgate.application import create_app
from tests.chaos.scale import held_to
from tests.e2e.test_large_answers import MOST, TRIES, Provider, completion, encoded, ends_of_answer, keys
from tests.harness.configs import make_config
from tests.harness.loop_probe import LoopProbe
from tests.harness.server import serve

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(300)]

HI = [{"role": "user", "content": "hi"}]
NAMES = [f"t{number}" for number in range(12_000)]
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
OBJECT = {"type": "object"}


def client_call(place: int) -> dict[str, Any]:
    return {"id": f"c{place}", "type": "function", "function": {"name": "a", "arguments": "{}"}}


def bodies() -> list[tuple[str, Mapping[str, Any]]]:
    """Made when they are needed: every process of a run reads this module."""
    return [
        (
            CHAT,
            {
                "messages": HI,
                "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": keys(90_000)}},
            },
        ),
        (CHAT, {"messages": HI, "logit_bias": keys(90_000)}),
        (CHAT, {"messages": HI, "functions": [{"name": name} for name in NAMES]}),
        (CHAT, {"messages": HI, "tools": [{"type": "function", "function": {"name": name}} for name in NAMES]}),
        (CHAT, {"messages": [*HI, {"role": "assistant", "tool_calls": [client_call(at) for at in range(6000)]}]}),
        (CHAT, {"messages": HI, **keys(90_000)}),
        (CHAT, {"messages": [{"role": "user", "content": "a,\n" * 2_000_000}]}),
        (MESSAGES, {"messages": HI, "tools": [{"name": name, "input_schema": OBJECT} for name in NAMES]}),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 30_000}]}),
        (MESSAGES, {"messages": HI, **keys(90_000)}),
        (MESSAGES, {"messages": [{"role": "user", "content": "a,\n" * 2_000_000}]}),
        (RESPONSES, {"input": HI * 900}),
        (
            RESPONSES,
            {"input": HI, "tools": [{"type": "function", "name": name, "parameters": OBJECT} for name in NAMES]},
        ),
        (
            RESPONSES,
            {
                "input": HI,
                "tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": n} for n in NAMES]}],
            }
            | {"tool_choice": {"type": "allowed_tools", "tools": [{"type": "custom", "name": n} for n in NAMES]}},
        ),
        (RESPONSES, {"input": HI, **keys(90_000)}),
        (RESPONSES, {"input": "a,\n" * 2_000_000}),
    ]


async def test_a_body_at_its_limits_gives_the_loop_back_on_every_face() -> None:
    longest: dict[str, float] = {}
    async with Provider() as provider:
        provider.body = encoded(completion({}))
        config = make_config(provider.url, tools=("get_time",), logging={"level": "error"})
        async with serve(create_app(config)) as url:
            for place, (path, fields) in enumerate(bodies()):
                body = encoded({"model": "m", "max_tokens": 9, **fields})
                kind = f"{place} {path} {max(fields, key=lambda name: len(str(fields[name])))}"
                for _ in range(TRIES):
                    async with LoopProbe() as probe:
                        answer = await ends_of_answer(url, body, path)
                    assert not answer.startswith("HTTP/1.1 5"), answer
                    longest[kind] = min(probe.longest, longest.get(kind, probe.longest))
                    if longest[kind] < MOST:
                        break
    for kind, seconds in longest.items():
        held_to(MOST, f"a body keeps the loop: {kind}", seconds)


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES, "/v1/messages/count_tokens", "/v1/responses/input_tokens"])
async def test_a_body_with_more_values_than_are_read_is_refused_and_one_with_as_many_commas_is_not(path: str) -> None:
    async with Provider() as provider:
        provider.body = encoded(completion({}))
        async with serve(create_app(make_config(provider.url, logging={"level": "error"}))) as url:
            words = {"model": "m", "max_tokens": 9}
            many = await ends_of_answer(
                url, encoded({**words, "messages": HI, "input": HI, "metadata": keys(110_000)}), path
            )
            text = 'a,["' * 110_000
            field = {"input": text} if "responses" in path else {"messages": [{"role": "user", "content": text}]}
            few = await ends_of_answer(url, encoded({**words, **field}), path)
    assert many.startswith("HTTP/1.1 400")
    assert "more than 100000 values" in many
    assert few.startswith("HTTP/1.1 200"), few
