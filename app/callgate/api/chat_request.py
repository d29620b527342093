"""One request of a client, as the conversation takes it: the value that the readers of all APIs make.

It is made once and never changed. What a passed-through request does not need is decoded by methods, when it is needed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, get_args

import msgspec
from msgspec.structs import replace

from callgate.api.chat_outline import ChatOutline, ChatTool
from callgate.api.field_errors import wrong
from callgate.calls.selection import ApprovalPolicy, ToolSelection
from callgate.conversation.approved_calls import ClientApprovals
from callgate.conversation.context import ContextWishes
from callgate.conversation.events import CallsHandedBack
from callgate.conversation.ports import JudgedFields, Message, Original, Toolbox
from callgate.conversation.turn_recovery import Hint
from callgate.conversation.usage import UsageScope
from callgate.hosted.calls import HostedToolbox, Keep
from callgate.hosted.declared import HostedTools, by_name_in
from callgate.hosted.returned import ReturnedCall
from callgate.policy.judge import NamedThings
from callgate.runtime.route import ClientTools
from callgate.untrusted.doors import Door, TooMuch, open_text
from callgate.untrusted.readers import json_reader, read_value

if TYPE_CHECKING:
    from callgate.callers.client_mcp import NamedServers

ATTRIBUTES: Final = frozenset(
    {"model", "messages", "tools", "tool_choice", "stream", "stream_options", "metadata", "n"}
)
"""Fields that are attributes of a request; all others are sent on unchanged."""
IDLE_CHOICES: Final = ("auto", "none", None)
"""Tool choices that say nothing where there are no tools."""

Dialect: TypeAlias = Literal["off", "x", "reasoning", "openwebui", "trace"]
"""The formats in which a client can be shown running tools."""
DIALECTS: Final[Mapping[str, Dialect]] = {dialect: dialect for dialect in get_args(Dialect)}
ToolFilter: TypeAlias = str | tuple[ToolSelection, ...] | None
"""The tools of ours that a client wants: names, or `none`, or selections; all that are offered when absent."""

RenameCalls: TypeAlias = Callable[[Sequence[Message], CallsHandedBack], CallsHandedBack]
"""Returns calls with the ids that a format has for them after a history."""

BEST_OF: Final = "best_of"
MOST_ANSWERS: Final = 100_000
"""More than any limit of requests lets through."""

SCHEMA: Final = Door(name="a schema inside a text", bytes=64 * 1024 * 1024, values=100_000)
_items = json_reader(list[msgspec.Raw])
_objects = json_reader(dict[str, Any])
_text = json_reader(str)
_any = json_reader(dict[str, Any])
_anything = json_reader(list[dict[str, Any]] | None)
_encode = msgspec.json.Encoder().encode


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """How the client is sent its answer."""

    stream: bool = False
    include_usage: bool = False
    """The client wants the token counts at the end of its stream."""
    tool_events: Dialect | None = None
    """How calls of our tools are shown; None where the client does not say."""
    rename_calls: RenameCalls | None = None
    """Gives the calls that are handed back the ids of its format; set where its calls have no ids of their own."""
    every_event: bool = False
    """The writer of the answer handles the events of turns too."""
    usage_scope: UsageScope = "sum"
    """Which token counts the answer reports."""


AS_USUAL: Final = Delivery()
"""The delivery of a request that says nothing about it."""


class RequestedTools(msgspec.Struct, frozen=True):
    """What a request says about tools, its own and ours."""

    filter: ToolFilter = None
    client_list: ClientTools = "absent"
    """Whether the client gave tools, its own or ours by name."""
    choice: str | dict[str, Any] | None = None
    takes_calls: bool = True
    """False where the client forbids calls, so that none is sent to it."""
    allowed: frozenset[str] | None = None
    """The tools, the client's and ours, that `tool_choice` allows; all when absent."""
    choice_among_allowed: str | None = None
    """The tool choice once the tools were narrowed to those."""
    own_names: Mapping[str, str] = {}
    """The client's names of its tools, by the legal ones that they have here."""
    approval_policies: Sequence[ApprovalPolicy] = ()
    """The calls of our tools that wait for approval because the request says so."""
    approvals: ClientApprovals | None = None
    """The calls of our tools that the client approves itself, if any."""
    max_calls: int | None = None
    """The limit of calls of our tools, in all turns together."""
    hosted: HostedTools | None = None
    """The tools that the client declares for a provider to run, and that tools of ours stand for, if any."""
    servers: "NamedServers | None" = None
    """The MCP servers that it names by their addresses, or whose tools its client is to be told; None for none."""

    def limited(self, toolbox: Toolbox, keep: Keep) -> Toolbox:
        """Return a toolbox with the limits of the declared tools. `keep` keeps a call of which the client is shown less than the
        model read."""
        if self.hosted is None:
            return toolbox
        return HostedToolbox(toolbox, self.hosted.by_name, keep if self.hosted.comes_back else None)

    def with_more(
        self,
        listed: Sequence[Any] | None,
        max_calls: int | None,
        hosted: HostedTools | None,
        servers: "NamedServers | None",
    ) -> "RequestedTools":
        """Return the same with what another API can say beside functions; itself where it says nothing. `listed`: its list of tools."""
        tools = self
        if max_calls is not None or hosted is not None or servers is not None:
            tools = replace(self, max_calls=max_calls, hosted=hosted, servers=servers)
        if listed is None:
            return tools
        return tools.with_list("some" if listed else "empty")

    def with_list(self, client_list: ClientTools) -> "RequestedTools":
        """Return the same for a client that gave this list of tools. Beside an empty one a choice that says nothing is dropped,
        because providers refuse it without tools."""
        if client_list != "empty":
            return replace(self, client_list=client_list)
        choice = self.choice
        if choice in IDLE_CHOICES:
            choice = None
        return replace(self, client_list=client_list, takes_calls=False, choice=choice)


