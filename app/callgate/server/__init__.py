"""The HTTP/1.1 server in front of the ASGI application, with limits and deadlines for every connection.

uvicorn runs the process and calls for a protocol; ours is `ServerConnection`. `protocol` is what the connections of one
server share, `connection` reads requests, `request_cycle` is one request towards the application, `response_head` writes
the heads of responses, `refusals` are the answers that no application is asked for, `limits` what a connection may cost.
Who may come in, and how many requests run, is decided further inside.
"""

from callgate.server.limits import ConnectionLimits
from callgate.server.protocol import ProtocolFactory

__all__ = ["ConnectionLimits", "ProtocolFactory"]
