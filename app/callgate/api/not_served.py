"""The APIs of OpenAI and Anthropic that are not served here, by how their paths begin, and what to do instead."""

import re
from collections.abc import Mapping
from typing import Final

_INLINE: Final = "send data inline"
APIS: Final[Mapping[str, tuple[str, str]]] = {
    "files": ("the Files API", _INLINE),
    "uploads": ("the Uploads API", _INLINE),
    "batches": ("the Batch API", "send requests one by one, in the background if need be"),
    "messages/batches": ("the Message Batches API", "send requests one by one"),
    "vector_stores": ("the Vector Stores API", "offer a tool that searches"),
    "containers": ("the Containers API", "offer a tool that runs code"),
    "assistants": ("the Assistants API", "use the Responses API"),
    "threads": ("the Assistants API", "use the Responses API"),
    "evals": ("the Evals API", ""),
    "fine_tuning": ("the Fine-tuning API", ""),
    "videos": ("the Videos API", ""),
    "skills": ("the Skills API", ""),
    "realtime": ("the Realtime API", "use a stream, or the WebSocket of the Responses API"),
    "chatkit": ("ChatKit", ""),
    "agents": ("the Agents API", ""),
    "organization": ("the Administration API", ""),
    "organizations": ("the Administration API", ""),
    "projects": ("the Administration API", ""),
    "audio/voices": ("the Voices API", "name a voice of the provider"),
    "audio/voice_consents": ("the Voices API", "name a voice of the provider"),
    "live": ("the Live API", "use a stream, or the WebSocket of the Responses API"),
    "memory_stores": ("the Memory Stores API", "offer a tool that remembers"),
    "sessions": ("the Sessions API of managed agents", "use the Messages API"),
    "environments": ("the Environments API of managed agents", "offer a tool that runs code"),
    "deployments": ("the Deployments API of managed agents", ""),
    "deployment_runs": ("the Deployments API of managed agents", ""),
    "dreams": ("the Dreams API", ""),
    "vaults": ("the Vaults API", "write credentials of tools into the config"),
    "tunnels": ("the Tunnels API", "write servers of tools into the config"),
    "user_profiles": ("the User Profiles API", ""),
    "webhook_endpoints": ("the Webhooks API", ""),
    "webhook_event_types": ("the Webhooks API", ""),
    "content_provenance_checks": ("the Content Provenance API", ""),
    "decisions": ("the Decisions API", ""),
    "safety": ("the Safety API", ""),
}
_BEGINNING: Final = re.compile(r"(?:/v1)?/(\w+(?:/\w+)?)")


def not_served(path: str) -> str:
    """Return the sentence that says so; empty for any other path."""
    beginning = _BEGINNING.match(path)
    if beginning is None:
        return ""
    two = beginning[1]
    api = APIS.get(two) or APIS.get(two.partition("/")[0])
    if api is None:
        return ""
    name, instead = api
    return f"Callgate does not serve {name}" + (f"; {instead}." if instead else ".")
