"""How clients reach Callgate."""

from typing import Annotated

from pydantic import Field

from callgate.config.schema.guards import ADMITS
from callgate.config.schema.values import NO_BOOLEAN, HostName, Origin, Seconds, Section, Switch, WebAddress


class Server(Section):
    """Where Callgate listens, and how it treats connections."""

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """The address to listen on. Any address that is not loopback needs `keys`, or `auth: off`."""
    port: Annotated[int, Field(ge=0, le=65535), NO_BOOLEAN] = 8000
    """The port to listen on; 0 lets the system choose."""
    public_url: WebAddress | None = None
    """The address clients reach it under, when a proxy stands in front."""
    allowed_hosts: Annotated[tuple[HostName, ...], ADMITS] = ()
    """Names that keyless requests may address it by, besides `localhost`, IP addresses and `public_url`; `*` for any."""
    cors_origins: Annotated[tuple[Origin, ...], ADMITS] = ()
    """Web pages that may call it from a browser, as origins (`https://chat.example.com`); `*` for any."""
    drain_seconds: Annotated[float, Field(ge=0), NO_BOOLEAN] = 30.0
    """How long requests may go on after SIGTERM."""
    connections: Annotated[int, Field(ge=1), NO_BOOLEAN] = 2000
    """Open connections. Beyond it only health is answered, and those without a key, with unread answers or idle are closed first."""
    key_share: Annotated[float, Field(gt=0, le=1), NO_BOOLEAN] = 0.75
    """The part of them that one key may have."""
    header_bytes: Annotated[int, Field(ge=1024), NO_BOOLEAN] = 65_536
    """The size of a request's headers; larger ones get a 431."""
    header_seconds: Seconds = 10.0
    """How long a request's headers may take to come."""
    body_seconds: Seconds = 10.0
    """The longest silence while a request's body comes; on average it has to make 1 KiB a second."""
    idle_seconds: Seconds = 75.0
    """How long a connection is kept open between two requests."""
    first_chunk_seconds: Annotated[float, Field(ge=0), NO_BOOLEAN] = 5.0
    """How long a stream's HTTP status is held back for the model's first chunk, so that errors can be typed."""
    heartbeat_seconds: Seconds = 10.0
    """How often a silent stream is kept alive with an empty chunk."""
    workers: Annotated[int, Field(ge=1, le=256), NO_BOOLEAN] = 1
    """How many processes serve, on one port. Several need a `data_dir`, or `store.redis_url`; in a container leave it at 1 and add replicas."""
    page: Switch = True
    """Serve the page at `/`."""
