"""Turns failures of providers into errors for the client.

A provider's body may hold the API key, an internal address, or a stack trace. Its message is passed on only for errors that
the client can fix, shortened, and without everything that looks like a secret.

Statuses: a refused key (401, 403) becomes a 502, because the key is the operator's and an OpenAI client would take a 401 for
its own. An unknown model stays a 404, rate limits stay 429 with their Retry-After, a spent quota is a 429 that is not
retried, timeouts are 504, all other failures 502 or 503.
"""

import email.utils
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from callgate.calls.json_text import sound_text
from callgate.conversation.errors import ChatError
from callgate.http.interface import Compressed, ConnectFailed, TimedOut, TooLarge, TransportError
from callgate.untrusted.doors import SMALL, Door, Untrusted
from callgate.untrusted.readers import read_leniently

ERROR = Door(name="error of a provider", bytes=SMALL)
MESSAGE_CHARS = 500
DETAIL_CHARS = 2000
REDACTED = "[redacted]"

_SECRETS = re.compile(
    r"""
      \b(?:sk|pk|rk|gsk|xai|hf|ghp|gho|github_pat|glpat|xox[abpr]|nvapi|pplx|tgp|fw|csk|r8|key)[-_][A-Za-z0-9_\-*.]{6,}
    | \bAIza[A-Za-z0-9_-]{10,}
    | \bya29\.[A-Za-z0-9_.-]+
    | \b(?:AKIA|ASIA)[A-Z0-9]{12,}
    | \beyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){0,2}
    | (?i:\bbearer\s+)[^\s"',;]+
    | (?i:\b(?:api[-_ ]?key|x-api-key|access[-_ ]?token|token|secret|password|authorization)\b["']?\s*(?:[:=]|\bis\b)\s*["']?)[^\s"',;}]+
    | https?://[^\s"'<>)]+
    | (?<![\w/-])(?=[A-Za-z0-9+/_-]*[0-9])(?=[A-Za-z0-9+/_-]*[A-Za-z])[A-Za-z0-9+/_-]{32,}={0,2}
    """,
    re.VERBOSE,
)
_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_.\-]{0,63}")
_PARAM = re.compile(r"[A-Za-z_][\w.\[\]\-]{0,127}")
_CONTEXT = re.compile(
    r"context[ _-]?(?:length|window|size)|maximum context|too many tokens|prompt is too long", re.IGNORECASE
)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
CLIENT_MISTAKES = frozenset({400, 409, 413, 415, 422})
LONGEST_RETRY_AFTER = 24 * 3600.0


class UpstreamError(ChatError):
    """A `ChatError` that also knows whether to ask the same deployment again.

    `retryable`: this deployment, another one, or a fallback may answer.
    """

    def __init__(
        self, status: int, message: str, *, again: bool = False, elsewhere: bool = True, **options: Any
    ) -> None:
        super().__init__(status, message, retryable=again or elsewhere, **options)
        self.again = again
        self.upstream_status = 0
        """The HTTP status of the provider's answer; 0 where there was none."""


class ErrorBody(msgspec.Struct, frozen=True):
    """A provider's error, read from any of the known formats; the fields are not redacted yet."""

    message: str = ""
    type: str = ""
    code: str = ""
    param: str = ""


def from_status(
    status: int, headers: Mapping[str, str], body: bytes | ErrorBody, *, secrets: Iterable[str] = ()
) -> UpstreamError:
    """Return the error for an answer whose status is not 200. `headers` have lower-case names."""
    error = _of_status(status, headers, body, secrets)
    error.upstream_status = status
    return error


