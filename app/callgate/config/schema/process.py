"""What a process keeps, rereads and writes."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, StringConstraints
from pydantic_core import PydanticCustomError

from callgate.config.schema.guards import WIDENS_ON
from callgate.config.schema.values import NO_BOOLEAN, Count, Seconds, Section, Switch


def _redis_address(url: SecretStr) -> SecretStr:
    if not re.match(r"(rediss?://[^/\s]|unix:///?\S)", url.get_secret_value()):
        raise PydanticCustomError("shape", "should be an address like `redis://host:6379/0`")
    return url


def _postgres_address(url: SecretStr) -> SecretStr:
    if not re.match(r"postgres(ql)?://\S", url.get_secret_value()):
        raise PydanticCustomError("shape", "should be an address like `postgresql://user@host:5432/database`")
    return url


class LedgerSection(Section):
    """Where it is written down what was run, and by whom."""

    url: Annotated[SecretStr, AfterValidator(_postgres_address)] | None = None
    """A Postgres server (`postgresql://user@host/database`) for several machines that serve the same clients; its tables
    are made by `callgate ledger migrate`. Without it the ledger is a file in `data_dir`."""
    # Not called `schema`: pydantic's models have a method of that name.
    namespace: Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_]{0,62}$")] = "callgate"
    """The schema of that database which the tables are in."""


class RunsSection(Section):
    """Requests that outlive the process that answers them: those with an `Idempotency-Key`, and those in the background, are kept
    in the ledger turn by turn, and carried on by another process where theirs dies. They need a `data_dir` or a `ledger.url`."""

    dead_after_seconds: Annotated[float, Field(ge=1, le=600)] = 5.0
    """A process that was not seen in Postgres for so long is taken for dead. One on the same machine is known to be at once."""


class Store(Section):
    """Where what outlives a request is kept: turns that clients see a part of, and answers to be given again."""

    redis_url: Annotated[SecretStr, AfterValidator(_redis_address)] | None = None
    """A Redis server (`redis://host:6379/0`) for several processes that serve the same clients. Without it these things are kept
    in `data_dir`; without that too in memory, and forgotten when the process ends."""
    prefix: str = "callgate:"
    """What all keys in Redis begin with."""
    conversation_seconds: Seconds = 86_400.0
    """How long a chat is remembered whose client was given calls of its own to answer; each return restarts the time."""
    conversation_bytes: Annotated[int, Field(ge=1024), NO_BOOLEAN] = 67_108_864
    """How many bytes of such turns are kept of one key, wherever they are kept, each counted as 1 KiB more than it has; beyond that
    its oldest are forgotten."""
    answer_seconds: Seconds = 86_400.0
    """How long an answer is kept for a request that comes again with the same `Idempotency-Key`."""
    answer_bytes: Annotated[int, Field(ge=1024), NO_BOOLEAN] = 67_108_864
    """How many bytes of such answers are kept of one key in a ledger; beyond that its oldest are dropped, and a request that comes
    again for one is refused, not run again."""
    entries: Count = 20_000
    """How many things memory holds; beyond that the oldest is forgotten."""
    bytes: Annotated[int, Field(ge=1024), NO_BOOLEAN] = 268_435_456
    """How many bytes memory holds; where responses are kept in memory, they have as much again."""
    response_bytes: Annotated[int, Field(ge=1024), NO_BOOLEAN] = 67_108_864
    """How many bytes of responses are kept of one key, wherever they are kept; beyond that its oldest is forgotten."""


class Reload(Section):
    """Reading this file again while Callgate runs. SIGHUP and `POST /admin/reload` always do."""

    watch: Switch = True
    """Read it again when it changes."""


class Logging(Section):
    """What is written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important kind of line that is written."""
    format: Literal["auto", "json", "console"] = "auto"
    """`auto` is for people on a terminal and JSON lines elsewhere."""
    content: Annotated[Switch, WIDENS_ON] = False
    """Write arguments and results of tools too. They may hold anything; secrets known to Callgate are masked."""