class ClientsOriginal(Protocol):
    """A request in the words of another API, as it came."""

    @property
    def is_chat(self) -> bool: ...

    @property
    def fields(self) -> Mapping[str, msgspec.Raw]: ...

    @property
    def foreign(self) -> Sequence[tuple[str, str]]: ...

    def judged(self, fields: JudgedFields) -> Original:
        """Return the request for lanes, with these fields."""
        ...


class RequestOrigin(msgspec.Struct, frozen=True):
    """What a request continues, and the form that it came in."""

    original: ClientsOriginal | None = None
    """The client's own request, where its API is another that a model may have too."""
    conversation: str = ""
    """The id of the conversation that it goes on with, where the client names one."""
    hints: Mapping[int, Hint] = {}
    """The hints in the history about calls of ours, by positions of messages."""
    shown_calls: frozenset[str] = frozenset()
    """The ids of our calls that the client was shown and sent back."""
    keeps_hidden: bool = False
    """Hidden turns are stored even where no tool of ours is offered."""
    hosted_calls: Sequence[ReturnedCall] = ()
    """The calls of declared tools that the client was shown and sent back."""
    may_have_ids: bool = False
    """It may name objects of the operator's account at a provider."""

    def has_past_calls(self) -> bool:
        """Return whether calls in its history are put together with what is kept of them."""
        return bool(self.hints or self.shown_calls or self.hosted_calls)


OURS_IN_CHATS: Final = frozenset({"mcp"})
OURS_IN_MESSAGES: Final = frozenset({"mcp_toolset"})
"""Types of tools that name servers of ours."""
ONLY_CHAT: Final = RequestOrigin()
"""A request of Chat Completions without anything of the kind."""
SAYS_NOTHING: Final = RequestedTools()
"""What a request without tools says about them."""


