"""From the config's words to the rooms' values. The one place that reads `config.schema` and imports every room."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from pydantic import SecretStr

from callgate.auth.admission import Admission
from callgate.auth.key_store import KeyStore
from callgate.auth.keys import KeyEntry, Keyring, KeySource
from callgate.auth.limits import Allowance, Limiter, MemoryLimiter
from callgate.auth.origin_guard import OriginGuard, origin_guard
from callgate.auth.redis_limits import RedisLimiter
from callgate.config.schema import (
    ApprovalLists,
    CommandTool,
    Config,
    HttpTool,
    Key,
    OpenApiTool,
    PythonTool,
    ToolSection,
)
from callgate.config.schema import McpServer as McpSection
from callgate.config.schema import ModelEntry as ModelSection
from callgate.conversation.loop import Rules
from callgate.http.client import HttpClient
from callgate.http.interface import Client, Deadlines
from callgate.ledger.sqlite import SqliteLedger
from callgate.stores.memory import MemoryStore
from callgate.stores.redis import RedisStore
from callgate.stores.store import Store
from callgate.telemetry.tool_servers import ToolServers
from callgate.tools.addresses import AddressRules
from callgate.tools.approval_rules import NO_RULE, ApprovalRule
from callgate.tools.command import CommandLine
from callgate.tools.concurrency import ConcurrencyLimits
from callgate.tools.executor import Executor, Policy, Safety, Tool
from callgate.tools.mcp_descriptors import Pins
from callgate.tools.process import Paths, Processes, ProcessLimits
from callgate.tools.python_function import NotATool, functions_at, python_tool
from callgate.tools.registry import Registry
from callgate.tools.source_pool import SourcePool
from callgate.tools.threads import ThreadPool
from callgate.upstream.resolve import LaneError, ModelEntry, check
from callgate.upstream.retry import RetryPolicy

# What speaks HTTP or MCP for tools takes half a second and thirty megabytes to load, and is loaded where the config has such
# a tool.
if TYPE_CHECKING:
    from callgate.tools.http_client import Web
    from callgate.tools.mcp_http import HttpSpec
    from callgate.tools.mcp_process import StdioSpec
    from callgate.tools.mcp_server import ServerSpec
    from callgate.tools.openapi import OpenApiSource

POLICY_FIELDS = ("timeout", "concurrency", "max_result_bytes", "retries")


def keyring_of(config: Config, source: KeySource | None = None) -> Keyring:
    return Keyring(map(key_entry, config.keys), off=config.auth == "off", source=source)


def key_entry(key: Key) -> KeyEntry:
    allowance = Allowance(
        requests_per_minute=key.requests_per_minute,
        tokens_per_minute=key.tokens_per_minute,
        parallel=key.parallel,
        budget_per_day=key.budget_per_day,
        budget_per_month=key.budget_per_month,
    )
    return KeyEntry(
        key.name, key.hash, key.models, key.tools, approve=key.approve, admin=key.admin, allowance=allowance
    )


def admission_of(config: Config) -> Admission:
    return Admission(config.limits.concurrent_requests, config.limits.queue_seconds)


def key_store_of(config: Config) -> KeyStore | None:
    return None if config.data_dir is None else KeyStore(Path(config.data_dir))


def ledger_of(config: Config) -> SqliteLedger | None:
    """The ledger; to be asked for inside the event loop that will write to it."""
    return None if config.data_dir is None else SqliteLedger(Path(config.data_dir))


def pins_of(config: Config, servers: ToolServers) -> Pins:
    file = None if config.data_dir is None else Path(config.data_dir) / "tool_pins.json"
    return Pins(servers.changed, file)


def limiter_of(config: Config, ledger: SqliteLedger | None) -> Limiter:
    """Redis counts for all processes where there is one; else this process does, and the ledger remembers the money."""
    kept = config.store
    if kept.redis_url is not None:
        return RedisLimiter(kept.redis_url.get_secret_value(), down=config.limits.redis_down, prefix=kept.prefix)
    if ledger is None:
        return MemoryLimiter()
    return MemoryLimiter(ledger.spent, ledger.remember_spending)


def concurrency_of(config: Config) -> dict[str, int]:
    """How many requests may be under way with each model that has a limit. Entries that share a name add up."""
    found: dict[str, list[int | None]] = {}
    for section in config.model_list:
        found.setdefault(section.model_name, []).append(section.concurrency)
    return {name: sum(filter(None, places)) for name, places in found.items() if None not in places}


def origin_guard_of(config: Config, keyring: Keyring) -> OriginGuard:
    server = config.server
    return origin_guard(
        server.host, keyless=keyring.open, public_url=server.public_url, cors_origins=server.cors_origins
    )


def rules_of(config: Config) -> Rules:
    return Rules(
        max_iterations=config.loop.max_iterations,
        max_failed_turns=config.loop.max_failed_turns,
        max_repeats=config.loop.max_repeats,
        max_tokens=config.limits.request_tokens,
        max_parallel_calls=config.loop.max_parallel_calls,
        max_calls_per_turn=config.limits.calls_per_turn,
        argument_bytes=config.limits.argument_bytes,
    )


def client_of(config: Config) -> Client:
    """What carries requests to models. aiohttp is loaded only where it is wanted."""
    if config.upstream.client == "lean":
        return HttpClient()
    from callgate.http.aiohttp_client import AiohttpClient

    return AiohttpClient(proxies_from_env=True)


def store_of(config: Config) -> Store:
    kept = config.store
    if kept.redis_url is not None:
        try:
            return RedisStore(kept.redis_url.get_secret_value(), kept.prefix)
        except ModuleNotFoundError:
            why = "Redis needs a package that is not installed: pip install 'callgate[redis]'"
            raise BadEntry(("store", "redis_url"), None, why) from None
        except ValueError:  # its text repeats the address, which may hold a password
            raise BadEntry(("store", "redis_url"), None, "is no address that Redis can be reached at") from None
    return MemoryStore(kept.entries, kept.bytes)


def threads_of(config: Config) -> ThreadPool:
    """The threads of all tools that are Python functions."""
    return ThreadPool(config.limits.tool_threads)


def processes_of(config: Config) -> Processes:
    """The places for commands, of all tools together."""
    return Processes(config.limits.child_processes)


def retry_policy_of(config: Config) -> RetryPolicy:
    return RetryPolicy(tries=config.upstream.retries + 1)


def model_entries(config: Config) -> list[ModelEntry]:
    """The models. One that could never be asked is the operator's mistake and fails the start."""
    entries = [model_entry(section, config) for section in config.model_list]
    for index, entry in enumerate(entries):
        try:
            check(entry)
        except LaneError as error:
            raise BadModel(("model_list", index), entry.model_name, str(error)) from error
    return entries