def _of_status(
    status: int, headers: Mapping[str, str], body: bytes | ErrorBody, secrets: Iterable[str]
) -> UpstreamError:
    if isinstance(body, ErrorBody):
        error_body = body
    else:
        error_body = read_error_body(body)
    detail = redact(f"upstream status {status}: {error_body.type} {error_body.code} {error_body.message}", secrets)[
        :DETAIL_CHARS
    ]
    wait = retry_after(headers)
    if status in {401, 403, 407}:
        return auth_failed(detail)
    if status == 402 or (status == 429 and ("insufficient_quota" in (error_body.code, error_body.type))):
        return UpstreamError(
            429,
            "The quota of the model's provider is used up.",
            type="insufficient_quota",
            code="insufficient_quota",
            detail=detail,
        )
    if status == 404:
        if error_body.code == "model_not_found" or "model" in error_body.message.lower():
            return UpstreamError(
                404,
                "The provider does not know this model, or the proxy's account may not use it.",
                type="invalid_request_error",
                param="model",
                code="model_not_found",
                detail=detail,
            )
        return bad_answer("The address configured for this model answers with 404.", detail, again=False)
    if 300 <= status < 400:
        detail = f"{detail.rstrip(' :')} to {_without_secrets(headers.get('location', ''))}"[:DETAIL_CHARS]
        return bad_answer(f"The address configured for this model redirects ({status}).", detail, again=False)
    if status == 429:
        return UpstreamError(
            429,
            "The model's provider is limiting the rate of requests.",
            type="rate_limit_error",
            code="rate_limit_exceeded",
            retry_after=wait,
            detail=detail,
            again=True,
        )
    if status in CLIENT_MISTAKES:
        return client_mistake(status, error_body, detail, secrets)
    if status in {408, 504, 524}:
        return timed_out("The model's provider did not answer in time.", detail, again=True)
    if status in {503, 529}:
        return UpstreamError(
            503,
            "The model's provider is overloaded or not ready.",
            type="server_error",
            code="upstream_overloaded",
            retry_after=wait,
            detail=detail,
            again=True,
        )
    return bad_answer(
        f"The model's provider answered with status {status}.", detail, again=status >= 500 and status not in {501, 505}
    )


def _without_secrets(url: str) -> str:
    """Return host and path of a URL."""
    try:
        parts = urlsplit(sound_text(url))
    except ValueError:
        return REDACTED
    return f"{parts.netloc.rpartition('@')[2]}{parts.path}"


def from_transport(error: TransportError) -> UpstreamError:
    """Return the error for an exchange that failed before there was an answer."""
    detail = redact(f"{type(error).__name__}: {error}")
    match error:
        case TimedOut(which="total"):
            return timed_out("The model took longer than the time allowed.", detail, again=False, elsewhere=False)
        case TimedOut():
            return timed_out("The model's provider did not answer in time.", detail, again=error.which == "connect")
        case TooLarge(limit=limit):
            return answer_too_large(limit)
        case ConnectFailed():
            return UpstreamError(
                502,
                "The model's provider cannot be reached.",
                type="server_error",
                code="upstream_unreachable",
                detail=detail,
                again=True,
            )
        case Compressed():
            return bad_answer(
                "The model's provider sends compressed answers, which are not read here.", detail, again=False
            )
        case _:
            return bad_answer("The connection to the model's provider was lost.", detail, again=True)


def auth_failed(detail: str) -> UpstreamError:
    return UpstreamError(
        502,
        "The model's provider refused this proxy's credentials. The operator of the proxy has to check this.",
        type="server_error",
        code="upstream_auth",
        detail=detail,
    )


def bad_answer(message: str, detail: str = "", *, again: bool = True) -> UpstreamError:
    """Return the error for an answer that cannot be used."""
    return UpstreamError(502, message, type="server_error", code="upstream_error", detail=detail, again=again)


def answer_too_large(limit: int) -> UpstreamError:
    """Return the error for an answer over our limit. Not retryable."""
    return UpstreamError(
        502,
        f"The model's answer is longer than {limit} bytes.",
        type="server_error",
        code="answer_too_large",
        elsewhere=False,
    )


def timed_out(message: str, detail: str, *, again: bool, elsewhere: bool = True) -> UpstreamError:
    return UpstreamError(
        504, message, type="server_error", code="upstream_timeout", detail=detail, again=again, elsewhere=elsewhere
    )


def client_mistake(status: int, error_body: ErrorBody, detail: str, secrets: Iterable[str] = ()) -> UpstreamError:
    """Return the error for a client's mistake, with the provider's own message."""
    secrets = tuple(secrets)
    code = _word(error_body.code, _CODE, secrets)
    if error_body.type == "exceed_context_size_error" or (code is None and _CONTEXT.search(error_body.message)):
        code = "context_length_exceeded"
    return UpstreamError(
        status,
        redact(error_body.message, secrets)[:MESSAGE_CHARS].strip()
        or "The model's provider did not accept the request.",
        type="invalid_request_error",
        param=_word(error_body.param, _PARAM, secrets),
        code=code,
        detail=detail,
        elsewhere=False,
    )


