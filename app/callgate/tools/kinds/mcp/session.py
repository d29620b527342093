"""One session with a server, from connecting to closing, inside a task of its own.

The SDK's client has to be closed in the task that opened it, and cancelling that task twice makes it hang. So the task is
ended by an event, and cancelled once if it does not end. Calls come from the tasks of requests and use the link directly, or
the client where the link cannot bypass the SDK.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol

import anyio
import mcp_types as types
import msgspec
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from callgate import __version__
from callgate.calls.unseen import visible
from callgate.conversation.ports import ProgressReport, ignore_progress
from callgate.http.trace_context import TRACE, trace_headers
from callgate.tools.kinds.mcp.authorization import NeedsLogin
from callgate.tools.kinds.mcp.elicitation import CallsThatAsk, Elicitations, Mode, capabilities_of
from callgate.tools.kinds.mcp.sdk import (
    Client,
    ClientRequestContext,
    ListenNotSupportedError,
    MCPError,
    SubscriptionLost,
    Transport,
)
from callgate.tools.kinds.mcp.wire import (
    LIST_BYTES,
    READ,
    SESSION_FORGOTTEN,
    Gone,
    ListBudget,
    RpcAnswer,
    RpcError,
    ServerRequest,
    Terms,
    Unreadable,
    answer_from,
    encoded,
    not_sent,
)
from callgate.tools.source_supervisor import CannotOpen, reason
from callgate.untrusted.pydantic_readers import read_model
from callgate.untrusted.readers import json_reader

ASK_SECONDS = 20.0
"""The timeout of requests other than tool calls: initialization, lists."""
STOP_SECONDS = 3.5
"""The timeout for an orderly end. Less than a source's timeout for closing, so that there is time to abort."""
ABORT_SECONDS = 0.5
RELIST_SECONDS = 1.0
"""The interval between two lists, because some servers announce each tool separately. It doubles with each list in a row."""
LONGEST_RELIST_SECONDS = 15.0
QUIET_SECONDS = 30.0
"""After so long without a change the interval is the least again."""
LISTEN_AGAIN_SECONDS = 2.0
MAX_TTL_SECONDS = 60.0
"""The longest time for which a server's list is believed to be fresh, whatever it says: what it announces would go unheard."""
FOREVER = 86_400.0
"""The SDK's timeout of a call, because the toolbox enforces another."""
MAX_PAGES = 100
INSTRUCTIONS = 2_000
"""Characters of a server's instructions that are kept."""
MAX_TOOLS = 2_000
MAX_RESOURCES = 20
"""Resources that are named to models."""
CLIENT = types.Implementation(name="callgate", version=__version__)


class Link(Transport, Protocol):
    """A connection to a server: a transport for the SDK, and further methods for a session."""

    transport: str
    """The transport's name in OpenTelemetry."""
    direct: bool
    """Whether calls can bypass the SDK, by `ask`."""
    gone: "asyncio.Future[str]"
    """Done when the server cannot be reached over this link any more, with the reason; empty if we closed it."""
    trouble: str
    """The last error below the protocol, more precise than the SDK's error."""
    budget: ListBudget | None
    """What may still come of the list that is being read."""
    capabilities: Mapping[str, Any]
    """What the server is told that we can do for it. Set before it is entered."""

    @property
    def session_id(self) -> str:
        """The server's id of the session; empty if there is none."""
        ...

    @property
    def needs_login(self) -> NeedsLogin | None:
        """Why the SDK's last request was not authorized, if it was not."""
        ...

    def agreed(self, terms: Terms, check: Callable[[], None]) -> None:
        """Set the terms of the session, and a function to call when the tools or the server should be checked."""
        ...

    def ask(self, request: ServerRequest) -> Coroutine[Any, Any, RpcAnswer]: ...

    def kill(self) -> None: ...


class ResourceList(msgspec.Struct, frozen=True):
    """The resources of a server, by their names and addresses, or templates of these."""

    names: tuple[tuple[str, str], ...]
    is_whole: bool


class Listing(msgspec.Struct, frozen=True):
    """What is listed of a server."""

    bytes: int = LIST_BYTES
    resources: bool = True
    follows: bool = True
    """It is listed again when the server says that it has changed."""
    is_known: bool = False
    """It is not asked for its tools."""


WHOLE = Listing()


