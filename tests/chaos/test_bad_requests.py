"""Hundreds of malformed and malicious requests: each answered 4xx in OpenAI's shape, quickly, without any effect, and the
next good request is answered as if nothing had been."""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

import pytest

from callgate.access.keys import mint_key
from callgate.application import create_app
from callgate.server import ProtocolFactory
from tests.chaos.load import chat_body
from tests.chaos.scale import report, scaled
from tests.harness.configs import make_config
from tests.harness.server import serve
from tests.harness.wire import RawAnswer, raw_connection
from tests.scripted_upstream import Reply, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(600)]

ANSWERED_WITHIN = scaled(inf, 1.0)
SECRET, HASH = mint_key()
CHAT = "/v1/chat/completions"
GOOD = chat_body("hello")


@dataclass(frozen=True, slots=True)
class Bad:
    name: str
    raw: bytes
    statuses: tuple[int, ...]
    passes_on: bool = False
    """It need not be refused by us; it must not be our failure, and it must be answered."""


def post(body: bytes, *headers: str, path: str = CHAT, key: str | None = SECRET, method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", "content-type: application/json"]
    if key is not None:
        lines.append(f"authorization: Bearer {key}")
    head = "\r\n".join([*lines, *headers, f"content-length: {len(body)}", "", ""])
    return head.encode("latin-1") + body


def body_of(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


# Fields of the wrong type -------------------------------------------------------------------------

ODD: dict[str, Any] = {
    "null": None,
    "true": True,
    "number": 7,
    "negative": -1,
    "fraction": 0.5,
    "huge": 10**40,
    "text": "x",
    "empty text": "",
    "list": [],
    "list of null": [None],
    "list of lists": [[[]]],
    "list of numbers": [1, 2],
    "list of texts": ["x"],
    "list of empty objects": [{}],
    "object": {},
    "odd object": {"x": 1},
}
WRONG: dict[str, str] = {
    "model": "null true number negative fraction huge empty_text list list_of_null list_of_lists list_of_numbers "
    "list_of_texts list_of_empty_objects object odd_object",
    "messages": "null true number negative fraction huge text empty_text list list_of_null list_of_lists "
    "list_of_numbers list_of_texts list_of_empty_objects object odd_object",
    "tools": "true number negative fraction huge text empty_text list_of_null list_of_lists list_of_numbers list_of_texts "
    "list_of_empty_objects object odd_object",
    "stream": "number negative fraction huge text empty_text list list_of_null object odd_object",
    "stream_options": "true number fraction text empty_text list list_of_null",
    "parallel_tool_calls": "number negative fraction huge text empty_text list list_of_null object odd_object",
    "n": "true negative fraction huge text empty_text list list_of_null object odd_object",
    "tool_choice": "true number negative fraction huge list list_of_null list_of_texts",
    "metadata": "true number fraction text empty_text list list_of_null",
    **dict.fromkeys(
        ("temperature", "top_p", "presence_penalty", "frequency_penalty"),
        "true text empty_text list list_of_null list_of_numbers object odd_object",
    ),
    **dict.fromkeys(
        ("max_tokens", "max_completion_tokens", "top_logprobs", "seed"),
        "true fraction text empty_text list list_of_null object odd_object",
    ),
    "logprobs": "number fraction text empty_text list object",
    "user": "true number fraction list object odd_object",
    "stop": "true number fraction list_of_null list_of_lists list_of_numbers object",
    "logit_bias": "true number text list list_of_numbers",
    "response_format": "true number text list list_of_null",
}

MESSAGES: dict[str, Any] = {
    "a text": "hello",
    "no role": {"content": "x"},
    "a role nobody knows": {"role": "root", "content": "x"},
    "role null": {"role": None, "content": "x"},
    "role a list": {"role": ["user"], "content": "x"},
    "content a number": {"role": "user", "content": 7},
    "content an object": {"role": "user", "content": {"text": "x"}},
    "content a list of texts": {"role": "user", "content": ["x"]},
    "content a list of null": {"role": "user", "content": [None]},
    "a part without a type": {"role": "user", "content": [{"text": "x"}]},
    "a part with a number for a type": {"role": "user", "content": [{"type": 1}]},
    "calls a text": {"role": "assistant", "tool_calls": "x"},
    "calls of null": {"role": "assistant", "tool_calls": [None]},
    "a call without an id": {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{}"}}]},
    "a call with a number for an id": {
        "role": "assistant",
        "tool_calls": [{"id": 1, "type": "function", "function": {"name": "a", "arguments": "{}"}}],
    },
    "arguments an object": {
        "role": "assistant",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "a", "arguments": {}}}],
    },
    "a name that is a list": {
        "role": "assistant",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": [], "arguments": "{}"}}],
    },
    "a result for nobody": {"role": "tool", "content": "x"},
    "a result for a number": {"role": "tool", "content": "x", "tool_call_id": 5},
}


