"""What a provider's error becomes for the client: our words, the right status, no secret."""

import json
import time

import pytest

from callgate.http.interface import Broken, ConnectFailed, TimedOut
from callgate.models import errors

KEY = "sk-proj-abcDEF1234567890abcDEF"


def body(message="boom", **fields):
    return json.dumps({"error": {"message": message, **fields}}).encode()


@pytest.mark.parametrize(
    "status, sent, expected, code, again, retryable",
    [
        (400, body("bad", code="invalid_value", param="temperature"), 400, "invalid_value", False, False),
        (401, body(), 502, "upstream_auth", False, True),
        (403, body(), 502, "upstream_auth", False, True),
        (402, body(), 429, "insufficient_quota", False, True),
        (404, body("The model `x` does not exist", code="model_not_found"), 404, "model_not_found", False, True),
        (404, b"<html>not here</html>", 502, "upstream_error", False, True),
        (408, body(), 504, "upstream_timeout", True, True),
        (413, body("too large"), 413, None, False, False),
        (422, body("no"), 422, None, False, False),
        (429, body(), 429, "rate_limit_exceeded", True, True),
        (429, body(code="insufficient_quota"), 429, "insufficient_quota", False, True),
        (500, body(), 502, "upstream_error", True, True),
        (502, b"<html>", 502, "upstream_error", True, True),
        (503, body(), 503, "upstream_overloaded", True, True),
        (529, body(), 503, "upstream_overloaded", True, True),
        (504, b"", 504, "upstream_timeout", True, True),
        (501, body(), 502, "upstream_error", False, True),
        (307, b"", 502, "upstream_error", False, True),
        (204, b"", 502, "upstream_error", False, True),
    ],
)
def test_each_status_has_its_meaning(status, sent, expected, code, again, retryable):
    error = errors.from_status(status, {}, sent)
    assert (error.status, error.code, error.again, error.retryable) == (expected, code, again, retryable)
    assert set(error.envelope()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 408, 413, 418, 422, 429, 500, 502, 503])
@pytest.mark.parametrize(
    "leak",
    [
        KEY,
        "AIzaSyA1234567890abcdefghijk",
        "Bearer abc.def.ghi",
        "gsk_0123456789abcdefABCDEF",
        "https://internal.example/v1?key=hunter2hunter2",
        "api_key=hunter2hunter2",
        '"api-key": "hunter2hunter2"',
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "0a1b2c3d4e5f60718293a4b5c6d7e8f9",
        "my-own-secret",
    ],
)
def test_no_secret_comes_through_in_message_or_detail(status, leak):
    sent = body(f"Incorrect key provided: {leak} for model", code=leak, param=leak, type=leak)
    error = errors.from_status(status, {}, sent, secrets=["my-own-secret"])
    secret = leak.split("=")[-1].split()[-1].strip('"')
    assert secret not in json.dumps(error.envelope())
    assert secret not in (error.detail or "")


def test_a_client_mistake_keeps_the_providers_message_code_and_param():
    sent = body("Unknown parameter: 'foo'.", code="unknown_parameter", param="messages[0].foo", type="x")
    assert errors.from_status(400, {}, sent).envelope()["error"] == {
        "message": "Unknown parameter: 'foo'.",
        "type": "invalid_request_error",
        "param": "messages[0].foo",
        "code": "unknown_parameter",
    }


@pytest.mark.parametrize(
    "sent, message",
    [
        (b'{"error":{"code":400,"message":"llama says no","type":"invalid_request_error"}}', "llama says no"),
        (
            b'{"object":"error","message":"vllm says no","type":"BadRequestError","param":null,"code":400}',
            "vllm says no",
        ),
        (b'{"detail":"fastapi says no"}', "fastapi says no"),
        (b'{"detail":[{"loc":["body"],"msg":"field required"},{"msg":"other"}]}', "field required; other"),
        (b'{"error":"ollama says no"}', "ollama says no"),
        (b'[{"error":{"code":400,"message":"gemini says no","status":"INVALID_ARGUMENT"}}]', "gemini says no"),
        (b"plain words", "The model's provider did not accept the request."),
        (b"", "The model's provider did not accept the request."),
        (b"[" * 100_000, "The model's provider did not accept the request."),
    ],
)
def test_all_shapes_of_error_bodies_become_one(sent, message):
    error = errors.from_status(400, {}, sent).envelope()["error"]
    assert error["message"] == message
    assert error["code"] is None
    assert error["param"] is None


