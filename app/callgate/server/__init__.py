"""Our HTTP/1.1 protocol under uvicorn, with limits and deadlines for every connection.

Read `connection` first. For users: `docs/security.md`.

uvicorn runs the process and is given our protocol, `ServerConnection`. `protocol` has the shared state of a server's
connections, `connection` reads requests, `request_cycle` is one request and its response in ASGI, `heads` reads and writes
response heads, `refusals` are errors that are sent without the application, `limits` are those of a connection.
Authentication and the number of running requests are decided by the application.
"""

from callgate.server.limits import ConnectionLimits
from callgate.server.protocol import ProtocolFactory

__all__ = ["ConnectionLimits", "ProtocolFactory"]