def reported(message: str, body: object, headers: Mapping[str, str], *, secrets: Iterable[str] = ()) -> UpstreamError:
    """Return the error for an answer with status 200 that reports an error."""
    error_body = read_error(body)
    if (status := _status_in(body)) is not None:
        return from_status(status, headers, error_body, secrets=secrets)
    return bad_answer(
        "The model's provider reported an error.", redact(f"{message} {error_body.code}", secrets)[:DETAIL_CHARS]
    )


def replaced(error_body: ErrorBody, *, code: str) -> ErrorBody:
    return replace(error_body, code=code)


def read_error_body(body: bytes) -> ErrorBody:
    """Read an error body of any known format; empty fields where it is not JSON."""
    try:
        value = read_leniently(Untrusted(body, ERROR).open())
    except (ValueError, RecursionError):
        return ErrorBody(message="")
    return read_error(value)


def read_error(body: object) -> ErrorBody:
    if isinstance(body, list):
        body = body[0] if body else None
    if isinstance(body, dict) and isinstance(body.get("error"), (dict, str)):
        body = body["error"]
    if isinstance(body, str):
        return ErrorBody(message=body)
    if not isinstance(body, dict):
        return ErrorBody()
    # Strings only: llama.cpp sends its status again as an integer code, FastAPI servers a list as detail.
    message = _first_string(body, "message", "detail", "msg", "error_description") or _details(body.get("detail"))
    return ErrorBody(
        message=message,
        type=_first_string(body, "type", "status"),
        code=_first_string(body, "code"),
        param=_first_string(body, "param"),
    )


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Return the seconds to wait, from retry-after-ms, retry-after or x-ratelimit-reset*."""
    seconds = _read_wait(headers, time.time() if now is None else now)
    if seconds is None:
        return None
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a provider's message without what looks like a secret, and as text that can be encoded."""
    text = sound_text(text)
    for secret in secrets:
        if len(secret) >= 4:
            text = text.replace(secret, REDACTED)
    return _SECRETS.sub(REDACTED, text)


def _word(text: str, shape: re.Pattern[str], secrets: Iterable[str]) -> str | None:
    if shape.fullmatch(text) and redact(text, secrets) == text:
        return text
    return None


def _status_in(body: object) -> int | None:
    """Return the HTTP status in an error's code, where OpenRouter and llama.cpp write it."""
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        body = body["error"]
    if not isinstance(body, dict):
        return None
    for name in ("code", "status", "status_code"):
        value = body.get(name)
        number = int(value) if isinstance(value, str) and value.isdecimal() and len(value) == 3 else value
        if isinstance(number, int) and not isinstance(number, bool) and 400 <= number <= 599:
            return number
    return None


def _first_string(fields: Mapping[str, Any], *names: str) -> str:
    return next((value for name in names if isinstance(value := fields.get(name), str)), "")


def _details(details: object) -> str:
    if not isinstance(details, list):
        return ""
    notes = [_first_string(entry, "msg", "message") for entry in details[:5] if isinstance(entry, dict)]
    return "; ".join(note for note in notes if note)


def _read_wait(headers: Mapping[str, str], now: float) -> float | None:
    if (milliseconds := _number(headers.get("retry-after-ms", ""))) is not None:
        return milliseconds / 1000
    if retry_after := headers.get("retry-after", ""):
        if (seconds := _number(retry_after)) is not None:
            return seconds
        try:
            when = email.utils.parsedate_tz(retry_after)
            return None if when is None else email.utils.mktime_tz(when) - now
        except (ValueError, OverflowError):
            return None  # a date that no calendar has
    waits = [
        wait
        for name in ("x-ratelimit-reset-requests", "x-ratelimit-reset-tokens", "x-ratelimit-reset")
        if (wait := _reset(headers.get(name, ""), now)) is not None
    ]
    return max(waits, default=None)


def _reset(reset: str, now: float) -> float | None:
    """Return the seconds until a reset: OpenAI writes durations (`6m0s`, `20ms`), others seconds, others a point in time in
    seconds or milliseconds."""
    if (number := _number(reset)) is not None:
        if number > 1e12:
            return number / 1000 - now
        if number > 1e9:
            return number - now
        return number
    parts = _DURATION.findall(reset)
    if not parts or "".join(number + unit for number, unit in parts) != reset:
        return None
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)


def _number(text: str) -> float | None:
    if re.fullmatch(r"\s*\d{1,15}(\.\d{1,9})?\s*", text):
        return float(text)
    return None
