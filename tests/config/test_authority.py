"""What counts as a config that allows more."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from callgate.access.settings import ENDS
from callgate.config.authority import SEEN_WHEN_BUILT, guard_of, widened_since, widenings, with_removed, written
from callgate.config.schema.guards import (
    ADMITS,
    ARGUMENTS,
    CEILING,
    EXCLUDES,
    MAY_BE_PRIVATE,
    SAFETY,
    WAITS,
    Guard,
)
from callgate.config.schema.values import Section
from callgate.config.schema.whole import Config

DEMO = {"model_name": "demo", "litellm_params": {"model": "demo/demo"}}
HASH = "sha256:" + "0" * 64
UNGUARDED = {
    "ApprovalLists": "always never",  # compared together, by the guard of the setting that holds them
    "Approvals": "timeout_seconds max_waiting webhook",
    "Compaction": "model prompt",
    "ContextSection": "clear_results_above tokens",
    "ClientMcpSection": "result_bytes timeout",
    "CommandTool": "kind name description argv stdin cwd env ok_codes limits",
    "Config": "version server keys model_list providers ledger runs pools tools mcp_servers mcp_config mcp approvals loop"
    " limits upstream parsers hosted_tools responses compaction store record traces reload logging",
    "FinishReasons": "content_filter",
    "HookSection": "name at on_error timeout_seconds hold_characters models keys tools",  # compared together, as the next four
    "PatternsHook": "kind find own then",
    "PythonHook": "kind function",
    "SizesHook": "kind max_bytes max_tokens",
    "WebhookHook": "kind url api_key params",
    "HttpTool": "kind name description method",
    "AuthSection": "mode oidc",  # by the guard of `auth`; an issuer that is added is like a key that is added
    "Claims": "name",
    "Group": "per_member",
    "Key": "name hash old_hash",
    "Oidc": "claims client_id scopes",
    "Rights": "tool_search client_mcp events usage responses",
    "LedgerSection": "url namespace",
    "Limits": "body_bytes json_depth messages argument_bytes calls_per_turn answer_bytes tool_threads child_processes"
    " request_seconds request_tokens tool_result_bytes concurrent_requests queue_seconds",
    "Logging": "level format",
    "Loop": "max_iterations max_failed_turns max_repeats max_parallel_calls diagnostics",
    "Parsers": "processes seconds memory_bytes",
    "McpServing": "tool_search",
    "McpServer": "type command args env cwd url oauth prefix",
    "ModelEntry": "model_name litellm_params model_info tools tool_search hosted_tools fallbacks tool_calling thinking constrain_calls lane"
    " events usage finish_reasons concurrency response_format_with_tools schema_dialect timeout stream_timeout responses context",
    "OAuthSection": "grant client_id client_secret private_key redirect client_name",
    "OpenApiTool": "kind name document base_url auth prefix rename",
    "PlacedTool": "run_on",
    "Pool": "queue_seconds fresh_process",
    "ProviderSection": "base_url api_key wire headers body developer_role stream_options reasoning_field schema_dialect open_models",
    "PythonTool": "kind function module name description",
    "Record": "runs passed content_bytes keep wire_keep",
    "RecordKeep": "days bytes",
    "RecordLess": "keys models keep",
    "Reload": "watch",
    "Responses": "tools_shown",
    "ResponsesOfOne": "tools_shown",
    "RunsSection": "dead_after_seconds",
    "SearchThreshold": "tokens share",
    "Server": "host port public_url drain_seconds connections key_share header_bytes header_seconds body_seconds idle_seconds"
    " first_chunk_seconds heartbeat_seconds workers page",
    "Store": "redis_url prefix conversation_seconds conversation_bytes answer_seconds answer_bytes entries bytes response_bytes",
    "ToolSearchSection": "mode over pin way result_tokens",  # which tools are shown, and not which may be called
    "ToolSection": "timeout concurrency max_result_bytes in_order select result cache_seconds price retries",
    "Traces": "endpoint headers sample follow_parent timeout_seconds compression service_name resource latest_names",
    "Upstream": "connect_seconds first_byte_seconds idle_seconds total_seconds retries cooldown_seconds"
    " retry_wait_seconds ca_file client_certificate client_key",
    "WebhookSection": "url secret",
    "WebFetchTool": "kind name description",
    "WebSearchTool": "kind name description engine url api_key max_results",
    "WireKeep": "days",
}
"""Settings that guard nothing: what no change of can let anybody do more."""


def sections(of: type[Section] = Section) -> Iterator[type[Section]]:
    for section in of.__subclasses__():
        yield section
        yield from sections(section)


@pytest.mark.parametrize("section", sorted(set(sections()), key=str), ids=str)
def test_every_setting_says_what_it_guards_or_is_named_here(section: type[Section]) -> None:
    own = [field for field in section.model_fields if field in section.__annotations__]
    unguarded = {field for field in own if guard_of(section, field) is None}
    assert unguarded == set(UNGUARDED.get(section.__name__, "").split()), (
        "give the setting a guard of `callgate.config.schema.guards`, or add it to UNGUARDED if it guards nothing"
    )


def config(**more: Any) -> Config:
    return Config.model_validate({"model_list": [DEMO], **more})


def names(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return [found.name for found in widenings(config(**old), config(**new))]


def key(**more: Any) -> dict[str, Any]:
    return {"keys": [{"name": "ann", "hash": HASH, **more}]}


def server(**more: Any) -> dict[str, Any]:
    return {"mcp_servers": {"files": {"command": "x", **more}}}


def remote(**more: Any) -> dict[str, Any]:
    return {"mcp_servers": {"notes": {"url": "https://x.example", "oauth": more}}}


def forwarding(headers: dict[str, str]) -> dict[str, Any]:
    entry = {"url": "https://x.example", "oauth": {"grant": "none", "per": "user"}, "forward_headers": headers}
    return {"mcp_servers": {"crm": entry}}


def http(**more: Any) -> dict[str, Any]:
    return {"tools": [{"kind": "http", "name": "rows", "description": "d", "url": "https://x.example", **more}]}


def oidc(**more: Any) -> dict[str, Any]:
    return {
        "auth": {
            "oidc": {"issuer": "https://login.example", "audience": "callgate", "groups": {"dev": {}}} | more,
        }
    }


def groups(**groups: dict[str, Any]) -> dict[str, Any]:
    return oidc(groups=groups)


def command(**more: Any) -> dict[str, Any]:
    return {"tools": [{"kind": "command", "name": "ls", "description": "d", "argv": ["ls"], **more}]}


def hooks(**more: Any) -> dict[str, Any]:
    return {
        "guardrails": [
            {"name": "h", "kind": "patterns", "at": ["request", "answer"], "find": ["cards", "emails"], **more}
        ]
    }


@pytest.mark.parametrize(
    ("narrow", "wide", "name"),
    [
        ({"auth": "keys"}, {"auth": "off"}, "auth"),
        (key(models=["demo"]), key(), "keys.ann.models"),
        (key(tools=[]), key(tools=["a"]), "keys.ann.tools"),
        (key(), key(approve=True), "keys.ann.approve"),
        (key(), key(client_mcp=True), "keys.ann.client_mcp.mode"),
        (key(client_mcp="off"), key(client_mcp={"hosts": ["a.example"]}), "keys.ann.client_mcp.mode"),
        (key(client_mcp={"hosts": ["a.example"]}), key(client_mcp="on"), "keys.ann.client_mcp.hosts"),
        (
            key(client_mcp={"hosts": ["a.example"]}),
            key(client_mcp={"hosts": ["*.example"]}),
            "keys.ann.client_mcp.hosts",
        ),
        (key(client_mcp="on"), key(client_mcp={"max_servers": 5}), "keys.ann.client_mcp.max_servers"),
        (key(client_mcp="on"), key(client_mcp={"tools": 65}), "keys.ann.client_mcp.tools"),
        (key(client_mcp="on"), key(client_mcp={"trust_annotations": True}), "keys.ann.client_mcp.trust_annotations"),
        (key(), key(admin=True), "keys.ann.admin"),
        (key(see="own"), key(see="all"), "keys.ann.see"),
        (key(requests_per_minute=5), key(requests_per_minute=6), "keys.ann.requests_per_minute"),
        (key(tokens_per_minute=5), key(), "keys.ann.tokens_per_minute"),
        (key(parallel=1), key(parallel=2), "keys.ann.parallel"),
        (key(budget_per_day=1), key(), "keys.ann.budget_per_day"),
        (key(budget_per_month=1), key(budget_per_month=2), "keys.ann.budget_per_month"),
        (key(expires="2027-01-01"), key(), "keys.ann.expires"),
        ({"data_dir": "data"}, {}, "data_dir"),
        (hooks(), {}, "guardrails"),
        (hooks(), hooks(at=["answer"]), "guardrails"),
        (hooks(), hooks(find=["emails"]), "guardrails"),
        (hooks(), hooks(on_error="open"), "guardrails"),
        (hooks(), hooks(models=["demo"]), "guardrails"),
        (hooks(keys=["a", "b"]), hooks(keys=["a"]), "guardrails"),
        (hooks(then="block"), hooks(), "guardrails"),
        ({"require_approval": "always"}, {}, "require_approval"),
        ({}, {"require_approval": {"never": ["x"]}}, "require_approval"),
        (server(require_approval="always"), server(), "mcp_servers.files.require_approval"),
        (server(), server(require_approval={"never": ["x"]}), "mcp_servers.files.require_approval"),
        (server(safety="destructive"), server(safety="write"), "mcp_servers.files.safety"),
        (server(safety="write"), server(), "mcp_servers.files.safety"),
        (server(), server(safety="read_only"), "mcp_servers.files.safety"),
        (server(disabled=True), server(), "mcp_servers.files.disabled"),
        (remote(per="user"), remote(per="key"), "mcp_servers.notes.oauth.per"),
        (remote(per="key"), remote(), "mcp_servers.notes.oauth.per"),
        (remote(issuer="https://a.example"), remote(), "mcp_servers.notes.oauth.issuer"),
        (remote(scopes=["read"]), remote(), "mcp_servers.notes.oauth.scopes"),
        (remote(), remote(legacy=True), "mcp_servers.notes.oauth.legacy"),
        (forwarding({}), forwarding({"X-User": "x-user"}), "mcp_servers.crm.forward_headers"),
        (server(allowed_tools=["a"]), server(), "mcp_servers.files.allowed_tools"),
        (server(), server(allow_private=True), "mcp_servers.files.allow_private"),
        (http(), http(allow_private=True), "tools.rows.allow_private"),
        (http(allow_hosts=["a"]), http(allow_hosts=["a", "b"]), "tools.rows.allow_hosts"),
        (http(), http(multi_segment=True), "tools.rows.multi_segment"),
        (http(query={"tenant": "a"}), http(), "tools.rows.query"),
        (http(query={"tenant": "a"}), http(query={"tenant": "{x}"}), "tools.rows.query"),
        (http(url="https://x.example/?role=a"), http(url="https://x.example/"), "tools.rows.url"),
        (http(url="https://x.example/?role=a"), http(url="https://x.example/?role={x}"), "tools.rows.url"),
        (http(headers={"X-Tenant": "a"}), http(), "tools.rows.headers"),
        (http(body={"a": {"tenant": "a", "q": "{q}"}}), http(body={"a": {"q": "{q}"}}), "tools.rows.body"),
        (http(body={"a": [{"tenant": 1}]}), http(body={"a": [{"tenant": "{x}"}]}), "tools.rows.body"),
        (
            http(parameters={"type": "object"}),
            http(parameters={"type": "object", "additionalProperties": True}),
            "tools.rows.parameters",
        ),
        (key(offer="with_client_tools"), key(), "keys.ann.offer"),
        ({"model_list": [{**DEMO, "offer": "with_client_tools"}]}, {}, "model_list.demo.offer"),
        (command(paths={"read": ["a"]}), command(), "tools.ls.paths"),
        (command(paths={"read": ["a"]}), command(paths={"read": ["a", "b"]}), "tools.ls.paths.read"),
        (command(), command(allow_options=True), "tools.ls.allow_options"),
        (command(), command(pid_namespace=False), "tools.ls.pid_namespace"),
        (command(limits={"processes": 1}), command(), "tools.ls.limits.processes"),
        (oidc(), oidc(audience=["callgate", "other"]), "auth.oidc.audience"),
        (oidc(algorithms=["ES256"]), oidc(algorithms=["ES256", "RS256"]), "auth.oidc.algorithms"),
        (oidc(jwks="https://a.example/keys"), oidc(), "auth.oidc.jwks"),
        (oidc(clock_skew=0), oidc(), "auth.oidc.clock_skew"),
        (oidc(), {"auth": "off"}, "auth"),
        (groups(dev={"tools": []}), groups(dev={}), "auth.oidc.groups.dev.tools"),
        (groups(dev={}), groups(dev={"approve": True}), "auth.oidc.groups.dev.approve"),
        (groups(dev={}), groups(dev={"admin": True}), "auth.oidc.groups.dev.admin"),
        (groups(dev={}), groups(dev={"see": "all"}), "auth.oidc.groups.dev.see"),
        (groups(dev={"budget_per_day": 1}), groups(dev={}), "auth.oidc.groups.dev.budget_per_day"),
        (
            groups(dev={"per_member": {"parallel": 1}}),
            groups(dev={"per_member": {"parallel": 2}}),
            "auth.oidc.groups.dev.per_member.parallel",
        ),
        ({}, {"logging": {"content": True}}, "logging.content"),
        ({}, {"record": {"content": True}}, "record.content"),
        ({"record": {"less": [{"models": ["demo"], "keep": "off"}]}}, {}, "record.less"),
        ({}, {"traces": {"content": "span_only"}}, "traces.content"),
        ({}, {"server": {"allowed_hosts": ["*"]}}, "server.allowed_hosts"),
        ({}, {"server": {"cors_origins": ["*"]}}, "server.cors_origins"),
        ({"approvals": {"demand_hash": True}}, {}, "approvals.demand_hash"),
        ({}, {"approvals": {"keyless": "everybody"}}, "approvals.keyless"),
        ({"approvals": {"keyless": "nobody"}}, {}, "approvals.keyless"),
        ({"limits": {"redis_down": "closed"}}, {}, "limits.redis_down"),
        ({}, {"model_list": [{**DEMO, "provider_selectors": True}]}, "model_list.demo.provider_selectors"),
        ({}, {"model_list": [{**DEMO, "trust_litellm": "on"}]}, "model_list.demo.trust_litellm"),
        ({}, {"model_list": [{**DEMO, "finish_reasons": {"stop": ["fin"]}}]}, "model_list.demo.finish_reasons.stop"),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_a_guard_that_is_loosened_widens_and_one_that_is_tightened_does_not(
    narrow: dict[str, Any], wide: dict[str, Any], name: str
) -> None:
    assert names(narrow, wide) == [name]
    assert name not in names(wide, narrow) or name.endswith("safety")
    assert names(narrow, narrow) == names(wide, wide) == []
    assert name in names_after_restart(narrow, wide)
    assert names_after_restart(narrow, narrow) == names_after_restart(wide, wide) == []


@pytest.mark.parametrize(
    ("others", "name"),
    [
        ({"issuer": "https://other.example"}, "issuer"),
        ({"jwks": "https://b.example/keys"}, "jwks"),
        ({"claims": {"sub": "email"}}, "claims.sub"),
        ({"claims": {"groups": "roles"}}, "claims.groups"),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_who_is_let_in_stays_who_he_was(others: dict[str, Any], name: str) -> None:
    before = oidc(jwks="https://a.example/keys")
    now = oidc(**{"jwks": "https://a.example/keys"} | others)
    assert names(before, now) == names(now, before) == names_after_restart(before, now) == [f"auth.oidc.{name}"]


def test_the_order_of_groups_counts_where_somebody_may_be_in_several() -> None:
    before = groups(contractors={"tools": []}, staff={})
    for now in (
        groups(staff={}, contractors={"tools": []}),  # who is in both had no tool
        groups(staff={}),
        groups(admins={}, contractors={"tools": []}, staff={}),
        groups(contractors={"tools": []}, others={}),
    ):
        assert names(before, now) == ["auth.oidc.groups"]
        assert names_after_restart(before, now) == ["auth.oidc.groups"]
    for now in (groups(contractors={"tools": []}), groups(contractors={"tools": []}, staff={}, others={})):
        assert names(before, now) == names_after_restart(before, now) == []


def test_keys_may_stand_where_an_issuer_stood_and_the_other_way_round() -> None:
    assert names(oidc() | key(), key()) == names(key(), oidc() | key()) == []


def names_after_restart(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """The same comparison with what the last start left in a file."""
    values = json.loads(json.dumps(written(config(**old))))
    return [found.name for found in widened_since(values, config(**new))]


def test_what_is_written_for_the_next_start_holds_no_fixed_value() -> None:
    settings = http(
        url="https://x.example/?role=plain-s3cret", headers={"X-A": "plain-s3cret"}, body={"a": "plain-s3cret"}
    )
    assert "s3cret" not in json.dumps(written(config(**settings)))


def test_a_value_of_another_version_allowed_least() -> None:
    values = {**written(config()), "approvals.keyless": "whoever"}
    assert [found.name for found in widened_since(values, config())] == ["approvals.keyless"]


def test_what_is_added_widens_nothing_whatever_its_place() -> None:
    second = {"name": "bob", "hash": "sha256:" + "1" * 64, "admin": True}
    old = key(models=["demo"]) | http() | server()
    new = {
        "keys": [second, *old["keys"]],
        "model_list": [{"model_name": "n", "litellm_params": {"model": "demo/demo"}, "tools": ["*"]}, DEMO],
        "tools": [{**http()["tools"][0], "name": "more", "allow_private": True}, *http()["tools"]],
        "mcp_servers": {**server()["mcp_servers"], "other": {"url": "https://x.example"}},
    }
    assert names(old, new) == []


@pytest.mark.parametrize(
    ("narrow", "gone", "wide", "name"),
    [
        (key(models=["demo"]), {}, key(), "keys.ann.models"),
        (http(query={"tenant": "a"}), {}, http(), "tools.rows.query"),
        (server(allowed_tools=["a"]), {}, server(), "mcp_servers.files.allowed_tools"),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_what_was_removed_comes_back_as_what_it_was(
    narrow: dict[str, Any], gone: dict[str, Any], wide: dict[str, Any], name: str
) -> None:
    known = with_removed(config(**narrow), config(**gone))
    for _ in range(3):
        known = with_removed(known, config(**gone))
    assert [found.name for found in widenings(known, config(**wide))] == [name]
    assert widenings(known, config(**narrow)) == []
    assert widenings(with_removed(known, config(**wide)), config(**wide)) == []


@pytest.mark.parametrize("field", ["hash", "old_hash"])
def test_the_same_secret_under_another_name_is_the_same_key(field: str) -> None:
    other = {"name": "bob", "hash": "sha256:" + "1" * 64, field: HASH}
    assert names(key(), {"keys": [{**other, "admin": True}]}) == ["keys.bob.admin"]
    assert names(key(), {"keys": [other]}) == []


PROPERTIES: list[tuple[Any, Any, bool]] = [
    ({"type": "string"}, True, True),
    ({"description": "d"}, True, False),
    (True, {"type": "string"}, False),
    ({"maxLength": 5}, {"maxLength": 6}, True),
    ({"maxLength": 5}, {"maxLength": 4, "description": "d"}, False),
    ({"minimum": 10}, {"minimum": 1}, True),
    ({"minimum": 1}, {"minimum": 10}, False),
    ({"pattern": "^a$"}, {"pattern": "^a"}, True),
    ({"type": "number"}, {"type": "integer"}, False),
    ({"type": "string"}, {"type": ["string", "null"]}, True),
    ({"anyOf": [{"const": 1}]}, {"anyOf": [{"const": 1}, {}]}, True),
    ({"allOf": [{"const": 1}, {}]}, {"allOf": [{}]}, True),
    ({"items": {"maximum": 1}}, {}, True),
    ({"type": "object"}, {"type": "object", "additionalProperties": True}, False),
    ({"type": "object", "additionalProperties": False}, {"type": "object"}, True),
    ({"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}, True),
    ({"enum": [1]}, {"enum": [1], "title": "t", "x-y": 1}, False),
]


@pytest.mark.parametrize(
    ("guard", "old", "new", "widens"),
    [
        (ADMITS, ["a*"], ["abc", "a?"], False),
        (ADMITS, ["a?"], ["ab"], True),
        (ADMITS, ["a*"], ["*"], True),
        (ADMITS, ["*"], ["a/b"], False),
        (ADMITS, ["a*"], ["a/b"], True),
        (ADMITS, None, ["x"], False),
        (EXCLUDES, ["delete_*"], ["delete*"], False),
        (EXCLUDES, ["delete_*"], ["delete_a"], True),
        (CEILING, None, 5, False),
        (CEILING, 5, None, True),
        (ENDS, "2027-01-01", "2026-01-01T00:00Z", False),
        (ENDS, "2027-01-01", "2027-01-01T00:01Z", True),
        (MAY_BE_PRIVATE, False, None, True),
        (SAFETY, None, "destructive", False),
        (SAFETY, "read_only", None, False),
        (ARGUMENTS, {"properties": {"a": {"enum": [1]}}}, {"properties": {"a": {"enum": [1, 2]}}}, True),
        (ARGUMENTS, {"properties": {"a": {"enum": [1, 2]}}}, {"properties": {"a": {"enum": [1]}}}, False),
        (ARGUMENTS, {"properties": {"enum": {"type": "string"}}}, {"properties": {}}, False),
        (ARGUMENTS, {"additionalProperties": True}, {}, False),
        (ARGUMENTS, {"required": ["a", "b"]}, {"required": ["a"]}, True),
        (ARGUMENTS, {"required": ["a"]}, {"required": ["b", "a"]}, False),
        *(
            (ARGUMENTS, {"properties": {"a": old}}, {"properties": {"a": new}}, widens)
            for old, new, widens in PROPERTIES
        ),
    ],
)
def test_guards_take_what_is_not_certain_for_wider(guard: Guard, old: Any, new: Any, widens: bool) -> None:
    assert (guard.loosened(old, new) is not None) == widens


def test_a_rule_that_frees_widens_where_none_was() -> None:
    old = config().require_approval
    new = config(require_approval={"never": ["x"]}).require_approval
    assert WAITS.loosened(old, new) is not None


def test_a_rule_that_names_more_loosely_is_weaker_beside_one_that_frees() -> None:
    old = config(require_approval={"always": ["delete_*"]}).require_approval
    new = config(require_approval={"always": ["*"], "never": ["del*"]}).require_approval
    assert WAITS.loosened(old, new) is not None
    assert WAITS.loosened(old, config(require_approval="always").require_approval) is None


def test_settings_that_are_compared_when_tools_are_built_are_settings() -> None:
    assert {"safety", "require_approval"} == set(SEEN_WHEN_BUILT)


@pytest.mark.parametrize("new", [hooks(name="other"), hooks(own={"x": "xyzz"}), {}], ids=["name", "expression", "gone"])
def test_a_guardrail_that_becomes_another_widens_and_one_that_was_removed_is_forgotten(new: dict[str, Any]) -> None:
    old = config(**hooks(own={"x": "xyz"}))
    assert [found.name for found in widenings(old, config(**new))] == ["guardrails"]
    assert [found.name for found in widened_since(written(old), config(**new))] == ["guardrails"]
    known = with_removed(old, config(**new))  # somebody said `--widen`
    assert widenings(known, config(**new)) == []


def test_what_is_written_of_a_guardrail_has_no_secret() -> None:
    hook = {"name": "h", "kind": "webhook", "at": ["request"], "url": "https://x.example", "api_key": "planted-secret"}
    assert "planted-secret" not in json.dumps(written(config(guardrails=[hook])))
