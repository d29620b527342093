"""Builds the hooks of the config."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from callgate.config.entry_errors import BadEntry, raise_all
from callgate.config.schema.whole import Config
from callgate.conversation.events import GuardrailJudged
from callgate.guardrails.guardrails import Guardrails
from callgate.guardrails.hook import Guardrail, Scope
from callgate.guardrails.linear import BadExpression, LinearExpression
from callgate.guardrails.patterns import PatternSearch
from callgate.guardrails.settings import HookEntry, PatternsHook, PythonHook, SizesHook
from callgate.guardrails.shapes import TextShape
from callgate.guardrails.sizes import Sizes
from callgate.guardrails.verdicts import Check
from callgate.tools.kinds.python.threads import ThreadPool

if TYPE_CHECKING:  # imported with the first webhook
    from callgate.tools.kinds.http.client import Web


def guardrails_of(
    config: Config, web: "Callable[[], Web]", threads: ThreadPool, tell: Callable[[GuardrailJudged], None]
) -> Guardrails:
    """Build all hooks. Raises `BadEntry` for what is none."""
    hooks: list[Guardrail] = []
    errors: list[BadEntry] = []
    for index, entry in enumerate(config.guardrails):
        try:
            hooks.append(_hook(entry, web, threads))
        except ValueError as error:
            errors.append(BadEntry(("guardrails", index), entry.name, str(error)))
            errors[-1].__cause__ = error
    raise_all(errors)
    return Guardrails(hooks, tell)


def _hook(entry: HookEntry, web: "Callable[[], Web]", threads: ThreadPool) -> Guardrail:
    return Guardrail(
        name=entry.name,
        points=frozenset(entry.at),
        check=_check(entry, web, threads),
        scope=Scope(models=entry.models, keys=entry.keys, tools=entry.tools),
        fails_open=entry.on_error == "open",
        seconds=entry.timeout_seconds,
        hold=entry.hold_characters,
    )


def _check(entry: HookEntry, web: "Callable[[], Web]", threads: ThreadPool) -> Check:
    match entry:
        case PatternsHook():
            patterns = PatternSearch(entry.find, [*_own(entry)], blocks=entry.then == "block")
            if "answer" in entry.at and patterns.window() > entry.hold_characters:
                raise ValueError(
                    f"`hold_characters` should be {patterns.window()} or more, to know what it looks for whole"
                )
            return patterns
        case SizesHook():
            return Sizes(entry.max_bytes, entry.max_tokens)
        case PythonHook():
            from callgate.guardrails.functions import function_check

            return function_check(entry.function, threads)
        case _:
            from callgate.guardrails.webhook import Webhook
            from callgate.tools.kinds.http.addresses import AddressRules

            rules = AddressRules.of(allow_private=entry.allow_private, allow=entry.allow_hosts)
            key = None
            if entry.api_key is not None:
                key = entry.api_key.get_secret_value()
            return Webhook(web(), entry.url, rules, key, entry.params)


def _own(entry: PatternsHook) -> Iterator[TextShape]:
    width = entry.hold_characters - 1
    for name, expression in entry.own.items():
        try:
            yield TextShape(name, LinearExpression(expression, width), width)
        except BadExpression as error:
            raise ValueError(f"own.{name}: {error}") from error