def model_entry(section: ModelSection, config: Config) -> ModelEntry:
    patience = config.upstream
    return ModelEntry(
        model_name=section.model_name,
        litellm_params=section.litellm_params.reveal(),
        tools=section.tools,
        fallbacks=section.fallbacks,
        tool_calling=section.tool_calling,
        calls_natively=_yes_or_no(section.model_info.get("supports_function_calling")),
        constrain_calls=section.constrain_calls,
        lane=section.lane,
        schema_dialect=section.schema_dialect,
        sees_images=_yes_or_no(section.model_info.get("supports_vision")),
        format_with_tools=section.response_format_with_tools,
        answer_bytes=config.limits.answer_bytes,
        deadlines=Deadlines(
            connect=patience.connect_seconds,
            first_byte=patience.first_byte_seconds,
            idle=section.stream_timeout or patience.idle_seconds,
            total=section.timeout or patience.total_seconds,
        ),
    )


def _yes_or_no(said: Any) -> bool | None:
    return said if isinstance(said, bool) else None


class BadEntry(ValueError):
    """An entry of the config from which nothing can be made, with its place and the reason. For the operator."""

    def __init__(self, path: tuple[str | int, ...], name: str | None, reason: str) -> None:
        super().__init__(f"{'.'.join(map(str, path))}{f' ({name})' if name else ''}: {reason}")
        self.path = path
        self.reason = reason


