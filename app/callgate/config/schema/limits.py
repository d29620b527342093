"""How long a chat may go on, what a request may cost, and how patient Callgate is with models."""

from typing import Annotated, Literal

from pydantic import Field

from callgate.config.schema.guards import WidensTo
from callgate.config.schema.values import NO_BOOLEAN, BesideFile, Count, Retries, Seconds, Section, Switch


class Loop(Section):
    """How long a chat may go on."""

    max_iterations: Annotated[int, Field(ge=1, le=100), NO_BOOLEAN] = 10
    """Turns that run tools; after that the model is asked once more, without tools."""
    max_failed_turns: Count = 3
    """Turns running whose every call was broken or failed, until the loop ends as at its limit."""
    max_repeats: Count = 3
    """Turns running with the same call and the same result, until the loop ends as at its limit. More for tools that are
    asked again until something is ready."""
    max_parallel_calls: Annotated[int, Field(ge=1, le=256), NO_BOOLEAN] = 8
    """Calls of one turn that run at the same time."""
    diagnostics: Switch = True
    """Say in `x_callgate` what happened in each turn."""


class Limits(Section):
    """What one request may cost. What goes beyond is refused, cut or ended, with a clear word."""

    body_bytes: Annotated[int, Field(ge=1024), NO_BOOLEAN] = 10_000_000
    """The size of a request's body."""
    json_depth: Annotated[int, Field(ge=8, le=500), NO_BOOLEAN] = 100
    """How deep a request's JSON may be nested."""
    messages: Count = 2000
    """Messages in a request."""
    argument_bytes: Annotated[int, Field(ge=1024), NO_BOOLEAN] = 10_000_000
    """The size of one call's arguments."""
    calls_per_turn: Count = 64
    """Calls in one turn."""
    answer_bytes: Annotated[int, Field(ge=1024), NO_BOOLEAN] = 67_108_864
    """The size of one answer of a model as it comes over the wire. Answers that litellm reads are not counted."""
    tool_threads: Count = 32
    """Threads of all tools that are Python functions; further calls wait."""
    child_processes: Count = 16
    """Commands that run at a time, of all tools of the kind `command`; further ones wait."""
    request_seconds: Seconds = 600.0
    """Wall-clock time of a whole request, all turns and tools included."""
    request_tokens: Count = 2_000_000
    """Tokens of all turns of a request, as providers report them; then the model answers without tools."""
    tool_result_bytes: Annotated[int, Field(ge=256), NO_BOOLEAN] = 65_536
    """How much of a tool's result the model gets, unless the tool says otherwise."""
    concurrent_requests: Count = 1000
    """How many requests may be under way at once; further ones get a 503."""
    queue_seconds: Annotated[float, Field(ge=0), NO_BOOLEAN] = 0.1
    """How long a request waits for a place before it is turned away."""
    redis_down: Annotated[Literal["open", "closed"], WidensTo(("closed", "open"))] = "open"
    """What becomes of keys with limits while `store.redis_url` does not answer: `open` counts in each process alone,
    `closed` refuses them."""


class Upstream(Section):
    """How patient Callgate is with models."""

    connect_seconds: Seconds = 10.0
    """Until a connection stands."""
    first_byte_seconds: Seconds = 120.0
    """Until an answer begins."""
    idle_seconds: Seconds = 120.0
    """How long a stream may be silent."""
    total_seconds: Seconds = 600.0
    """For one whole answer."""
    retries: Retries = 2
    """Further tries of a turn of which nothing was passed on yet."""
    cooldown_seconds: Annotated[float, Field(ge=0), NO_BOOLEAN] = 10.0
    """How long a deployment cools down that failed three times running. Then one request tries it, and the time doubles
    if that fails, up to five minutes; 0 asks it every time."""
    retry_wait_seconds: Annotated[float, Field(ge=0), NO_BOOLEAN] = 5.0
    """What one question waits between its tries in all, at most `server.first_chunk_seconds`. A longer Retry-After is the
    client's to wait for."""
    ca_file: BesideFile | None = None
    """Certificate authorities of your own (PEM) to trust beside the system's, on the direct and translated lanes;
    `SSL_CERT_FILE` replaces the system's, everywhere."""
    client_certificate: BesideFile | None = None
    """A certificate (PEM) to show to providers that ask for one, on the direct and translated lanes."""
    client_key: BesideFile | None = None
    """Its private key, where that is not in the same file."""