def wrong_fields() -> Iterator[Bad]:
    for field, kinds in WRONG.items():
        for kind in kinds.split():
            value = ODD[kind.replace("_", " ")]
            for mode in (True, False):
                body = {**GOOD, "stream": mode, field: value}
                yield Bad(
                    f"{field}: {kind} ({'stream' if mode else 'whole'})", post(json.dumps(body).encode()), (400, 404)
                )
    for name, message in MESSAGES.items():
        for messages in ([message], [*GOOD["messages"], message]):
            yield Bad(f"message: {name} at {len(messages) - 1}", post(body_of(messages=messages)), (400,))
    for field in ("model", "messages"):
        yield Bad(f"no {field}", post(json.dumps({k: v for k, v in GOOD.items() if k != field}).encode()), (400,))
    for n in (0, -1, 129, 10**6):
        yield Bad(f"n = {n}", post(body_of(n=n)), (400,))
    yield Bad("too many messages", post(body_of(messages=GOOD["messages"] * 3000)), (400,))
    for name in (
        "nobody",
        "../m",
        "m\x00",
        "m\nx",
        "M",
        " m",
        "m ",
        "*",
        "openai/m",
        "a" * 5000,
        "http://127.0.0.1/",
        "m'--",
    ):
        yield Bad(f"model {name[:20]!r}", post(body_of(model=name)), (400, 404))


# JSON that is none, or is too much of it ----------------------------------------------------------


