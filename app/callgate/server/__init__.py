"""The HTTP/1.1 server in front of the ASGI application, with limits and deadlines for every connection.

uvicorn runs the process and is given our protocol, `ServerConnection`. `protocol` has the shared state of a server's
connections, `connection` reads requests, `request_cycle` is one request and its response in ASGI, `response_head` writes
response heads, `refusals` are errors that are sent without the application, `limits` are those of a connection.
Authentication and the number of running requests are decided by the application.
"""

from callgate.server.limits import ConnectionLimits
from callgate.server.protocol import ProtocolFactory

__all__ = ["ConnectionLimits", "ProtocolFactory"]