class ChatRequest(msgspec.Struct, frozen=True):
    """One request of a client."""

    outline: ChatOutline
    fields: Mapping[str, msgspec.Raw]
    """The undecoded fields of the body, for passing them through; translated, if they are of another API."""
    normalized: Mapping[str, msgspec.Raw]
    """The same, with `tools` for deprecated `functions`."""
    model: str
    n: int
    metadata: Mapping[str, Any]
    """The client's metadata without our own keys."""
    delivery: Delivery
    tools: RequestedTools
    origin: RequestOrigin = ONLY_CHAT
    may_pass: bool = True
    """The answer may be the provider's own bytes: no name in them was changed, and its writer takes them."""
    context: ContextWishes | None = None
    """What is done here to keep its prompt small, because its client asks for it."""
    history: Sequence[Message] | None = None
    """The messages, where they are decoded already, because a part of them was stored here. In messages that are dicts nothing
    has to be restored."""

    def named(self) -> NamedThings:
        """Return what it names, for the judge."""
        original = self.origin.original
        if original is None or original.is_chat:
            return NamedThings(
                self.fields, may_have_ids=self.origin.may_have_ids, ours=OURS_IN_CHATS, tools_are_judged=True
            )
        return NamedThings(
            original.fields, original.foreign, dotted=True, may_have_ids=self.origin.may_have_ids, ours=OURS_IN_MESSAGES
        )

    def read_history(self) -> Sequence[Message]:
        """Return the messages, undecoded where they came so."""
        if self.history is not None:
            return self.history
        return _items(self.normalized["messages"])

    def written_history(self) -> Sequence[Message] | msgspec.Raw:
        """Return the messages to write them down: in one piece where they are not decoded, because to part them takes reading all
        of them."""
        if self.history is not None:
            return self.history
        return self.normalized["messages"]

    def written_bytes(self) -> int | None:
        """Return the size of its fields as the client sent them; None where the messages are decoded."""
        if self.history is not None:
            return None
        size = 0
        for value in self.normalized.values():
            size += memoryview(value).nbytes
        return size

    def read_tools(self) -> Sequence[msgspec.Raw]:
        """Return the client's tools undecoded."""
        if not self.outline.tools:
            return ()
        return _with_parsed_parameters(self.normalized["tools"], self.outline.tools)

    def check_choice(self, is_offered: Callable[[str], bool]) -> None:
        """Refuse a tool choice that names a function which the request does not have. `is_offered` returns whether a tool of ours
        has a name."""
        choice = self.tools.choice
        if not isinstance(choice, dict):
            return
        names: Iterable[str] = ()
        kind = choice.get("type")
        named = choice.get(kind) if isinstance(kind, str) else None
        if self.tools.choice_among_allowed is not None:
            names = sorted(self.tools.allowed or ())
        elif isinstance(named, dict) and isinstance(named.get("name"), str):
            names = [named["name"]]
        standing = by_name_in(self.tools.hosted)
        names = [standing[name].tool if name in standing else name for name in names]
        unknown = [name for name in names if not is_offered(name)]
        if not unknown:
            return
        own_names = self._tool_names()
        for name in unknown:
            if name not in own_names:
                message = f"Invalid value for 'tool_choice': no tool of this request is called '{name[:64]}'."
                raise wrong("tool_choice", message)

    def _tool_names(self) -> set[str]:
        """Return the names of the client's tools, those that a provider runs included."""
        listed = [_any(tool) for tool in self.read_tools()]
        original = self.origin.original
        if original is not None and "tools" in original.fields:
            listed += _anything(original.fields["tools"]) or ()
        described = (tool.get(str(tool.get("type"))) for tool in listed)
        inner = [entry for entry in described if isinstance(entry, dict)]
        return {str(entry.get("name")) for entry in (*listed, *inner)}

    def other_fields(self) -> dict[str, Any]:
        """Return the fields that are no attributes."""
        return other_fields(self.normalized, self.metadata)

    def prompt_bytes(self) -> int:
        """Return the size of its messages and tools."""
        parts = [self.normalized[name] for name in ("messages", "tools") if name in self.normalized]
        return sum(memoryview(part).nbytes for part in parts)

    def user(self) -> str:
        """Return who the client says is asking: `user`, or else `safety_identifier`; empty where it says nothing."""
        for name in ("user", "safety_identifier"):
            if name in self.normalized and isinstance(user := read_value(self.normalized[name]), str) and user:
                return user
        return ""

    def end_user(self) -> str:
        """Return the end user that the client names: `user`, `safety_identifier`, or both."""
        parts = [self.normalized[name] for name in ("user", "safety_identifier") if name in self.normalized]
        return b"\0".join(map(bytes, parts)).decode()

    def answers_to_choose_from(self) -> int:
        """Return how many answers a provider makes of which it gives the best, as vLLM does. Raises `ChatError` for what is no number:
        it might be taken for one."""
        if BEST_OF not in self.normalized:
            return 1
        number = read_value(self.normalized[BEST_OF])
        if number is None:
            return 1
        if isinstance(number, bool) or not isinstance(number, int):
            raise wrong(BEST_OF, f"Invalid type for '{BEST_OF}': expected a whole number.", "invalid_type")
        return min(max(number, 1), MOST_ANSWERS)

    def longest_answer(self) -> int | None:
        """Return the limit of answer tokens that the request sets, if any."""
        for name in ("max_completion_tokens", "max_tokens"):
            if name in self.normalized:
                limit = read_value(self.normalized[name])
                if isinstance(limit, int) and limit > 0:
                    return limit
        return None


def other_fields(fields: Mapping[str, msgspec.Raw], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request that are no attributes."""
    others: dict[str, Any] = {name: value for name, value in fields.items() if name not in ATTRIBUTES}
    if metadata:
        others["metadata"] = metadata
    return others


def _with_parsed_parameters(raw: msgspec.Raw, outlines: Sequence[ChatTool]) -> Sequence[msgspec.Raw]:
    """Return tools undecoded, with parameters parsed that are JSON in a string."""
    tools = _items(raw)
    for place, tool in enumerate(outlines):
        if tool.function is not None and bytes(tool.function.parameters)[:1] == b'"':
            where = f"tools[{place}].function.parameters"
            described = _objects(tools[place])
            try:
                described["function"]["parameters"] = _objects(open_text(_text(tool.function.parameters), SCHEMA))
            except (TooMuch, msgspec.DecodeError):
                raise wrong(where, f"Invalid value for '{where}': expected a JSON Schema.", "invalid_type") from None
            tools[place] = msgspec.Raw(_encode(described))
    return tools
