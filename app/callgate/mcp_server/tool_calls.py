"""`tools/call`: through the same gate, policy, approval, ledger and recorder as a call of a model."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec
from starlette.types import Receive

from callgate.api.answers import run_unless_disconnected
from callgate.api.direct_call import CallResult, DirectCall
from callgate.api.middleware import RequestContext
from callgate.api.rights import check_decider, rights_of_chat
from callgate.api.strict_json import Fields
from callgate.callers.caller import NOBODY, Caller, Principal, owner_name, words_for
from callgate.callers.metering import RequestMeter
from callgate.callers.principals import principal_of
from callgate.calls.outcome import Failed
from callgate.calls.states import ReadyCall
from callgate.conversation.errors import ChatError
from callgate.conversation.events import CallProgress, ChatEvent
from callgate.conversation.ids import new_run_id
from callgate.conversation.ports import Report
from callgate.mcp_server.call_results import APPROVAL, Input, encoded_input, input_required, result_of
from callgate.mcp_server.parked_calls import ParkedCall, ParkedCalls, RequestState, digest_of
from callgate.mcp_server.protocol import INVALID_PARAMS, MAX_SHOWN, Meta, RpcFailure, encode, text_of
from callgate.mcp_server.repeated_calls import CallAnswer, RepeatedCalls
from callgate.mcp_server.reply import Reply
from callgate.mcp_server.tool_lists import ToolLists, output_schema
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.runtime import Runtime
from callgate.tools.approvals.queue import ApprovalOutcome, PendingApproval
from callgate.tools.executor import Tool
from callgate.tools.toolbox import RequestToolbox, ToolSet
from callgate.untrusted.readers import READ_ERRORS, json_reader

ROUTE: Final = "mcp"
ALREADY_DECIDED: Final = frozenset({404, 409})
"""The statuses of a decision that came too late: another one counts."""
_read_inputs: Final = json_reader(dict[str, Input])
_read_argument: Final = json_reader(str)
_EMPTY: Final = "{}"


class CallRequest(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """One request to call a tool."""

    context: RequestContext
    caller: Caller
    name: str
    arguments: str
    """As they were written."""
    modern: bool
    capabilities: Mapping[str, Any]
    idempotency_key: str | None = None
    user: str = ""
    """For whom, where a tool's server is used by each user as himself."""
    state: str | None = None
    inputs: Mapping[str, Input] = {}

    @staticmethod
    def of(context: RequestContext, caller: Caller, params: Fields, meta: Meta, *, modern: bool) -> "CallRequest":
        """Read the parameters. Raises `RpcFailure`."""
        capabilities = meta.capabilities if modern else None
        inputs: Mapping[str, Input] = {}
        if "inputResponses" in params:
            try:
                inputs = _read_inputs(params["inputResponses"])
            except READ_ERRORS:
                message = "`inputResponses` is an object of answers, each with `action` and perhaps `content`."
                raise RpcFailure(INVALID_PARAMS, message) from None
        return CallRequest(
            context=context,
            caller=caller,
            name=text_of(params, "name"),
            arguments=_arguments(params),
            modern=modern,
            capabilities=capabilities if isinstance(capabilities, dict) else {},
            idempotency_key=meta.idempotency_key,
            user=meta.user,
            state=text_of(params, "requestState") if "requestState" in params else None,
            inputs=inputs,
        )

    def owner(self) -> str:
        """Whose call it is: what is kept of it is for nobody else."""
        owner = owner_name(self.caller)
        return f"{owner}\0{self.user}" if self.user else owner

    def digest(self) -> str:
        return digest_of(self.name, self.arguments)


