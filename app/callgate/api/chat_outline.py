"""The parts of a chat that are checked in every request, with the types that all providers have in common. The readers of all APIs
make them."""

from typing import Any, Literal

import msgspec

Role = Literal["developer", "system", "user", "assistant", "tool", "function"]


class _Part(msgspec.Struct, gc=False):
    type: str


class _CalledFunction(msgspec.Struct, gc=False):
    name: str
    arguments: str


class _Call(msgspec.Struct, gc=False):
    id: str
    function: _CalledFunction | None = None


class ChatMessage(msgspec.Struct, gc=False):
    role: Role
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None


class _StreamOptions(msgspec.Struct, gc=False):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class _Function(msgspec.Struct, gc=False):
    name: str
    parameters: msgspec.Raw = msgspec.Raw()


class ChatTool(msgspec.Struct, gc=False):
    type: str
    function: _Function | None = None
    custom: _Function | None = None
    tools: list["ChatTool"] | None = None
    """Those in it, where its type holds several."""
    server_url: Any = None
    connector_id: Any = None
    tunnel_id: Any = None

    @property
    def has_address(self) -> bool:
        """Whether it names a server, under whatever type a provider may know for that."""
        return not (self.server_url is None and self.connector_id is None and self.tunnel_id is None)

    @property
    def name(self) -> str | None:
        named = self.function or self.custom
        if named is None:
            return None
        return named.name


class _Allowed(msgspec.Struct, gc=False):
    mode: Literal["auto", "required"] = "auto"
    tools: list[ChatTool] = msgspec.field(default_factory=list)


class ChatToolChoice(msgspec.Struct, gc=False):
    """A tool choice that is an object."""

    type: Literal["function", "custom", "allowed_tools"]
    function: _Function | None = None
    custom: _Function | None = None
    allowed_tools: _Allowed | None = None


class ChatOutline(msgspec.Struct):
    """The fields of a request that are checked, with their common types. Unknown fields are ignored."""

    model: str
    messages: list[ChatMessage]
    tools: list[ChatTool] | None = None
    tool_choice: str | ChatToolChoice | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    parallel_tool_calls: bool | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    seed: int | None = None
    user: str | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, float] | None = None
    response_format: dict[str, Any] | None = None
