"""`callgate doctor` and `callgate models`, as an operator runs them."""

import asyncio
import json
import socket
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest

from callgate.application import create_app
from callgate.config.schema.whole import Config
from tests.harness.clients import http_client
from tests.harness.command import run_command
from tests.harness.configs import as_yaml, config_dict, make_config
from tests.harness.ports import free_port
from tests.harness.server import serve
from tests.harness.tls import self_signed
from tests.scripted_upstream import Reply, Upstream
from tests.tools.executor_kinds import RAW_MCP

pytestmark = pytest.mark.anyio

BROKEN = {"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json"}}}


async def callgate(*arguments: str, config: dict[str, Any], folder: Path) -> tuple[int, str]:
    file = folder / "config.yaml"
    file.write_text(as_yaml(config))
    ran = await asyncio.to_thread(run_command, *arguments, "--config", str(file))
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran.returncode, ran.stdout


async def test_a_server_that_is_well(upstream: Upstream, tmp_path: Path) -> None:
    server = {"command": sys.executable, "args": ["-S", str(RAW_MCP)]}
    config = config_dict(upstream.url, tools=["add"], mcp_servers={"raw": server}, server={"port": free_port()})
    code, out = await callgate("doctor", "--json", config=config, folder=tmp_path)
    report = json.loads(out)
    checks = {check["what"]: check for check in report["checks"]}
    assert (code, report["ok"]) == (0, True)
    assert checks["model m"]["lane"] == "direct"
    assert checks["model m"]["tool_calling"] == "native"
    assert checks["model m"]["status"] in {"ok", "warn"}
    assert checks["source raw"]["status"] == "ok"
    assert checks["source raw"]["ms"] > 0
    assert checks["tools"]["status"] == "ok"


async def test_whatever_is_wrong_is_printed_and_the_exit_code_is_one(tmp_path: Path) -> None:
    broken = {"kind": "http", "name": "web", "description": "d", "url": "http://127.0.0.1:1/", "parameters": BROKEN}
    gone = {"gone": {"command": "/no/such"}}
    config = config_dict("http://127.0.0.1:1/v1", tools=[broken], mcp_servers=gone, data_dir="data")
    (tmp_path / "data").mkdir()
    for store in ("ledger.sqlite3", "keys.sqlite3"):
        (tmp_path / "data" / store).write_bytes(b"no database, but long enough" * 200)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config["server"] = {"port": taken.getsockname()[1]}
        code, out = await callgate("doctor", config=config, folder=tmp_path)
    assert code == 1
    failed = [line for line in out.splitlines() if line.startswith("FAIL")]
    assert [line.split(":")[0] for line in failed] == [
        f"FAIL  port {config['server']['port']}",
        "FAIL  store",
        "FAIL  store",
        "FAIL  model m",
        "FAIL  source gone",
        "FAIL  tool web",
    ]


async def test_a_port_with_callgate_on_it_already_is_no_failure(upstream: Upstream, tmp_path: Path) -> None:
    async with serve(create_app(make_config(upstream.url))) as url:
        config = config_dict(upstream.url, server={"port": int(url.rpartition(":")[2])})
        code, out = await callgate("doctor", config=config, folder=tmp_path)
    assert code == 0
    assert "a server is running on 127.0.0.1 already" in out


async def test_models_are_listed_with_their_lanes_without_any_request(upstream: Upstream, tmp_path: Path) -> None:
    config = config_dict(upstream.url, models=["one"], entry={"tool_calling": "hermes"})
    demo = {"model_name": "demo", "litellm_params": {"model": "demo/demo"}}
    config["model_list"] += [demo]
    _, out = await callgate("models", "--json", config=config, folder=tmp_path)
    one, other = json.loads(out)
    assert (one["name"], one["lane"], one["tool_calling"]) == ("one", "direct", "hermes")
    assert one["host"] in upstream.url
    assert (other["name"], other["lane"], other["host"]) == ("demo", "demo", None)
    assert list(upstream.requests) == []
    _, table = await callgate("models", config=config, folder=tmp_path)
    head, *sentences = table.split("\n\n")
    assert [line.split()[0] for line in head.splitlines()] == ["NAME", "one", "demo"]
    assert sentences[0].splitlines() == [
        "one (openai/one)",
        f"  Callgate itself asks {one['host']}, in OpenAI's protocol.",
        (
            "  Tools are described in the prompt and its calls are read from its text, in the format `hermes`: "
            "`tool_calling` says so."
        ),
        "  No tools of this config are on offer to it: its entry has no `tools`.",
    ]


