"""The guardrails of a runtime, as requests and chats use them. Imported where there are any."""

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from callgate.callers.caller import Caller
from callgate.config.schema.whole import Config
from callgate.conversation.errors import ChatError
from callgate.conversation.events import GuardrailJudged
from callgate.conversation.listeners import Listener, emit_to_listeners
from callgate.conversation.ports import Emit, Toolbox, TurnModel, emit_nothing
from callgate.guardrails.building import guardrails_of
from callgate.guardrails.descriptions import DescriptionScreen
from callgate.guardrails.guarded_model import GuardedModel
from callgate.guardrails.guarded_toolbox import GuardedToolbox
from callgate.guardrails.guardrails import Guardrails, JudgedBody
from callgate.guardrails.hook import Blocked
from callgate.guardrails.judge import ChatJudge, HooksAtPoints
from callgate.guardrails.leaves import TooDeep, texts_in, with_texts
from callgate.guardrails.request_texts import SAID_BY_CLIENTS, Shown
from callgate.models.catalogue import Catalogue
from callgate.runtime.shared import SharedResources
from callgate.telemetry.listeners import log_judged
from callgate.telemetry.logs import Log
from callgate.tools.registry import Registry
from callgate.tools.toolbox import RequestToolbox
from callgate.untrusted.doors import Opened


class Guarding:
    """All hooks of one runtime."""

    def __init__(self, config: Config, shared: SharedResources, catalogue: Catalogue) -> None:
        self.guardrails = guardrails_of(config, shared.web, shared.threads, self.tell)
        self._metrics = shared.metrics
        self._catalogue = catalogue
        self._summary_model = config.compaction.model

    async def screen(self, registry: Registry) -> None:
        """Have hooks judge what the tools of a registry say of themselves, where any looks at that."""
        if self.guardrails.of_descriptions:
            await registry.screen_with(DescriptionScreen(self.guardrails))

    def tell(self, event: GuardrailJudged) -> None:
        """Count and log what a hook said where there is no chat."""
        self._count(event)
        if event.verdict != "passed":
            log_judged(Log("callgate.chat"), event)

    def _count(self, event: GuardrailJudged) -> None:
        self._metrics.guardrail_verdicts.of(event.hook, event.point, event.verdict).inc()

    def of(self, model: str, caller: Caller) -> HooksAtPoints:
        """Return the hooks that look at a caller's requests to a model."""
        names = self._names_of(model)
        hooks = self.guardrails.of(names, caller.name)
        if self._summary_model is None or not names:
            return hooks
        # Who writes a summary reads what was asked, and says nothing to the client.
        of_summaries = self.guardrails.of((*names, *self._names_of(self._summary_model)), caller.name)
        return replace(hooks, request=of_summaries.request)

    def _names_of(self, model: str) -> tuple[str, ...]:
        """Return all names of a model, with those of its fallbacks, any of which may be asked in its place."""
        if not model:
            return ()
        names = dict.fromkeys((model,))
        with contextlib.suppress(ChatError):  # no such model, as the request will be told
            for entry in self._catalogue.entries(model):
                names[entry.configured_name] = None
                for fallback in entry.fallbacks:
                    names[fallback] = None
                    names |= dict.fromkeys(other.configured_name for other in self._catalogue.entries(fallback))
        return tuple(names)

    async def form(self, model: str, caller: Caller, fields: Sequence[tuple[str, str]]) -> Sequence[str]:
        """Return the texts of a form's fields as they go on. `fields`: each with its name. Raises `Blocked`."""
        hooks = self.of(model, caller)
        texts = [text for _, text in fields]
        if not hooks.request:
            return texts
        shown = [Shown(text, name, may_change=name in SAID_BY_CLIENTS) for name, text in fields]
        return await self.guardrails.texts(hooks, shown, model=model, key=caller.name)

    async def body(self, model: str, caller: Caller, body: Opened) -> JudgedBody:
        """Return a request's body as it goes on."""
        hooks = self.of(model, caller)
        if not hooks.request:
            return JudgedBody(body)
        return await self.guardrails.body(hooks, body, model=model, key=caller.name)

    async def messages(self, model: str, caller: Caller, messages: Sequence[Any]) -> Sequence[Any]:
        """Return stored messages as they go on; the same object where nothing of them is changed. Raises `Blocked`."""
        hooks = self.of(model, caller)
        if not hooks.request or not messages:
            return messages
        try:
            leaves = texts_in(messages, is_message=True)
        except TooDeep as error:
            raise Blocked(hooks.request[0].name, str(error), "failed_closed") from None
        shown = [Shown(text, "", may_change=True) for text in leaves]
        texts = await self.guardrails.texts(hooks, shown, model=model, key=caller.name)
        if list(texts) == leaves:
            return messages
        changed: list[Any] = with_texts(messages, texts, is_message=True)
        return changed

    def request(self, model: str, caller: Caller, run_id: str) -> "RequestGuard":
        """Return the hooks of one request."""
        return RequestGuard(self.guardrails, self.of(model, caller), model, caller.name, run_id)

    def calls(self, caller: Caller, run_id: str, listeners: Sequence[Listener] | None = None) -> "ChatGuard":
        """Return what guards calls that no model makes. Its listeners hear of it; what they are may be said later."""

        async def say(event: GuardrailJudged) -> None:
            if listeners is None:
                self.tell(event)
                return
            self._count(event)
            await emit_to_listeners(listeners, emit_nothing)(event)

        hooks = self.guardrails.of((), caller.name)
        return ChatGuard(self.guardrails.chat(hooks, model="", key=caller.name, run_id=run_id, say=say))


class RequestGuard(msgspec.Struct, frozen=True):
    """The hooks that look at one request."""

    guardrails: Guardrails
    hooks: HooksAtPoints
    model: str
    key: str
    run_id: str

    def chat(self, listeners: Sequence[Listener], emit: Emit = emit_nothing) -> "ChatGuard":
        """Return the guard of one chat. Of the listeners some may be added later."""

        async def say(event: GuardrailJudged) -> None:
            await emit_to_listeners(listeners, emit)(event)

        judge = self.guardrails.chat(self.hooks, model=self.model, key=self.key, run_id=self.run_id, say=say)
        return ChatGuard(judge)


class ChatGuard:
    """What guards one chat."""

    def __init__(self, judge: ChatJudge) -> None:
        self.judge = judge

    def model(self, model: TurnModel) -> TurnModel:
        """Return a model whose answers are judged, where any hook looks at them."""
        if self.judge.hooks.answer:
            return GuardedModel(model, self.judge)
        return model

    def toolbox(self, toolbox: Toolbox) -> Toolbox:
        """Return a toolbox whose calls are judged, where any hook looks at them."""
        if self.judge.hooks.arguments:
            return GuardedToolbox(toolbox, self.judge)
        return toolbox

    def watched(self, toolbox: Toolbox) -> Toolbox:
        """Return a toolbox of server tools whose calls and results are judged."""
        assert isinstance(toolbox, RequestToolbox), "its results could not be judged"
        self.watch(toolbox)
        return self.toolbox(toolbox)

    def watch(self, toolbox: RequestToolbox) -> None:
        """Have the results of a toolbox judged."""
        self.judge.names_of = toolbox.names_of
        if self.judge.hooks.result:
            toolbox.screen = self.judge.outcome
            toolbox.is_screened = self.judge.looks_at_results_of

    async def hear(self, verdicts: Sequence[GuardrailJudged]) -> None:
        """Tell the chat what was said of its request."""
        for verdict in verdicts:
            await self.judge.say(verdict)
