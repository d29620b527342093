"""Finds patterns of the config that match nothing: an error where that is certain, else a warning once it is known."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from callgate.callers.caller import ANONYMOUS, OF_PROVIDERS
from callgate.calls.selection import OF_REQUESTS
from callgate.config.entry_errors import BadEntry, raise_all
from callgate.config.schema.whole import Config
from callgate.runtime.approvers import may_have_more_keys, nobody_may_approve
from callgate.runtime.stand_ins import LEFT_TO_PROVIDER
from callgate.tools.approvals.rules import ApprovalRule
from callgate.tools.approvals.settings import ApprovalLists
from callgate.tools.kinds.openapi.settings import OpenApiTool
from callgate.tools.registry import CONFIG_ADDRESS, Registry
from callgate.tools.tool_filter import Unmatched, glob_matches, is_glob, names_exactly, nearest, unmatched
from callgate.tools.tool_names import CONFIG

Path = tuple[str | int, ...]


class PatternProblem(msgspec.Struct, frozen=True):
    """A pattern that matches nothing, and its place in the config."""

    path: Path
    entry: str | None
    unmatched: Unmatched
    index: int | None = None
    """Its index, if it is in a list."""

    @property
    def place(self) -> Path:
        if self.index is None:
            return self.path
        return (*self.path, self.index)

    def __str__(self) -> str:
        place = ".".join(map(str, self.path))
        if self.entry:
            place += f" ({self.entry})"
        return f"{place}: {self.unmatched}"


def check_patterns(config: Config, registry: Registry) -> None:
    """Raise `BadEntry` for all names that cannot be tools, also of sources that are not open yet, and all that are no models
    or keys."""
    wrong = [
        BadEntry(path, entry, str(unmatched_pattern))
        for path, entry, patterns in _places(config)
        for pattern in of_ours(patterns, path)
        if (unmatched_pattern := _certainly_wrong(pattern, registry)) is not None
    ]
    raise_all([*wrong, *_wrong_names(config)])


def of_ours(patterns: Iterable[str], path: Path) -> list[str]:
    """Leave out the patterns for tools that providers run, which no list has, and those in the rules of approvals for servers that
    requests name by their addresses."""
    others = (OF_PROVIDERS, OF_REQUESTS) if path == ("require_approval",) else (OF_PROVIDERS,)
    return [pattern for pattern in patterns if not pattern.startswith(others)]


def unknown_models(config: Config, patterns: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the patterns that match no model, with their indexes. With a wildcard in `model_list` any name may be one."""
    names = list(dict.fromkeys(entry.model_name for entry in config.model_list))
    if any(map(is_glob, names)):
        return
    for at, pattern in enumerate(patterns):
        if not any(glob_matches(pattern, name) for name in names):
            near = nearest(pattern, names)
            if near:
                hint = f"did you mean {near!r}?"
            else:
                hint = f"there are {', '.join(names)}"
            yield at, f"{pattern[:64]!a} names no model; {hint}"


def _wrong_names(config: Config) -> Iterator[BadEntry]:
    for index, key in enumerate(config.keys):
        for at, why in unknown_models(config, key.models):
            yield BadEntry(("keys", index, "models", at), key.name, why)
    for group, rights in config.groups().items():
        for at, why in unknown_models(config, rights.models):
            yield BadEntry(("auth", "oidc", "groups", group, "models", at), group, why)
    for index, hook in enumerate(config.guardrails):
        for at, why in unknown_models(config, hook.models or ()):
            yield BadEntry(("guardrails", index, "models", at), hook.name, why)
    for index, less in enumerate(config.record.less):
        for at, why in unknown_models(config, less.models):
            yield BadEntry(("record", "less", index, "models", at), None, why)
        for at, pattern in () if may_have_more_keys(config) else unknown_keys(less.keys, config):
            yield BadEntry(("record", "less", index, "keys", at), None, f"{pattern[:64]!a} names no key of the config")


def unknown_keys(patterns: Sequence[str], config: Config, others: Sequence[str] = ()) -> Iterator[tuple[int, str]]:
    """Yield the patterns that match no key, with their indexes; `others` are the names of keys that are not in the config."""
    names = [ANONYMOUS.name, *(key.name for key in config.keys), *others]
    for at, pattern in enumerate(patterns):
        if config.auth.oidc is not None and "@" in pattern:
            continue  # of people, of whom there is no list
        if not any(glob_matches(pattern, name) for name in names):
            yield at, pattern