class BadTool(BadEntry):
    """An entry of `tools`."""


class BadModel(BadEntry):
    """An entry of `model_list`."""


def registry_of(
    config: Config,
    web: "Web | Callable[[], Web]",
    threads: ThreadPool,
    processes: Processes,
    *,
    pins: Pins | None = None,
    pool: SourcePool | None = None,
    limits: ConcurrencyLimits | None = None,
) -> Registry:
    """The tools of the house. A tool that cannot be built is the operator's mistake and fails the start.

    `pins` remembers what servers' tools looked like, `pool` has the sources that are open already, and `limits` are those
    that calls may be in already.
    """
    registry = Registry(approval=_approval_rule(config.require_approval), pool=pool, limits=limits)
    defaults = Policy(max_result_bytes=config.limits.tool_result_bytes)
    for index, entry in enumerate(config.tools):
        approval = _approval_rule(entry.require_approval)
        try:
            if isinstance(entry, OpenApiTool):
                source = _open_api(entry, defaults)
                made_from = (_fingerprint(entry), defaults, _stamp_of(entry.document))
                registry.add_source(source, concurrency=entry.concurrency, approval=approval, identity=made_from)
                continue
            for tool in _tools(entry, defaults, web, threads, processes):
                registry.add(tool, approval=approval)
                registry.limits.limit_tool(tool.name, tool.policy.concurrency)
        except (ValueError, NotATool) as error:
            raise BadTool(("tools", index), entry.name, str(error)) from error
    for name, server in config.mcp_servers.items():
        if not server.disabled:
            from callgate.tools.mcp_server import McpSource

            registry.add_source(
                McpSource(_server_spec(name, server, defaults), _made(web), pins),
                concurrency=server.concurrency,
                approval=_approval_rule(server.require_approval),
                identity=(name, _fingerprint(server), defaults),
            )
    return registry


def _made(web: "Web | Callable[[], Web]") -> "Web":
    return web() if callable(web) else web


def import_tools(config: Config) -> None:
    """Import the modules that the config names, so that building the registry does not wait for them."""
    for index, entry in enumerate(config.tools):
        if isinstance(entry, PythonTool):
            try:
                functions_at(entry.function or entry.module or "")
            except (ValueError, NotATool) as error:
                raise BadTool(("tools", index), entry.name, str(error)) from error


def _server_spec(name: str, section: McpSection, defaults: Policy) -> "ServerSpec":
    from callgate.tools.mcp_server import ServerSpec, legal_prefix

    said = _policy(section)
    said.pop("concurrency", None)  # of the server, all its tools together
    return ServerSpec(
        name=name,
        transport=_transport(section),
        prefix=legal_prefix(name) if section.prefix is None else section.prefix,
        allowed_tools=section.allowed_tools,
        policy=defaults,
        overrides=said,
    )


def _transport(section: McpSection) -> "StdioSpec | HttpSpec":
    from callgate.tools.mcp_http import HttpSpec, rules_for
    from callgate.tools.mcp_process import StdioSpec

    if section.command is not None:
        env = _in_clear(section.env)
        return StdioSpec(section.command, section.args, env, section.cwd)
    assert section.url is not None, "the schema asks for one or the other"
    return HttpSpec(
        section.url,
        _in_clear(section.headers),
        sse=None if section.type is None else section.type == "sse",
        rules=rules_for(section.url, allow_private=section.allow_private),
    )


def _tools(
    entry: PythonTool | HttpTool | CommandTool,
    defaults: Policy,
    web: "Web | Callable[[], Web]",
    threads: ThreadPool,
    processes: Processes,
) -> Iterator[Tool]:
    match entry:
        case PythonTool():
            for function in functions_at(entry.function or entry.module or ""):
                yield python_tool(
                    function,
                    threads,
                    name=entry.name,
                    description=entry.description,
                    defaults=defaults,
                    overrides=_policy(entry),
                )
        case HttpTool():
            yield _http_tool(entry, defaults, _made(web))
        case CommandTool():
            yield _command_tool(entry, defaults, processes)
        case _:
            assert_never(entry)