class RelistPace:
    """How long to wait between two lists of a server that announces changes."""

    def __init__(self) -> None:
        self._seconds = RELIST_SECONDS

    def was_quiet(self, seconds: float) -> None:
        """Take note of a time without changes."""
        if seconds > QUIET_SECONDS:
            self._seconds = RELIST_SECONDS

    def after_list(self, ttl: float = 0.0) -> float:
        """Return the seconds to wait after a list, which its server says will be fresh for `ttl` seconds."""
        seconds = max(self._seconds, min(ttl, MAX_TTL_SECONDS))
        self._seconds = min(2 * self._seconds, LONGEST_RELIST_SECONDS)
        return seconds


class Session:
    """An open session, its tools as listed last, and its end."""

    def __init__(
        self,
        link: Link,
        on_tools: Callable[[tuple[types.Tool, ...], "ResourceList | None"], Awaitable[None]],
        modes: frozenset[Mode] = frozenset(),
        listing: Listing = WHOLE,
    ) -> None:
        """`modes`: the ways in which the server may ask a person."""
        self._listing = listing
        self._link = link
        self._listed = on_tools
        self._modes = modes
        self._calls = CallsThatAsk()
        self._ttl = 0.0
        """Seconds for which the server says that its list is fresh."""
        self.instructions = ""
        """What the server says of itself."""
        link.capabilities = capabilities_of(modes)
        self._client: Client | None = None
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stirred = asyncio.Event()
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed = False
        self._ended = asyncio.Event()
        self._why = ""
        self._task: asyncio.Task[None] | None = None
        self._aborted = False
        link.gone.add_done_callback(lambda _: self._leave())

    async def open(self) -> None:
        """Connect and list the tools. Raises the first error, after cleaning up."""
        self._task = asyncio.create_task(self._live(), name="session of a tool server")
        try:
            await asyncio.wait([self._opened, self._task], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._abort(STOP_SECONDS)
            raise
        if not self._opened.done():
            raise CannotOpen(self._why)

    async def lost(self) -> str:
        """Wait for the end of the session; return the reason."""
        await self._ended.wait()
        return self._why

    def forget(self) -> None:
        """End it as if the server had forgotten it, so that another is opened."""
        if not self._link.gone.done():
            self._link.gone.set_result(SESSION_FORGOTTEN)

    async def close(self) -> None:
        self._leave()
        if self._task is None:
            return
        await asyncio.wait([self._task], timeout=STOP_SECONDS)
        await self._abort(ABORT_SECONDS)

    def check(self) -> None:
        """List the tools again, because they changed, or to check whether the server is still there."""
        if not self._listing.follows:
            return
        self._changed = True
        self._stirred.set()

    def call(self, request: ServerRequest) -> Awaitable[RpcAnswer]:
        """Call a tool, or read a resource. Raises `Gone` where the connection was lost, at once or when it is awaited."""
        if request.elicitations is None:
            return self._call(request)
        return self._call_that_asks(request, request.elicitations)

    async def _call_that_asks(self, request: ServerRequest, elicitations: Elicitations) -> RpcAnswer:
        leave = self._calls.enter(elicitations)
        try:
            return await self._call(request)
        finally:
            leave()
            await elicitations.close()

    def _call(self, request: ServerRequest) -> Awaitable[RpcAnswer]:
        if self._ended.is_set() or self._client is None:
            raise not_sent(self._link.gone, "the session has ended")
        if (trace := TRACE.get()) is not None:
            trace.note(
                {
                    "mcp.method.name": request.method,
                    "mcp.protocol.version": self._client.protocol_version,
                    "mcp.session.id": self._link.session_id or None,
                    "network.transport": self._link.transport,
                }
            )
        if request.is_direct and self._link.direct:
            return self._link.ask(request)
        return self._call_through_sdk(self._client, request)

    async def _call_through_sdk(self, client: Client, request: ServerRequest) -> RpcAnswer:
        params = request.params

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            fraction = None
            if total:
                fraction = min(max(progress / total, 0.0), 1.0)
            await request.report(ProgressReport(message or "", fraction))

        try:
            if request.method == READ:
                result = await client.session.read_resource(
                    params["uri"],
                    input_responses=_read_responses(params.get("inputResponses")),
                    request_state=params.get("requestState"),
                    allow_input_required=True,
                )
            else:
                result = await self._send_through_sdk(client, params, on_progress)
        except MCPError as error:
            if error.code == types.CONNECTION_CLOSED:
                self.check()
                raise Gone("the connection was closed") from None
            needs_login = self._link.needs_login
            if needs_login is not None and error.message == needs_login.words:
                raise needs_login from None
            return RpcAnswer(error=RpcError(error.code, error.message, error.error.data))
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            raise Gone("the connection was closed") from error
        except (ValidationError, RuntimeError) as error:
            raise Unreadable("The tool's server sent a result that is not what it promised.") from error
        return answer_from(result.model_dump(mode="json", by_alias=True, exclude_none=True))

    async def _send_through_sdk(self, client: Client, params: Mapping[str, Any], on_progress: Any) -> Any:
        meta: Any = dict(trace_headers()) or None
        name = params["name"]
        arguments = dict(params["arguments"])
        if not self._modes:
            return await client.call_tool(name, arguments, FOREVER, on_progress, meta=meta)
        return await client.session.call_tool(
            name,
            arguments,
            FOREVER,
            on_progress,
            meta=meta,
            input_responses=_read_responses(params.get("inputResponses")),
            request_state=params.get("requestState"),
            allow_input_required=True,
        )

    async def _elicited(self, context: ClientRequestContext, params: Any) -> types.ElicitResult | types.ErrorData:
        """Answer a request that the server sent beside the answers to calls."""
        encoded_params = encoded(params.model_dump(mode="json", by_alias=True, exclude_none=True))
        answer = await self._calls.answer(str(context.request_id), msgspec.Raw(encoded_params))
        if isinstance(answer, RpcError):
            return types.ErrorData(code=answer.code, message=answer.message)
        return types.ElicitResult(**answer)

    # The task that owns the client ----------------------------------------------------------------

    async def _live(self) -> None:
        why = "the connection broke off"
        try:
            async with Client(
                self._link,
                read_timeout_seconds=ASK_SECONDS,
                message_handler=self._handle,
                elicitation_callback=self._elicited if self._modes else None,
                client_info=CLIENT,
                cache=None,
            ) as client:
                await self._attend(client)
        except asyncio.CancelledError:
            pass  # ours, or the SDK's, which cancels the client's task when a transport breaks
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - whatever it was, the session is over and says why
            first: BaseException = error
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            if isinstance(first, MCPError):
                why = first.message
            else:
                why = reason(first)
        finally:
            self._client = None
            self._link.kill()
            self._why = self._link.gone.result() or self._link.trouble or why
            self._ended.set()

    async def _attend(self, client: Client) -> None:
        modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
        self._link.agreed(
            Terms(
                client.protocol_version,
                modern=modern,
                client={"name": CLIENT.name, "version": CLIENT.version},
                capabilities=self._link.capabilities,
            ),
            self.check,
        )
        self.instructions = visible(client.instructions or "")[:INSTRUCTIONS]
        if not self._listing.is_known:
            await self._list(client)
        self._client = client
        self._link.trouble = ""
        if not self._opened.done():
            self._opened.set_result(None)
        tools = client.server_capabilities.tools
        announces = tools is not None and bool(tools.list_changed)
        if modern and announces and self._listing.follows:
            listening = asyncio.create_task(self._listen(client))
        else:
            listening = None
        pace = RelistPace()
        clock = asyncio.get_running_loop().time
        try:
            while not self._over.done():
                if not self._changed:
                    quiet_since = clock()
                    await self._stirred.wait()
                    self._stirred.clear()
                    pace.was_quiet(clock() - quiet_since)
                    continue
                self._changed = not await self._listed_again(client)
                await asyncio.wait([self._over], timeout=pace.after_list(self._ttl))
        finally:
            if listening is not None:
                await _ended(listening)

    async def _listed_again(self, client: Client) -> bool:
        """List the tools again; False where the server did not answer in time, perhaps because of a long call."""
        self._changed = False
        try:
            await self._list(client)
        except TimeoutError:
            return False
        except MCPError as error:
            if error.code != types.REQUEST_TIMEOUT:
                raise
            return False
        return not self._changed

    async def _list(self, client: Client) -> None:
        tools: list[types.Tool] = []
        cursor: str | None = None
        cursors: set[str] = set()
        self._link.budget = ListBudget(self._listing.bytes)
        try:
            for _ in range(MAX_PAGES):
                page, cursor = await self._page(client, cursor)
                tools += page
                if cursor is None or cursor in cursors or len(tools) > MAX_TOOLS:
                    break
                cursors.add(cursor)
            resources = await self._resources(client)
        finally:
            self._link.budget = None
        await self._listed(tuple(tools[:MAX_TOOLS]), resources)

    async def _resources(self, client: Client) -> "ResourceList | None":
        """List resources, as far as one page has them; None where there are none. What is wrong with them does not take the tools away."""
        if client.server_capabilities.resources is None or not self._listing.resources:
            return None
        names: list[tuple[str, str]] = []
        is_whole = True
        try:
            page = await client.list_resources()
            names += [(resource.title or resource.name, resource.uri) for resource in page.resources]
            is_whole = page.next_cursor is None
            templates = await client.list_resource_templates()
            names += [
                (template.title or template.name, template.uri_template) for template in templates.resource_templates
            ]
            is_whole = is_whole and templates.next_cursor is None
        except (MCPError, ValidationError, RuntimeError):
            pass  # many servers have no templates, and do not say so
        if names:
            return ResourceList(tuple(names[:MAX_RESOURCES]), is_whole=is_whole and len(names) <= MAX_RESOURCES)
        return None

    async def _page(self, client: Client, cursor: str | None) -> tuple[list[types.Tool], str | None]:
        try:
            page = await client.list_tools(cursor=cursor)
        except MCPError as error:
            if error.code != types.METHOD_NOT_FOUND:
                raise
            return [], None  # a server without tools
        except ValidationError:
            if not self._link.direct:
                raise
            return await self._lenient_page(cursor)
        self._ttl = (page.ttl_ms or 0) / 1000
        return page.tools, page.next_cursor

    async def _lenient_page(self, cursor: str | None) -> tuple[list[types.Tool], str | None]:
        """Read a page of tools one by one, because the SDK refuses a whole list for one invalid tool."""
        async with asyncio.timeout(ASK_SECONDS):
            params = {} if cursor is None else {"cursor": cursor}
            answer = await self._link.ask(ServerRequest("tools/list", params, ignore_progress))
        assert self._link.budget is not None
        self._link.budget.take(bytes(answer.raw))
        page = _read_page(answer.raw)
        tools: list[types.Tool] = []
        for raw in page.tools[: MAX_TOOLS + 1]:
            with contextlib.suppress(ValidationError):  # not even a name
                tools.append(read_model(types.Tool, raw))
            await asyncio.sleep(0)
        return tools, page.next_cursor

    async def _handle(self, message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self.check()

    async def _listen(self, client: Client) -> None:
        """Subscribe to changes, as required since 2026-07-28."""
        while True:
            try:
                async with client.listen(tools_list_changed=True) as events:
                    async for _ in events:
                        self.check()
            except (SubscriptionLost, TimeoutError):
                pass  # subscribed again below, after which the tools are listed
            except (ListenNotSupportedError, MCPError, anyio.ClosedResourceError, anyio.BrokenResourceError):
                return
            await asyncio.sleep(LISTEN_AGAIN_SECONDS)
            self.check()

    # Its end --------------------------------------------------------------------------------------

    def _leave(self) -> None:
        if not self._over.done():
            self._over.set_result(None)
        self._stirred.set()

    async def _abort(self, patience: float) -> None:
        """Cancel the task, once, and abandon it if it does not end."""
        assert self._task is not None
        if self._task.done() or self._aborted:
            return
        self._aborted = True
        self._task.cancel()
        await asyncio.wait([self._task], timeout=patience)
        if not self._task.done():
            self._link.kill()
            await asyncio.wait([self._task], timeout=ABORT_SECONDS)


def _read_responses(responses: Mapping[str, Any] | None) -> Any:
    """Return answers to a server's questions as the SDK has them."""
    if responses is None:
        return None
    return {key: types.ElicitResult(**answer) for key, answer in responses.items()}


class _Page(msgspec.Struct):
    tools: list[msgspec.Raw]
    next_cursor: str | None = msgspec.field(default=None, name="nextCursor")


_read_page = json_reader(_Page)


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # marks it as retrieved: the session is over
