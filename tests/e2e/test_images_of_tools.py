"""The images that tools return leave a long prompt where old results do, are kept once, and are shown again."""

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from callgate.application import create_app
from tests.harness.clients import http_client
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.harness.toolshed import PHOTO_BYTES, photo_of
from tests.scripted_upstream import Call, Reply, RequestRecord, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.leaves("litellm", why="litellm keeps its thread for logging")]

PHOTOS = 8
TOKENS = 1500
"""Of one image."""
CONTEXT = 16_000
SEES: dict[str, Any] = {"model_info": {"supports_vision": True}}
LIMITED: dict[str, Any] = {**SEES, "context": {"clear_results_above": 0.5, "tokens": CONTEXT}}
LOOP = {"max_iterations": 40}
CLIENT_TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
ASK: list[dict[str, Any]] = [{"role": "user", "content": "Look at all photos, then at the first again."}]
CLEARED = re.compile(
    r"\[This image was cleared to make room\. callgate://kept/(kept_[0-9a-f]{24}): image/png, (\d+) bytes; "
    r'read_more \{"id": "\1"\} shows it again\.\]'
)
_DATA = re.compile(r"[A-Za-z0-9+/=]{1000,}")
LANES: Mapping[str, Mapping[str, Any]] = {
    "openai": {},
    "litellm": {"lane": "litellm"},
    "anthropic": {"provider": "anthropic", "lane": "translated"},
    "prompted": {"provider": "hosted_vllm", "tool_calling": "hermes"},
}


def words(request: RequestRecord) -> str:
    return json.dumps(request.body["messages"], ensure_ascii=False)


def shown(request: RequestRecord) -> list[str]:
    """The images of a prompt."""
    return _DATA.findall(words(request))


def lines(request: RequestRecord) -> list[tuple[str, str]]:
    """The id and the size in each line that stands for an image."""
    return CLEARED.findall(words(request).replace('\\"', '"'))


def photographer(prefix: str = "") -> Callable[[RequestRecord], Reply]:
    """Looks at each photo, then at the first again by what its line says, writing this before the id."""
    turns = 0

    def answer(request: RequestRecord) -> Reply:
        nonlocal turns
        turns += 1
        tokens = len(_DATA.sub("", words(request))) // 4 + TOKENS * len(shown(request))
        usage = {"prompt_tokens": tokens, "completion_tokens": 10, "total_tokens": tokens + 10}
        if turns <= PHOTOS:
            return Reply(calls=[Call("photo", {"number": turns})], usage=usage)
        if turns == PHOTOS + 1 and (cleared := lines(request)):
            return Reply(calls=[Call("read_more", {"id": prefix + cleared[0][0]})], usage=usage)
        return Reply(text="Seen.", usage=usage)

    return answer


async def run(
    upstream: Upstream,
    face: str = "chat/completions",
    *,
    stream: bool = False,
    entry: Mapping[str, Any] = LIMITED,
    headers: Mapping[str, str] | None = None,
    **options: Any,
) -> Sequence[RequestRecord]:
    bodies: Mapping[str, Any] = {
        "chat/completions": {"messages": ASK},
        "responses": {"input": ASK},
        "messages": {"messages": ASK, "max_tokens": 1000},
    }
    url_of_provider = upstream.root if options.get("provider") == "anthropic" else upstream.url
    config = make_config(
        url_of_provider, tools=["photo"], entry={**options.pop("entry", {}), **entry}, loop=LOOP, **options
    )
    async with serve(create_app(config)) as url, http_client(url) as client:
        answer = await client.post(
            f"/v1/{face}", headers=headers, json={"model": "m", "stream": stream, **bodies[face]}
        )
    assert answer.status_code == 200, answer.text
    assert "Seen." in answer.text
    return upstream.requests


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("face", ["chat/completions", "responses", "messages"])
async def test_old_images_become_lines_and_are_shown_again(upstream: Upstream, face: str, stream: bool) -> None:
    upstream.script("m", photographer())
    requests = await run(upstream, face, stream=stream)
    first = photo_of(1).data
    assert first in shown(requests[1])
    assert first not in shown(requests[PHOTOS]), "cleared"
    assert lines(requests[PHOTOS])[0][1] == str(PHOTO_BYTES + 8)
    assert shown(requests[PHOTOS + 1])[-1] == first, "and shown again"
    assert photo_of(PHOTOS).data in shown(requests[PHOTOS + 1]), "the newest stays"


@pytest.mark.parametrize("lane", LANES)
async def test_they_do_behind_every_provider(upstream: Upstream, lane: str) -> None:
    upstream.script("m", photographer("callgate://kept/"))
    options = dict(LANES[lane])
    entry = LIMITED
    if "tool_calling" in options:
        entry = {**LIMITED, "tool_calling": options.pop("tool_calling")}
    requests = await run(upstream, entry=entry, **options)
    assert photo_of(1).data not in shown(requests[PHOTOS])
    assert shown(requests[PHOTOS + 1])[-1] == photo_of(1).data


async def test_they_do_in_a_run_that_is_kept(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("m", photographer())
    requests = await run(upstream, headers={"Idempotency-Key": "photos"}, data_dir=str(tmp_path))
    assert photo_of(1).data not in shown(requests[PHOTOS])
    assert shown(requests[PHOTOS + 1])[-1] == photo_of(1).data


async def test_those_before_a_call_of_the_clients_are_cleared_and_shown_in_its_next_request(upstream: Upstream) -> None:
    def answer(request: RequestRecord) -> Reply:
        reply = plan(request)
        if len(upstream.requests) == 5:
            return replace(reply, calls=[*reply.calls, Call("look", {})])
        return reply

    plan = photographer()
    upstream.script("m", answer)
    config = make_config(upstream.url, tools=["photo"], entry=LIMITED, loop=LOOP)
    messages: list[dict[str, Any]] = [*ASK]
    question = {"model": "m", "tools": [CLIENT_TOOL], "messages": messages}
    async with serve(create_app(config)) as url, http_client(url) as client:
        message = (await client.post("/v1/chat/completions", json=question)).json()["choices"][0]["message"]
        [call] = message["tool_calls"]
        messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": "seen"}]
        answered = await client.post("/v1/chat/completions", json=question)
    assert "Seen." in answered.text
    requests = upstream.requests
    assert photo_of(1).data in shown(requests[5]), "found again"
    assert photo_of(1).data not in shown(requests[PHOTOS])
    assert shown(requests[PHOTOS + 1])[-1] == photo_of(1).data


async def test_equal_images_are_kept_once(upstream: Upstream) -> None:
    upstream.script("m", photographer())
    requests = await run(upstream)
    ids = [id for id, _ in lines(requests[PHOTOS])]
    assert len(ids) >= 4
    assert ids[0] == ids[3]
    assert len(set(ids[:4])) == 3


async def test_a_prompt_changes_only_where_it_is_cleared_and_never_without_the_setting(upstream: Upstream) -> None:
    upstream.script("m", photographer())
    requests = list(await run(upstream))
    changes = [b for a, b in itertools.pairwise(requests) if b.messages[: len(a.messages)] != a.messages]
    assert 1 <= len(changes) <= 2, "at once down to half of the limit, and then none for some turns"
    begin = len(requests)
    upstream.script("m", photographer())
    whole = list(await run(upstream, entry=SEES))[begin:]
    assert len(whole) == PHOTOS + 1
    assert all(b.messages[: len(a.messages)] == a.messages for a, b in itertools.pairwise(whole))
    assert len(shown(whole[-1])) == PHOTOS