def _http_tool(entry: HttpTool, defaults: Policy, web: "Web") -> Tool:
    from callgate.tools.http_endpoint import HttpEndpoint

    executor = HttpEndpoint(
        web,
        method=entry.method,
        url=entry.url,
        headers=_in_clear(entry.headers),
        query=entry.query,
        body=entry.body,
        rules=AddressRules.of(allow_private=entry.allow_private, allow=entry.allow_hosts),
    )
    return _tool(entry, executor, defaults, entry.url)


def _open_api(entry: OpenApiTool, defaults: Policy) -> "OpenApiSource":
    from callgate.tools.openapi import Api, OpenApiSource, OperationFilter

    api = Api(
        base_url=entry.base_url,
        auth=_in_clear(entry.auth),
        headers=_in_clear(entry.headers),
        selection=OperationFilter(entry.include, entry.exclude),
        rules=AddressRules.of(allow_private=entry.allow_private, allow=entry.allow_hosts),
        policy=replace(defaults, **{**_policy(entry), "concurrency": None}),  # of the API, all its tools together
        safety=None if entry.safety is None else Safety(entry.safety),
    )
    return OpenApiSource(entry.name, api, entry.document)


def _command_tool(entry: CommandTool, defaults: Policy, processes: Processes) -> Tool:
    limits, paths = entry.limits, entry.paths
    executor = CommandLine(
        processes,
        argv=entry.argv,
        parameters=entry.parameters,
        cwd=entry.cwd,
        stdin=entry.stdin,
        env=_in_clear(entry.env),
        allow_options=entry.allow_options,
        ok_codes=entry.ok_codes,
        limits=ProcessLimits(**{name: getattr(limits, name) for name in type(limits).model_fields}),
        paths=None if paths is None else Paths(read=paths.read, write=paths.write),
    )
    program = entry.argv[0]
    return _tool(entry, executor, defaults, program if isinstance(program, str) else " ".join(program))


def _tool(entry: HttpTool | CommandTool, executor: Executor, defaults: Policy, source: str) -> Tool:
    return Tool(
        name=entry.name,
        description=entry.description,
        parameters=entry.parameters,
        executor=executor,
        policy=replace(defaults, **_policy(entry)),
        kind=entry.kind,
        source=source,
    )


def _in_clear(secrets: Mapping[str, SecretStr]) -> dict[str, str]:
    return {name: secret.get_secret_value() for name, secret in secrets.items()}


_NOT_OF_THE_SOURCE = {"require_approval", "concurrency", "disabled"}
"""Settings of an entry that are kept to outside its source, so that changing them does not restart it."""


def _fingerprint(entry: ToolSection) -> str:
    """Says all that a source is made from, secrets included, and tells none of it."""
    said = entry.model_dump(exclude=_NOT_OF_THE_SOURCE)
    return sha256(repr(_revealed(said)).encode("utf-8", "surrogatepass")).hexdigest()


def _revealed(value: Any) -> Any:
    match value:
        case SecretStr():
            return value.get_secret_value()
        case Mapping():
            return sorted((str(name), _revealed(inner)) for name, inner in value.items())
        case list() | tuple():
            return [_revealed(inner) for inner in value]
        case _:
            return value


def _stamp_of(place: str) -> tuple[int, int] | None:
    """Tells one state of a file from another; None for an address."""
    try:
        found = Path(place).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _approval_rule(lists: ApprovalLists | None) -> ApprovalRule:
    return NO_RULE if lists is None else ApprovalRule(lists.always, lists.never)


def _policy(entry: ToolSection) -> dict[str, Any]:
    """What an entry says of its policy; where it is silent the tool's own word or the default counts."""
    said = {name: value for name in POLICY_FIELDS if (value := getattr(entry, name)) is not None}
    if entry.safety is not None:
        said["safety"] = Safety(entry.safety)
    return said