def wrong_json() -> Iterator[Bad]:
    text = json.dumps(GOOD)
    deep = 200_000
    bodies: dict[str, bytes] = {
        "nothing": b"",
        "a space": b" ",
        "null": b"null",
        "a list": b"[]",
        "a number": b"1",
        "a text": b'"x"',
        "words": b"hello",
        "half": text[: len(text) // 2].encode(),
        "one brace": b"{",
        "trailing words": (text + " x").encode(),
        "two documents": (text + text).encode(),
        "single quotes": text.replace('"', "'").encode(),
        "a comment": (text[:-1] + "/* x */}").encode(),
        "a trailing comma": (text[:-1] + ",}").encode(),
        "no comma": b'{"model": "m" "messages": []}',
        "NaN": (text[:-1] + ', "temperature": NaN}').encode(),
        "Infinity": (text[:-1] + ', "temperature": Infinity}').encode(),
        "minus Infinity": (text[:-1] + ', "temperature": -Infinity}').encode(),
        "a leading zero": (text[:-1] + ', "seed": 007}').encode(),
        "hex": (text[:-1] + ', "seed": 0x7}').encode(),
        "a bare dot": (text[:-1] + ', "temperature": .5}').encode(),
        "a raw newline in a text": text.replace("hello", "hel\nlo").encode(),
        "a raw tab in a text": text.replace("hello", "hel\tlo").encode(),
        "a zero byte in a text": text.replace("hello", "hel\x00lo").encode(),
        "a bad escape": text.replace("hello", "\\x41").encode(),
        "half an escape": text.replace("hello", "\\u12").encode(),
        "half a pair": text.replace("hello", "\\ud800").encode(),
        "the other half": text.replace("hello", "\\udc00").encode(),
        "half a pair in a key": (text[:-1] + ', "\\ud800": 1}').encode(),
        "latin-1": text.replace("hello", "héllo").encode("latin-1"),
        "UTF-16": text.encode("utf-16"),
        "UTF-32": text.encode("utf-32"),
        "overlong UTF-8": text.encode().replace(b"hello", b"\xc0\xaf"),
        "a surrogate in UTF-8": text.encode().replace(b"hello", b"\xed\xa0\x80"),
        "deep lists": b'{"model": "m", "messages": ' + b"[" * deep + b"]" * deep + b"}",
        "deep objects": b'{"a":' * deep + b"1" + b"}" * deep,
        "deep and open": b"[" * deep,
        "deep where nobody looks": (text[:-1] + ', "extra": ' + "[" * 5000 + "]" * 5000 + "}").encode(),
        "deep in a tool's schema": body_of(tools=[{"type": "function", "function": {"name": "a"}}]).replace(
            b'"name": "a"', b'"name": "a", "parameters": ' + b'{"a":' * 5000 + b"1" + b"}" * 5000
        ),
        "a key twice": (text[:-1] + ', "model": "other"}').encode(),
        "a key twice with an escape": (text[:-1] + ', "mod\\u0065l": "other"}').encode(),
        "larger than the limit": body_of(extra="x" * 3_000_000),
    }
    for name, body in bodies.items():
        yield Bad(f"json: {name}", post(body), (400, 413))
        if len(body) < 100_000:
            yield Bad(f"json: {name} in chunks", _chunked(body), (400, 413))
    for name, number in {"4400 digits": "9" * 4400, "a million digits": "1" * 1_000_000, "1e999": "1e999"}.items():
        for field in ("max_tokens", "temperature", "n", "seed"):
            body = (text[:-1] + f', "{field}": {number}}}').encode()
            yield Bad(f"json: {field} of {name}", post(body), (400,), passes_on=field == "temperature")


def _chunked(body: bytes) -> bytes:
    head = post(b"").replace(b"content-length: 0\r\n", b"transfer-encoding: chunked\r\n")
    pieces = [body[at : at + 7] for at in range(0, len(body), 7)]
    return head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


# HTTP that is none, and requests that are somebody else's ------------------------------------------


def wrong_http() -> Iterator[Bad]:
    body = body_of()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {SECRET}\r\n".encode()
    lines: dict[str, bytes] = {
        "not http": b"EHLO there\r\n\r\n",
        "a TLS greeting": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        "an HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
        "zero bytes": bytes(200),
        "no version": b"GET /v1/models\r\n\r\n",
        "version 9": b"GET /v1/models HTTP/9.9\r\n\r\n",
        "a method nobody knows": b"HELLO /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "connect": b"CONNECT localhost:80 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "no path": b"GET  HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "a path with a space": b"GET /a b HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "a header without a colon": head + b"nonsense\r\n\r\n",
        "a header without a name": head + b": x\r\n\r\n",
        "a space before the colon": head + b"x : y\r\n\r\n",
        "a folded header": head + b"x: y\r\n z\r\n\r\n",
        "a zero byte in a header": head + b"x: a\x00b\r\n\r\n",
        "a bare return in a header": head + b"x: a\rb\r\n\r\n",
        "two lengths": head + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        "a length and chunks": head + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "chunks and a length": head + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
        "a negative length": head + b"content-length: -5\r\n\r\n",
        "a length with a plus": head + b"content-length: +5\r\n\r\nhello",
        "a length in hex": head + b"content-length: 0x5\r\n\r\nhello",
        "a length beyond all numbers": head + b"content-length: 99999999999999999999999\r\n\r\n",
        "chunks twice": head + b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        "chunks under another name": head + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        "a chunk size that is none": head + b"transfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
        "a negative chunk": head + b"transfer-encoding: chunked\r\n\r\n-1\r\nhello\r\n0\r\n\r\n",
        "a chunk beyond all numbers": head
        + b"transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\nhello\r\n0\r\n\r\n",
        "a chunk longer than it says": head + b"transfer-encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n",
        "a header of 100 KB": head + b"x: " + b"a" * 100_000 + b"\r\n\r\n",
        "ten thousand headers": head + b"a: b\r\n" * 20_000 + b"\r\n",
        "an address of 100 KB": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
    }
    for name, raw in lines.items():
        yield Bad(f"http: {name}", raw, (400, 401, 404, 405, 408, 431, 505))
    for encoding in ("gzip", "br", "zstd", "deflate", "compress", "identity, gzip", "x-made-up"):
        for content in (body, b"\x1f\x8b\x08" + bytes(50)):
            yield Bad(
                f"encoded: {encoding} {content[:1]!r}", post(content, f"content-encoding: {encoding}"), (400, 415)
            )
    for method in ("GET", "PUT", "PATCH", "DELETE", "TRACE", "HEAD"):
        yield Bad(f"method: {method}", post(b"", method=method), (400, 405))
    paths = [
        "/", "//", "/v1", "/v1/", "/v2/chat/completions", "/v1//chat/completions", "/V1/CHAT/COMPLETIONS",
        "/v1/chat/completions%00", "/.env", "/.git/config", "/docs", "/redoc", "/admin", "/config.yaml", "/v1/models/nobody",
        "/v1/models/../../x", "/v1/models/%00", "/v1/models/%ff%fe", "/health/live/x", "/metrics/x", "/debug/pprof", "/server-status",
        "/wp-login.php", "/v1/files", "/v1/assistants", "/key/generate", "/model/new", "/v1/responses/x",
    ]  # fmt: skip
    for path in paths:
        yield Bad(f"path: {path}", post(body, path=path), (400, 404, 405))


def wrong_keys() -> Iterator[Bad]:
    body = body_of()
    keys = [
        "",
        "x",
        "null",
        "undefined",
        SECRET[:-1],
        SECRET + "x",
        SECRET.upper(),
        HASH,
        "sk-" + "a" * 48,
        "' OR 1=1 --",
        "*",
    ]
    for path in (CHAT, "/chat/completions", "/v1/models", "/v1/models/m", "/metrics", "/openapi.json", "/nowhere"):
        for method in ("GET", "POST"):
            yield Bad(f"no key: {method} {path}", post(body, key=None, method=method, path=path), (401,))
            for key in keys:
                yield Bad(f"key {key[:12]!r}: {method} {path}", post(body, key=key, method=method, path=path), (401,))
    for header in (
        "authorization: Basic YTpi", "authorization: Bearer", "authorization: bearer:x", f"authorization: Token {SECRET}",
        f"x-authorization: Bearer {SECRET}", f"cookie: key={SECRET}", f"proxy-authorization: Bearer {SECRET}", "api-key: x", "x-api-key: x",
        "x-forwarded-for: 127.0.0.1", "x-original-url: /health/live", "x-rewrite-url: /health/live", "x-http-method-override: GET",
    ):  # fmt: skip
        yield Bad(f"no key but {header[:30]}", post(body, header, key=None), (401,))
    for query in ("?key=" + SECRET, "?api_key=" + SECRET, "?access_token=" + SECRET):
        yield Bad(f"key in the address {query[:8]}", post(body, key=None, path=CHAT + query), (401,))
    yield Bad("an open path as a parameter", post(body, key=None, path=CHAT + "?/health/live"), (401,))
    yield Bad("an open path and more", post(b"", key=None, method="GET", path="/health/live/../../v1/models"), (401,))
    yield Bad("an open path after slashes", post(b"", key=None, method="GET", path="//health/live"), (401,))


BAD = [*wrong_fields(), *wrong_json(), *wrong_http(), *wrong_keys()]


async def test_each_is_refused_in_shape_at_once_and_the_next_good_one_is_answered(upstream: Upstream) -> None:
    assert len(BAD) >= 700
    upstream.script("m", lambda _: Reply(text="hi"))
    config = make_config(
        upstream.url, auth="keys", keys=[{"name": "alice", "hash": HASH}], limits={"body_bytes": 2_000_000}
    )
    factory = ProtocolFactory()
    wrong: list[str] = []
    slowest, passed_on = 0.0, 0
    async with serve(create_app(config), http=factory.protocol) as url:
        for bad in BAD:
            seen = len(upstream.requests)
            began = time.perf_counter()
            answer = await sent(url, bad.raw)
            seconds = time.perf_counter() - began
            slowest = max(slowest, seconds)
            if seconds > ANSWERED_WITHIN:
                wrong.append(f"{bad.name}: answered after {seconds:.2f} s")
            if bad.passes_on and answer is not None and answer.status < 500:
                passed_on += 1
                continue
            if problem := _problem(bad, answer):
                wrong.append(f"{bad.name}: {problem}")
            if len(upstream.requests) != seen:
                wrong.append(f"{bad.name}: reached the model")
            good = await sent(url, post(body_of()))
            if good is None or good.status != 200:
                wrong.append(f"{bad.name}: the next good request was not answered")
            upstream.requests.clear()
    report("bad requests", requests=len(BAD), wrong=len(wrong), passed_on=passed_on, slowest_seconds=round(slowest, 3))
    assert not wrong, f"{len(wrong)} of {len(BAD)}:\n" + "\n".join(wrong)


def _problem(bad: Bad, answer: RawAnswer | None) -> str:
    if answer is None:
        return "no answer"
    if answer.status not in bad.statuses:
        return f"answered {answer.status} {answer.body[:200]!r}"
    if b"HEAD /" in bad.raw[:6]:
        return ""
    try:
        error = json.loads(answer.body)["error"]
    except (ValueError, KeyError, TypeError):
        return f"not in shape: {answer.body[:100]!r}"
    if set(error) != {"message", "type", "param", "code"} or not error["message"]:
        return f"not in shape: {error}"
    if SECRET in answer.raw.decode("latin-1"):
        return "tells the key"
    return ""


async def sent(url: str, raw: bytes) -> RawAnswer | None:
    async with raw_connection(url) as connection:
        with contextlib.suppress(ConnectionError):
            await connection.send(raw)
        try:
            if raw.startswith(b"HEAD"):
                return RawAnswer(b"", int((await connection.until(b"\r\n")).split(b" ")[1]), {}, (), "complete")
            return await connection.answer()
        except (TimeoutError, IndexError, ValueError, asyncio.IncompleteReadError):
            return None
