"""The ASGI application with all that a server can have."""

from callgate.access.building import WithAccess
from callgate.assembly import CallgateApp, assembled
from callgate.config.schema.whole import Config
from callgate.recorder.building import WithRecorder
from callgate.runtime.parts import ServerParts
from callgate.runtime.reload import ConfigSource
from callgate.runtime.workers import WorkerGroup
from callgate.subject_routes import AllSubjects

WHOLE = ServerParts(access=WithAccess(), recorder=WithRecorder())
"""All that can be put into a server."""


def create_app(config: Config, source: ConfigSource | None = None, workers: WorkerGroup | None = None) -> CallgateApp:
    """Create the application for one config. `source` reads the config again while the application runs; `workers` are the
    other workers of the same server."""
    return assembled(config, source, workers, WHOLE, AllSubjects)