@pytest.mark.parametrize(
    "sent",
    [
        b'{"error":{"code":400,"message":"the request exceeds the available size","type":"exceed_context_size_error"}}',
        body("This model's maximum context length is 4096 tokens."),
        body("prompt is too long: 210000 tokens > 200000 maximum"),
    ],
)
def test_a_context_overflow_has_openais_code(sent):
    assert errors.from_status(400, {}, sent).code == "context_length_exceeded"


@pytest.mark.parametrize(
    "location, said",
    [
        ("https://u:p@llm.example/v1/?key=1#2", "to llm.example/v1/"),
        ("/other", "to /other"),
        ("//[oops", "to [redacted]"),
        ("", "status 301"),
    ],
)
def test_the_target_of_a_redirection_is_in_the_error_for_the_operator(location, said):
    error = errors.from_status(301, {"location": location}, b"")
    assert (error.status, error.again) == (502, False)
    assert error.detail is not None
    assert error.detail.rstrip(" to").endswith(said)


def test_a_message_is_bounded():
    assert len(errors.from_status(400, {}, body("long " * 10_000)).message) <= errors.MESSAGE_CHARS


def test_half_a_character_of_a_provider_can_be_sent_on():
    error = errors.from_status(400, {}, b'{"error": {"message": "bad \\ud800", "code": "\\ud800", "param": "\\udc00"}}')

    assert (error.message, error.code, error.param) == ("bad \ufffd", None, None)
    (error.detail or "").encode()


NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    "headers, seconds",
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(NOW + 30))}, 30),
        ({"retry-after": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(NOW - 30))}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Fri, 31 Dec 99999 23:59:59 GMT"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1e400"}, None),
        ({"retry-after": "99999999"}, errors.LONGEST_RETRY_AFTER),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "6m0s"}, 360),
        ({"x-ratelimit-reset-tokens": "20ms"}, 0.02),
        ({"x-ratelimit-reset": str(int(NOW) + 12)}, 12),
        ({"x-ratelimit-reset": str((int(NOW) + 12) * 1000)}, 12),
        ({"x-ratelimit-reset": "whenever"}, None),
        ({}, None),
    ],
)
def test_the_wait_is_read_from_any_header_that_has_it(headers, seconds):
    found = errors.retry_after(headers, NOW)
    assert found == (None if seconds is None else pytest.approx(seconds))


def test_a_rate_limit_carries_its_wait():
    assert errors.from_status(429, {"retry-after": "3"}, b"").retry_after == 3


@pytest.mark.parametrize(
    "error, status, code, again, retryable",
    [
        (ConnectFailed("refused"), 502, "upstream_unreachable", True, True),
        (TimedOut("connect", 1), 504, "upstream_timeout", True, True),
        (TimedOut("first_byte", 1), 504, "upstream_timeout", False, True),
        (TimedOut("total", 1), 504, "upstream_timeout", False, False),
        (Broken("reset"), 502, "upstream_error", True, True),
    ],
)
def test_failures_below_http_have_their_statuses(error, status, code, again, retryable):
    found = errors.from_transport(error)
    assert (found.status, found.code, found.again, found.retryable) == (status, code, again, retryable)


@pytest.mark.parametrize(
    "reported, status",
    [
        ({"error": {"code": 429, "message": "slow down"}}, 429),
        ({"error": {"code": "503", "message": "x"}}, 503),
        ({"error": {"code": "server_error", "message": "x"}}, 502),
        ({"error": "x"}, 502),
        ({"error": {"code": True}}, 502),
        ("x", 502),
    ],
)
def test_an_error_in_a_200_answer_is_read_for_its_status(reported, status):
    assert errors.reported("x", reported, {}).status == status