async def test_a_running_server_says_which_models_are_left_alone(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("m", [Reply(status=500)], repeat_last=True)
    options = {"retries": 2, "retry_wait_seconds": 60, "cooldown_seconds": 60}
    config = config_dict(upstream.url, upstream=options, server={"first_chunk_seconds": 60})
    async with serve(create_app(Config.model_validate(config))) as url, http_client(url) as client:
        await client.post("/v1/chat/completions", json={"model": "m", "messages": [{"role": "user", "content": "hi"}]})
        _, out = await callgate("models", "--json", "--url", url, config=config, folder=tmp_path)
        _, table = await callgate("models", "--url", url, config=config, folder=tmp_path)
    [row] = json.loads(out)
    assert (row["name"], row["lane"], row["host"]) == ("m", "direct", upstream.root.removeprefix("http://"))
    assert 0 < row["cooldown_seconds"] <= 60
    assert "cooling down for" in table.splitlines()[1]


async def test_the_reason_why_litellm_serves_a_model_is_printed(upstream: Upstream, tmp_path: Path) -> None:
    config = config_dict(upstream.url, models=["one"], provider="nlp_cloud", lane="auto", entry={"tools": []})
    _, out = await callgate("models", "--json", config=config, folder=tmp_path)
    [one] = json.loads(out)
    assert one["lane"] == "litellm"
    assert one["why_litellm"] == "its provider is none that is read here"
    _, report = await callgate("doctor", config=config, folder=tmp_path)
    assert "litellm lane (translated: its provider is none that is read here" in report


async def test_how_a_model_will_be_called_is_printed_before_its_first_use(upstream: Upstream, tmp_path: Path) -> None:
    config = config_dict(upstream.url, models=["gpt-5"], entry={"tool_calling": "auto", "tools": ["*"]})
    local = {"model": "ollama_chat/qwen3", "api_base": upstream.root}
    config["model_list"].append({"model_name": "qwen3", "litellm_params": local, "tools": ["*"]})
    _, out = await callgate("models", "--json", config=config, folder=tmp_path)
    hosted, asked = (row["in_words"] for row in json.loads(out))
    assert hosted[1:] == ["It is offered tools natively: models of this name do.", "On offer to it: all tools."]
    assert asked[1].startswith("It is asked once, when it is first offered tools")
    assert "`hermes`" in asked[1]
    assert list(upstream.requests) == []


OPEN_API = {
    "openapi": "3.1.0",
    "info": {"title": "t", "version": "1"},
    "servers": [{"url": "http://127.0.0.1:1"}],
    "paths": {
        "/good": {"get": {"operationId": "good"}},
        "/odd": {
            "post": {
                "operationId": "odd",
                "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": {"type": "object"}}}},
            }
        },
    },
}


async def test_what_fails_says_what_to_do_and_an_operation_that_cannot_be_used_is_a_note(
    upstream: Upstream, tmp_path: Path
) -> None:
    (tmp_path / "api.json").write_text(json.dumps(OPEN_API))
    api = {"kind": "openapi", "name": "api", "document": "./api.json"}
    config = config_dict(upstream.url, models=["echo"], tools=[api], server={"port": free_port()})
    code, out = await callgate("doctor", config=config, folder=tmp_path)
    assert code == 0, out
    assert "note  tool odd of api: cannot be used: " in out
    assert out.splitlines()[-1] == f"next: callgate serve --config {tmp_path / 'config.yaml'}"

    config["mcp_servers"] = {
        "gone": {"command": "/no/such", "args": ["a b"]},
        "silent": {"command": "false", "args": ["a b"]},
    }
    config["model_list"].append(
        {"model_name": "typo", "litellm_params": {"model": "openai/ecko", "api_base": upstream.url, "api_key": "k"}}
    )
    code, out = await callgate("doctor", config=config, folder=tmp_path)
    assert code == 1
    assert "      do: install it, or write its whole path as `command`" in out
    assert "      do: start it by hand and read what it says: false 'a b'" in out
    assert "the provider does not list 'ecko'" in out
    assert "      do: name one that it has: echo" in out
    assert out.splitlines()[-1].startswith("next: mend what has FAIL, then callgate doctor")


