"""The subjects that are put into a server. It answers chats without any of them."""

import msgspec

from callgate.records.nothing import WithoutRecorder
from callgate.records.ports import RecorderParts
from callgate.runtime.access_control import AccessParts
from callgate.runtime.without_access import WithoutAccess


class ServerParts(msgspec.Struct, frozen=True, kw_only=True):
    """Builds the subjects that a server has; without a part of its own each has a stand-in."""

    access: AccessParts = WithoutAccess()
    recorder: RecorderParts = WithoutRecorder()


ALONE = ServerParts()
"""Nothing but chat."""
