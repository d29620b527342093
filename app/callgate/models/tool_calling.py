"""Chooses how each deployment is asked for tool calls: natively, in a prompt, or by a probe at its first use.

The config decides; `auto` leaves it to the entry's `model_info`, then to litellm's model list, the model's family and a probe
(`callgate.text_calls.calling_detection`). litellm's list is used only where litellm is loaded anyway, because loading takes
two seconds and fifty megabytes.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from callgate.conversation.ports import Model
from callgate.models import litellm_model, resolve
from callgate.models.catalogue import is_demo
from callgate.models.learnt_thinking import ThinkingNotes
from callgate.models.providers import provider_named
from callgate.models.resolve import ModelConfig
from callgate.text_calls.calling_detection import CallingDetector, CallingMode, DetectingModel
from callgate.text_calls.families import NATIVE, format_for
from callgate.text_calls.thinking import ThinkingMemory

AUTO = "auto"
CONSTRAINABLE = "json"
REMEMBERED = 4096
"""Deployments whose mode is cached. Wildcards let clients choose names, so that there has to be a bound."""

Report: TypeAlias = Callable[[ModelConfig, CallingMode], None]


class ToolCalling:
    """Keeps the calling modes of all deployments for the life of a runtime."""

    def __init__(self, report: Report, argument_bytes: int | None = None, learnt: ThinkingNotes | None = None) -> None:
        """`learnt`: what is known of the thinking of deployments, also from before."""
        self._report = report
        self._learnt = learnt or ThinkingNotes()
        self._argument_bytes = argument_bytes
        self._thinking: OrderedDict[tuple[str, str, str], ThinkingMemory] = OrderedDict()
        self._ways: OrderedDict[tuple[str, str, str], CallingDetector] = OrderedDict()

    def wrap(self, model: Model, entry: ModelConfig) -> Model:
        """Wrap a deployment so that it is asked for calls as its entry says."""
        key = _key(entry)
        memory = self._thinking.get(key)
        if memory is None:
            memory = self._thinking[key] = ThinkingMemory(_name(entry), entry.thinking, self._learnt.of(key))
            if len(self._thinking) > REMEMBERED:
                self._thinking.popitem(last=False)
        in_words = partial(
            _prompted_model,
            constrain=entry.constrain_calls,
            argument_bytes=self._argument_bytes,
            thinking=memory,
        )
        mode = _known(entry)
        if mode is None:
            return DetectingModel(model, self._way(entry), in_words)
        if mode.format == NATIVE:
            return model
        return in_words(model, mode.format)

    def choice(self, entry: ModelConfig) -> CallingMode | None:
        """Return the mode of a deployment; None while no probe was needed."""
        mode = _known(entry)
        way = self._ways.get(_key(entry))
        return mode or (None if way is None else way.choice)

    async def predict(self, entry: ModelConfig) -> tuple[CallingMode | None, str]:
        """Return the mode that will be chosen, None where a probe decides, and the text format without native calls."""
        return _known(entry) or await self._way(entry).predict(), _format(entry)

    def _way(self, entry: ModelConfig) -> CallingDetector:
        # A fallback is built again for each model that uses it, but it is one deployment.
        key = _key(entry)
        way = self._ways.get(key)
        if way is None:
            witness = partial(_litellms_word, entry)
            report = partial(self._report, entry)
            name = entry.litellm_params.get("custom_llm_provider") or _name(entry).partition("/")[0]
            provider = entry.provider or provider_named(str(name))
            is_local = False
            if provider is not None:
                is_local = provider.is_local
            way = self._ways[key] = CallingDetector(
                _name(entry),
                witness,
                report,
                format=_format(entry),
                may_be_probed=is_local,
            )
            if len(self._ways) > REMEMBERED:
                self._ways.popitem(last=False)
        return way


def _known(entry: ModelConfig) -> CallingMode | None:
    """Return the mode where no probe is needed."""
    if entry.tool_calling != AUTO:
        return CallingMode(entry.tool_calling, "config")
    if is_demo(entry):
        return CallingMode(NATIVE, "family")
    if entry.calls_natively is not None:
        return CallingMode(NATIVE if entry.calls_natively else _format(entry), "model_info")
    if resolve.lane_of(entry) == "responses":
        return CallingMode(NATIVE, "provider")
    return None


def _format(entry: ModelConfig) -> str:
    """Return the text format for a model without native calls: its family's own format, or one that can be enforced."""
    format = format_for(_name(entry))
    if not entry.constrain_calls:
        return format
    from callgate.text_calls.prompts import can_be_constrained

    if can_be_constrained(format):
        return format
    return CONSTRAINABLE


async def _litellms_word(entry: ModelConfig) -> bool | None:
    if litellm_model.is_loaded() or (entry.lane in {"translated", "litellm"} or resolve.known_endpoint(entry) is None):
        return await litellm_model.can_call_functions(entry)
    return None


def _prompted_model(
    model: Model,
    format: str,
    *,
    constrain: bool,
    argument_bytes: int | None,
    thinking: ThinkingMemory,
) -> Model:
    from callgate.text_calls.prompted import PromptedModel  # two dozen modules, for models without native calls

    return PromptedModel(
        model,
        format,
        constrain=constrain,
        argument_bytes=argument_bytes,
        thinking=thinking,
    )


def _name(entry: ModelConfig) -> str:
    return str(entry.litellm_params["model"])


def _key(entry: ModelConfig) -> tuple[str, str, str]:
    params = entry.litellm_params
    return entry.model_name, _name(entry), str(params.get("api_base") or params.get("base_url") or "")