async def test_a_model_is_looked_at_through_the_proxy_that_serving_uses(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.delenv("http_proxy", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", "")
    config = config_dict(upstream.url, server={"port": free_port()})
    code, out = await callgate("doctor", config=config, folder=tmp_path)
    assert code == 1
    assert "through the proxy 127.0.0.1:1" in out
    assert list(upstream.requests) == []
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    code, out = await callgate("doctor", config=config, folder=tmp_path)
    assert (code, "proxy" in out) == (0, False), out


async def todo_of(folder: Path, config: dict[str, Any]) -> tuple[str, str]:
    """What doctor says of the model, and what to do."""
    _, output = await callgate("doctor", "--json", config=config, folder=folder)
    check = next(each for each in json.loads(output)["checks"] if each["what"].startswith("model "))
    return check["detail"], check["todo"]


async def test_a_certificate_that_nobody_knows_is_named_in_ca_file(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(self_signed(tmp_path))
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with server:
        detail, todo = await todo_of(tmp_path, config_dict(url, server={"port": free_port()}))
    assert "certificate" in detail.lower()
    assert "upstream.ca_file" in todo


async def test_an_address_with_https_where_plain_http_is_spoken_gets_the_hint(tmp_path: Path) -> None:
    def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with server:
        _, todo = await todo_of(tmp_path, config_dict(url, server={"port": free_port()}))
    assert "begins with `http://`" in todo


async def test_a_server_of_tools_that_is_down_is_named_with_port_and_reason(upstream: Upstream, tmp_path: Path) -> None:
    port = free_port()
    config = config_dict(upstream.url, mcp_servers={"files": {"url": f"http://127.0.0.1:{port}/mcp"}})
    _, output = await callgate("doctor", config=config | {"server": {"port": free_port()}}, folder=tmp_path)
    assert f"source files: 127.0.0.1:{port} cannot be reached: Connection refused" in output


async def test_a_server_of_tools_behind_an_unknown_certificate_is_told_apart_from_one_that_is_down(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    config = config_dict(upstream.url, mcp_servers={"files": {"url": url}}, server={"port": free_port()})
    async with server:
        _, refused = await callgate("doctor", config=config, folder=tmp_path)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        _, trusted = await callgate("doctor", config=config, folder=tmp_path)
    assert "CERTIFICATE_VERIFY_FAILED" in refused
    assert "name the authority that signed its certificate in the variable SSL_CERT_FILE" in refused
    assert "CERTIFICATE_VERIFY_FAILED" not in trusted


async def test_a_server_of_tools_that_speaks_no_tls_gets_the_hint(upstream: Upstream, tmp_path: Path) -> None:
    def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    config = config_dict(upstream.url, mcp_servers={"files": {"url": url}}, server={"port": free_port()})
    async with server:
        _, output = await callgate("doctor", config=config, folder=tmp_path)
    assert "with plain HTTP, `url` begins with `http://`" in output


async def test_a_provider_of_the_config_is_examined_and_one_without_models_reported(
    upstream: Upstream, tmp_path: Path
) -> None:
    config = config_dict(upstream.url)
    config["model_list"] = [{"model_name": "large", "litellm_params": {"model": "acme/m"}}]
    config["providers"] = {"acme": {"base_url": upstream.url}, "idle": {"base_url": "https://idle.example/v1"}}
    upstream.script("m", [Reply(text="hi")])
    code, out = await callgate("doctor", "--json", config=config, folder=tmp_path)
    checks = {check["what"]: check for check in json.loads(out)["checks"]}
    assert (code, checks["model large"]["lane"], checks["model large"]["status"]) == (0, "direct", "ok")
    ran = await asyncio.to_thread(run_command, "check", "--config", str(tmp_path / "config.yaml"))
    assert ran.returncode == 0
    assert "no model is of this provider: write `model: idle/...`" in ran.stderr + ran.stdout