class ToolCalls:
    """Answers `tools/call`."""

    def __init__(
        self,
        manager: RuntimeManager,
        lists_of: Callable[[Runtime], ToolLists],
        parked: ParkedCalls,
        may_call: Callable[[Runtime, Caller], None],
    ) -> None:
        """`may_call` raises `ChatError` where a caller may call nothing any more."""
        self._manager = manager
        self._lists_of = lists_of
        self._parked = parked
        self._may_call = may_call
        self._repeated = RepeatedCalls(manager)

    async def answer(self, request: CallRequest, receive: Receive, reply: Reply) -> bytes:
        """Return the encoded result. Raises `RpcFailure`, `ChatError`, and `ClientDisconnected`."""
        seconds = self._manager.current.limits.request_seconds
        results: list[CallAnswer] = []

        async def work() -> None:
            results.append(await self._once(request, partial(self._answer, request, reply)))

        await run_unless_disconnected(work(), receive, seconds)
        return results[0].result

    async def _answer(self, request: CallRequest, reply: Reply) -> CallAnswer:
        if request.state is not None:
            state = self._parked.opened(request.owner(), request.state, request.digest())
            call = self._parked.take(state)
            request.context.aftermath = call.aftermath
            with call.followed_by(reply):
                await self._give(request, state)
                return await self._followed(request, call)
        with self._manager.leased as runtime:
            tools = self._tools(runtime, request)
            if self._may_be_parked(runtime, request, tools):
                return await self._begun(request, reply)
            emit = _progress_to(reply)
            return CallAnswer(
                await self._called(runtime, request, tools, lambda call, toolbox: call.result(_at_once, emit))
            )

    async def _once(self, request: CallRequest, call: Callable[[], Awaitable[CallAnswer]]) -> CallAnswer:
        """Call, but for a call that was made before with the same idempotency key: then return what came of that."""
        if request.idempotency_key is None:
            return await call()
        return await self._repeated.once(
            call,
            owner=request.owner(),
            key=request.idempotency_key,
            digest=request.digest(),
            goes_on=request.state is not None,
            has_written=lambda: request.context.wrote,
        )

    def _tools(self, runtime: Runtime, request: CallRequest) -> ToolSet:
        """Return the caller's tools. Raises `RpcFailure` where the one that is called is none of them."""
        principal = principal_in(runtime, request.caller, request.user, request.context.headers)
        tools = self._lists_of(runtime).of(request.caller, principal).tools
        if request.name not in tools.offer:
            raise RpcFailure(INVALID_PARAMS, f"Unknown tool: {request.name[:MAX_SHOWN]}")
        return tools

    async def _called(
        self,
        runtime: Runtime,
        request: CallRequest,
        tools: ToolSet,
        run: Callable[[DirectCall, RequestToolbox], Awaitable[CallResult]],
    ) -> bytes:
        """Call a tool, and encode what comes of it."""
        context = request.context
        run_id = context.ids["run_id"] = new_run_id()
        rights = rights_of_chat(self._manager, context, runtime, model=None, check_caller=self._may_call)
        principal = principal_in(runtime, request.caller, request.user, context.headers)
        toolbox = runtime.toolboxes.of_server(tools, request.caller, run_id, rights.ask, principal)
        toolbox.for_client = True
        if tools.read_more is not None and request.name == tools.read_more.name:
            await toolbox.recall([{"role": "user", "content": request.arguments}])
        call = DirectCall(
            runtime,
            context,
            request.caller,
            toolbox,
            run_id=run_id,
            route=ROUTE,
            name=request.name,
            arguments=request.arguments,
        )
        async with self._meter(runtime, request, toolbox):
            result = await run(call, toolbox)
        called = tools.by_name.get(result.call.name or "")
        fields = result_of(
            result,
            toolbox.offer,
            run_id,
            is_untrusted=toolbox.is_untrusted(result.call.name or ""),
            needs_structured=called is not None and output_schema(called) is not None,
        )
        if request.modern:
            fields["resultType"] = "complete"
        return encode(fields)

    def _meter(self, runtime: Runtime, request: CallRequest, toolbox: RequestToolbox) -> RequestMeter:
        meter = runtime.counting_meter(request.caller, 0)
        toolbox.charge = meter.charge
        return meter

    # -- calls that their own client is asked about

    def _may_be_parked(self, runtime: Runtime, request: CallRequest, tools: ToolSet) -> bool:
        """Return whether a call may have to wait for a person who can be asked through its client. Where several processes serve, the
        answer may come to another one: there it is waited for."""
        if not isinstance(request.capabilities.get("elicitation"), dict) or self._manager.is_one_of_many:
            return False
        entry = tools.by_name.get(request.name)
        waits = entry is None or entry.tool.policy.require_approval or entry.tool.asks
        return waits and self._may_decide(runtime, request.caller) and self._parked.has_room(request.owner())

    def _may_decide(self, runtime: Runtime, caller: Caller) -> bool:
        try:
            check_decider(runtime, caller)
        except ChatError:
            return False
        return True

    async def _begun(self, request: CallRequest, reply: Reply) -> CallAnswer:
        """Begin a call in a task of its own, and follow it until it has ended or its client is asked."""
        call = ParkedCall(
            request.owner(), request.digest(), self._waiting_of(request.context), request.context.aftermath
        )
        task = asyncio.create_task(self._carried_out(request, call), name="a call of a client of MCP")
        call.begin(task)
        with call.followed_by(reply):
            return await self._followed(request, call)

    def _waiting_of(self, context: RequestContext) -> Callable[[], list[PendingApproval]]:
        queue = self._manager.shared.approvals
        return lambda: [approval for approval in queue.waiting() if approval.run_id == context.ids.get("run_id")]

    async def _carried_out(self, request: CallRequest, parked: ParkedCall) -> bytes:
        async def run(call: DirectCall, toolbox: RequestToolbox) -> CallResult:
            approve = toolbox.approve

            async def approve_with_client(tool: Tool, ready: ReadyCall, report: Report, key: str) -> Failed | None:
                assert approve is not None, "somebody can be asked"
                refusal = await approve(tool, ready, report, key)
                if refusal is None:
                    await parked.client()
                return refusal

            if approve is not None:
                toolbox.approve = approve_with_client
            return await call.result(_at_once, parked.emit)

        with self._manager.leased as runtime:
            return await self._called(runtime, request, self._tools(runtime, request), run)

    async def _followed(self, request: CallRequest, call: ParkedCall) -> CallAnswer:
        """Wait for the end of a call, or for what its client can be asked. It ends with its client."""
        try:
            await call.next_wait(partial(self._can_ask, request))
        except BaseException:
            self._parked.release(call)
            await call.stop()
            raise
        if call.has_ended():
            self._parked.release(call)
            return CallAnswer(call.result())
        requests, ids = input_required(call.waiting())
        self._parked.park(call, self._manager.config.approvals.timeout_seconds)
        return CallAnswer(encoded_input(requests, self._parked.seal(call, ids)), is_final=False)

    def _can_ask(self, request: CallRequest, approval: PendingApproval) -> bool:
        """Return whether a client can be asked about what its call waits for, as of now."""
        runtime = self._manager.current
        try:
            owner = check_decider(runtime, request.caller)
        except ChatError:
            return False
        is_for_all = owner is None
        if approval.question is None:
            return is_for_all
        modes = request.capabilities.get("elicitation") or {}
        if approval.question.form is None and "url" not in modes:
            return False
        return is_for_all or approval.owner == owner

    async def _give(self, request: CallRequest, state: RequestState) -> None:
        """Hand on what a client's user said. Whoever decided before counts."""
        for key, id in state.waits.items():
            answer = request.inputs.get(key)
            if answer is None:
                continue  # it is asked again, if it still waits
            decision, content, reason = _decision(answer, is_approval=key.rstrip("_") == APPROVAL)
            owner = check_decider(self._manager.current, request.caller)
            try:
                await self._manager.shared.decisions.decide(
                    id,
                    decision,
                    by=words_for(request.caller),
                    reason=reason,
                    content=content,
                    hash=self._hash_of(id),
                    owner=owner,
                )
            except ChatError as error:
                if error.status == 400:
                    raise RpcFailure(INVALID_PARAMS, error.message) from None
                if error.status not in ALREADY_DECIDED:
                    raise

    def _hash_of(self, id: str) -> str | None:
        waiting = self._manager.shared.approvals.waiting()
        return next((approval.hash for approval in waiting if approval.id == id), None)


