"""How the APIs beside chat completions are served."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from callgate.config.schema.values import Section

ToolsShown: TypeAlias = Literal["mcp_call", "hidden"]


class ResponsesOfOne(Section):
    """How responses are served to one key, or from one model."""

    tools_shown: ToolsShown | None = None
    """How calls of the config's tools are shown; as `responses.tools_shown` says where it is not set."""


class Compaction(Section):
    """How a conversation is summarized where its client asks for that."""

    model: Annotated[str | None, Field(min_length=1)] = None
    """The model of `model_list` that writes summaries, for every key; the model of the conversation where it is not set."""
    prompt: Annotated[str | None, Field(min_length=1)] = None
    """What asks it for a summary, in place of the built-in words."""


class Responses(Section):
    """How the Responses API is served."""

    tools_shown: ToolsShown = "mcp_call"
    """How calls of the config's tools are shown: as `mcp_call` items with what came of them, or not at all."""