def pattern_problems(config: Config, registry: Registry) -> list[PatternProblem]:
    """Return the patterns that match no tool. This is certain only when all sources are open."""
    tools = registry.tools()
    problems: list[PatternProblem] = []
    for path, entry, patterns in _places(config):
        for missing in unmatched(of_ours(patterns, path), tools):
            if path[-1] == "tools":
                index = patterns.index(missing.pattern)
            else:
                index = None
            problems.append(PatternProblem(path, entry, missing, index))
    for pattern in config.require_approval.never:
        matching = [tool for tool in tools if names_exactly(pattern, tool)]
        if matching and not any(registry.may_free(tool.source, pattern) for tool in matching):
            near = f"{matching[0].source}/{pattern}"
            problems.append(PatternProblem(("require_approval", "never"), None, Unmatched(pattern, near)))
    for index, hook in enumerate(config.guardrails):  # a client's tool may have any name
        for missing in unmatched(hook.tools or (), tools):
            problems.append(PatternProblem(("guardrails", index, "tools"), hook.name, missing))
    for path, source, patterns in _places_of_sources(config):
        tools_of_source = [tool.at_source() for tool in tools if tool.source == source]
        if tools_of_source:
            problems += [PatternProblem(path, None, missing) for missing in unmatched(patterns, tools_of_source)]
    return problems


def tools_offered_to_no_model(config: Config) -> tuple[Path, str] | None:
    """Return the place of tools of which no model is offered one, and what to do."""
    if any(entry.tools for entry in config.model_list):
        return None
    advice = 'write `tools: ["*"]` into an entry of `model_list`'
    if config.tools:
        return ("tools",), f"no model is offered one of them: {advice}"
    if config.mcp_servers:
        return (("mcp_servers",), f"no model is offered one of their tools: {advice}")
    return None


def approvals_by_nobody(config: Config, registry: Registry) -> tuple[Path, str] | None:
    """Return the place of a setting because of which nobody may approve calls that need it, and what to do."""
    some_wait = bool(config.require_approval.always) or any(
        section.require_approval is not None and section.require_approval.always
        for section in (*config.tools, *config.mcp_servers.values())
    )
    if not some_wait and not any(tool.tool.policy.require_approval for tool in registry.tools()):
        return None
    if not nobody_may_approve(config):
        return None
    if config.auth.mode == "keys" and config.keys:
        return ("keys",), "none has `approve: on`: calls that need approval are refused"
    if config.auth.oidc is not None:
        return ("auth", "oidc", "groups"), "none has `approve: on`: calls that need approval are refused"
    why = "nobody may approve calls, because everybody is let in without a key: those that need approval are refused"
    return ("auth",), f"{why}; add `keys`, one with `approve: on`, or say who may in `approvals.keyless`"


def unruled_tools(registry: Registry) -> tuple[Path, str] | None:
    """Return what to write where tools of the config are destructive, and nothing says whether anybody has to approve their calls."""
    names = [tool.name for tool in registry.unruled() if tool.source == CONFIG]
    if not names:
        return None
    return ("tools",), (
        f"destructive, so that each call waits for approval: {', '.join(names)}; write `require_approval: never` into the entry of one"
        " that is to run without, or `always` where this is meant"
    )


def _places(config: Config) -> Iterator[tuple[Path, str | None, tuple[str, ...]]]:
    """Yield every place of the config with patterns for tools of all sources."""
    yield ("require_approval",), None, _names(config.require_approval)
    for index, model in enumerate(config.model_list):
        yield ("model_list", index, "tools"), model.model_name, model.tools
        yield from _stand_ins(("model_list", index, "hosted_tools"), model.model_name, model.hosted_tools)
    for index, key in enumerate(config.keys):
        yield ("keys", index, "tools"), key.name, key.tools
    for group, rights in config.groups().items():
        yield ("auth", "oidc", "groups", group, "tools"), group, rights.tools
    yield from _stand_ins(("hosted_tools",), None, config.hosted_tools)


def _stand_ins(
    path: Path, entry: str | None, named: Mapping[str, str]
) -> Iterator[tuple[Path, str | None, tuple[str, ...]]]:
    for kind, name in named.items():
        if name != LEFT_TO_PROVIDER:
            yield (*path, kind), entry, (name,)


def _places_of_sources(config: Config) -> Iterator[tuple[Path, str, tuple[str, ...]]]:
    """Yield the places with patterns for the tools of one source, by their names there."""
    for name, server in config.mcp_servers.items():
        yield ("mcp_servers", name, "require_approval"), name, _names(server.require_approval)
        yield ("mcp_servers", name, "allowed_tools"), name, server.allowed_tools or ()
    for index, tool in enumerate(config.tools):
        if isinstance(tool, OpenApiTool):
            yield ("tools", index, "require_approval"), tool.name, _names(tool.require_approval)


def _names(lists: ApprovalLists | None) -> tuple[str, ...]:
    if lists is None:
        return ()
    return ApprovalRule(lists.always, lists.never).name_patterns()


def _certainly_wrong(pattern: str, registry: Registry) -> Unmatched | None:
    source, slash, _ = pattern.rpartition("/")
    sources = (*registry.source_names(), CONFIG_ADDRESS)
    if (
        slash
        and not is_glob(source)
        and not any(f"{pattern}/".startswith(f"{source_name}/") for source_name in sources)
    ):
        near = nearest(source, sources)
        return Unmatched(pattern, f"{near}/{pattern.rpartition('/')[2]}" if near else "")
    if is_glob(pattern) or registry.source_names():
        return None
    return next(iter(unmatched((pattern,), registry.tools())), None)