def principal_in(runtime: Runtime, caller: Caller, user: str, headers: Mapping[str, str]) -> Principal:
    """Return on whose behalf a caller calls tools, where any tool's server is to know."""
    if runtime.knows_identities:
        return principal_of(caller, user, headers)
    return NOBODY


def _decision(answer: Input, *, is_approval: bool) -> tuple[ApprovalOutcome, dict[str, Any] | None, str]:
    """Return the decision, the content of the form, and the reason. Raises `RpcFailure`."""
    if answer.action not in ("accept", "decline", "cancel"):
        raise RpcFailure(INVALID_PARAMS, "`action` is accept, decline or cancel.")
    if not is_approval:
        match answer.action:
            case "accept":
                return ApprovalOutcome.ANSWERED, answer.content, ""
            case "decline":
                return ApprovalOutcome.DECLINED, None, ""
            case _:
                return ApprovalOutcome.CANCELLED, None, ""
    if answer.action != "accept":
        return ApprovalOutcome.DENIED, None, ""
    content = answer.content or {}
    approve = content.get("approve")
    reason = content.get("reason")
    if not isinstance(approve, bool) or not isinstance(reason, str | None):
        raise RpcFailure(INVALID_PARAMS, "The answer has `approve`, true or false, and perhaps a `reason`.")
    decision = ApprovalOutcome.APPROVED if approve else ApprovalOutcome.DENIED
    return decision, None, reason or ""


def _arguments(params: Fields) -> str:
    """Return the arguments as they were written, so that the gate sees all of it."""
    raw = bytes(params.get("arguments", b"")).strip()
    if raw in (b"", b"null"):
        return _EMPTY
    try:
        if raw[:1] == b'"':
            return _read_argument(params["arguments"])
        return raw.decode()
    except READ_ERRORS:
        raise RpcFailure(INVALID_PARAMS, "`arguments` is no JSON.") from None


async def _at_once(work: Awaitable[None]) -> None:
    await work


def _progress_to(reply: Reply) -> Callable[[ChatEvent], Awaitable[None]]:
    async def emit(event: ChatEvent) -> None:
        if isinstance(event, CallProgress):
            await reply.progress(event)

    return emit
