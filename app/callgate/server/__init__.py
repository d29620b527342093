"""The outermost edge: connections, each with an end to everything it can do, before anything of ours is asked.

HTTP/1.1 as uvicorn's server calls for it, spoken by ourselves: `edge` is what the connections of one server share,
`connection` hears requests, `exchange` is one request towards the application, `heads` writes the heads of answers,
`refusals` says what an application was never asked, `rules` are the limits. Who may come in, and how many requests run,
is decided further inside.
"""

from callgate.server.limits import ConnectionLimits
from callgate.server.protocol import ProtocolFactory

__all__ = ["ConnectionLimits", "ProtocolFactory"]
