"""What a newcomer does wrong, and the words that come back: clear in one reading, with the place and what to do."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from callgate.commands import app

MODEL = "model_list:\n- model_name: gpt\n  litellm_params: {model: openai/gpt-5, api_key: sk-1}\n  tools: ['*']\n"
UNTOOLED = MODEL.replace("  tools: ['*']\n", "")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MODEL.replace("sk-1", "$OPENAI_API_KEY"), "`$OPENAI_API_KEY` would be taken as it is: write `${OPENAI_API_KEY}`"),
        ("model_list:\n\t- model_name: gpt\n", "a tab cannot indent: use spaces"),
        ("model_list:\n  - model_name: gpt\n   litellm_params: {}\n", "config.yaml:3:4: not readable as YAML"),
        ("model_list:\n  - model_name: gpt\n   litellm_params: {}\n", "look at its spaces"),
        ("model_list: *\n", "put a text that begins with `*` into quotes"),
        ("server: {port: 1\n", "a comma or a bracket is missing before this"),
        (MODEL + "tool_calling: native\n", "unknown key `tool_calling`; it belongs into an entry of `model_list`"),
        (MODEL + "mcp_config: ./mcp.json\n", "mcp.json:1:34: not readable as JSON: "),
        (MODEL + "mcp_servers: {files: {command: npxx}}\n", "warning: mcp_servers.files: there is no program npxx"),
        (MODEL + "mcp_servers: {files: {command: ./gone}}\n", "warning: mcp_servers.files: there is no program ./gone"),
        (MODEL + "tools: [{kind: python, module: bad}]\n", "bad cannot be imported: SyntaxError"),
        (MODEL + "tools: [{kind: python, module: bad}]\n", "bad.py:2)"),
        (MODEL + "tools: [{kind: python, module: plain}]\n", "mark it, or name one function as `function: plain:lookup`"),
        (MODEL + "tools: [{kind: python, module: wants}]\n", "wants.py:1): install it for the Python that runs Callgate"),
        (MODEL + "tools: [{kind: python, module: plain.py}]\n", "there is no module plain.py: write `plain`, without `.py`"),
        (UNTOOLED + "tools: [{kind: python, module: callgate.tools.builtin}]\n", 'warning: config.yaml:4:8: tools: no model is offered one of them: write `tools: ["*"]` into an entry of `model_list`'),
        (UNTOOLED + "mcp_servers: {files: {command: cat}}\n", "warning: config.yaml:4:14: mcp_servers: no model is offered one of their tools: write"),
        (MODEL.replace("openai/gpt-5", "gtp-5"), "says no provider: write `openai/gtp-5`"),
        (MODEL.replace("sk-1", "OPENAI_API_KEY"), "environment variable: write `os.environ/OPENAI_API_KEY`"),
        (MODEL.replace("sk-1", "os.environ/OPENAI_API_KEYS"), "OPENAI_API_KEYS is not set: `export OPENAI_API_KEYS=...` first"),
        (MODEL.replace("sk-1", "123"), "should be a text: put it into quotes"),
        (MODEL + "<<<<<<< HEAD\nauth: off\n=======\n>>>>>>> b\n", "config.yaml:5:1: git could not merge this file"),
        (MODEL + 'data_dir: "C:\\data"\n', "use single quotes"),
        (MODEL + "data_dir: ./config.yaml\n", "config.yaml:5:11: data_dir: "),
        (MODEL + "mcp_servers: {a: {command: npx -y x}}\n", "no program npx -y x: is it `command: npx`, and the rest `args`?"),
        (MODEL + "tools:\n- {kind: python, module: callgate.tools.builtin}\nkeys:\n- {name: a, hash: 'sha256:" + "0" * 64 + "', tools: [x*]}\n", "warning: config.yaml:8:102: keys.0.tools (a): 'x*' names no tool"),
        (MODEL + "tools:\n- {kind: http, name: w, url: 'http://x/', description: d, parameters: {type: objct}}\n", "config.yaml:6:71: tools.0.parameters: tool w cannot be used: "),
        (MODEL + "tools:\n- {kind: http, name: w, url: 'http://x/{citty}', description: d, parameters: {properties: {city: {}}}}\n", "tools.0: `{citty}` is no property of `parameters`; did you mean `{city}`?"),
        (MODEL + "tools:\n- {kind: http, name: w, url: 'http://x/', query: {q: '{quuery}'}, description: d, parameters: {properties: {query: {}}}}\n", "`{quuery}` is no property of `parameters`; did you mean `{query}`?"),
        (MODEL + "tools: [{kind: command, name: l, description: d, command: ls -l}]\n", "5:50: tools.0.command: unknown key `command`; what it means elsewhere is `argv` here"),
        (MODEL.replace("openai/", "opnai/"), "config.yaml:3:27: model_list.0.litellm_params.model: no provider is called 'opnai'"),
        (MODEL + "tools: [{name: x}]\n", "tools.0: needs a `kind`: `python`, `http`, `openapi`, `command`, `web_search` or `web_fetch`"),
        (MODEL.replace("['*']", "[{kind: python, module: plain}]"), "config.yaml:4:11: model_list.0.tools.0: should be the name of a tool; tools themselves are defined under `tools`"),
        ("model_list:\n- model_name: gpt\n  litellm_params:\n  model: openai/gpt-5\n", "unknown key `model`; it belongs under `litellm_params`: indent it below that line"),
        ("model_list:\n- model_name: gpt\n  model: openai/gpt-5\n", "unknown key `model`; it belongs under `litellm_params`"),
        (MODEL.replace(", api_key: sk-1", ""), "warning: config.yaml:3:19: model_list.0.litellm_params: has no `api_key`, and OPENAI_API_KEY is not set, so that openai will refuse `gpt`: `export OPENAI_API_KEY=...` first"),
        (MODEL.replace("openai/gpt-5, api_key: sk-1", "anthropic/claude-sonnet-4-5"), "and ANTHROPIC_API_KEY is not set"),
        (MODEL.replace("openai/gpt-5, api_key: sk-1", "gpt-5"), "and OPENAI_API_KEY is not set"),
        (MODEL + "tools: [{kind: python, module: bare}]\n", "warning: config.yaml:5:9: tools.0: the model is told too little of lookup: no description (write a docstring) and no type for `query` (write type hints)"),
        (MODEL + "tools: [{kind: python, module: odd}]\n", "the parameter `db` of lookup has a type that no JSON can be turned into, odd.Connection: use str"),
        (MODEL + "tools: [{kind: http, name: w, url: 'http://x/', description: d, parameters: {type: object, properties: {a: {type: strng}}}}]\n", "'strng' is no type of JSON Schema, which are string, number, integer, boolean, object, array, null; did you mean 'string'? (at /properties/a/type)"),
        (MODEL + "tools: [{kind: python, module: plian}]\n", "there is no module plian; is it plain?"),
        (MODEL + "tools: [{kind: python, module: ./plain.py}]\n", "should be like `package.module`: write `plain`, without `./` and `.py`"),
        (MODEL + "tools: [{kind: openapi, name: s, document: ./shpo.yaml}]\n", "cannot be read: No such file or directory; did you mean `shop.yaml`?"),
        (MODEL + "tools: [{kind: openapi, name: s, document: ./shop.yaml, include: [ordres]}]\n", "is called 'ordres'; is it 'orders'?"),
        (MODEL + "tools: [{kind: python, module: plain, timeout: 30s}]\n", "should be a number of seconds: write `30`"),
        (MODEL + "tools: [{kind: python, module: plain, timeout: 2 min}]\n", "should be a number of seconds: write `120`"),
        (MODEL + "tools: [{kind: command, name: l, description: d, argv: ls}]\n", "should be a list, such as `[git, log"),
        (MODEL.replace("['*']", "all"), 'model_list.0.tools: should be a list, such as `["*"]`'),
        (MODEL.replace("tools:", "finish_reasons: {stop: fin}\n  tools:"), "model_list.0.finish_reasons.stop: should be a list: write `[fin]`"),
        (MODEL + "tools: my_tools\n", "tools: should be a list: write each tool below it, beginning with `- kind: ...`"),
        (MODEL + "general_settings: {master_key: sk-1}\n", "`master_key` is one of `keys` here (`callgate keys create NAME --admin`)"),
        (MODEL + "litellm_settings: {num_retries: 3}\n", "`num_retries` is `upstream.retries` here"),
        ('{"mcpServers": {"a": {"command": "cat"}}}', "a file of MCP servers alone is no config: name it with `mcp_config`"),
        (MODEL + "keys: [{name: me, hash: sk-mine}]\n", "the key itself does not belong here"),
        (MODEL + "server: {host: 0.0.0.0}\nauth: off\nrequire_approval: always\n", "warning: config.yaml:6:7: auth: nobody may approve calls, because everybody is let in without a key"),
        (MODEL + "keys: [{name: me, hash: 'sha256:" + "0" * 64 + "'}]\nrequire_approval: always\n", "warning: config.yaml:5:7: keys: none has `approve: on`"),
        (MODEL + "tools: [{kind: python, function: 'plain:lookup', safety: destructive}]\n", "warning: config.yaml:5:8: tools: destructive, so that each call waits for approval: lookup"),
        (MODEL + "server: {host: 0.0.0.0}\n", "`callgate keys create NAME` makes one"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_file_is_clear_in_one_reading(
    text: str, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "config.yaml").write_text(text)
    (folder / "mcp.json").write_text('{"mcpServers": {"a": {"url": "x" "b": 1}}}')
    (folder / "bad.py").write_text("\ndef f(:\n")
    (folder / "plain.py").write_text("def lookup(word: str) -> str:\n    return word\n")
    (folder / "wants.py").write_text("import no_such_package\n")
    (folder / "bare.py").write_text("from callgate import tool\n\n@tool\ndef lookup(query):\n    return query\n")
    odd = "from callgate import tool\nclass Connection: pass\n\n@tool\ndef lookup(word: str, db: Connection) -> str:\n    'd'\n"
    (folder / "odd.py").write_text(odd)
    api = "openapi: 3.1.0\nservers: [{url: 'http://x'}]\npaths: {/orders: {get: {operationId: orders}}}\n"
    (folder / "shop.yaml").write_text(api)
    for variable in (
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        "OPENAI_API_BASE",
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_AUTH_TOKEN",
    ):
        monkeypatch.delenv(variable, raising=False)
    for module in ("bare", "odd", "plain", "bad", "wants"):
        sys.modules.pop(module, None)
    result = CliRunner().invoke(app, ["check"])
    assert said in result.output, result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["sreve"], "Did you mean 'serve'?"),
        (
            ["serve", "--config", "nope.yaml"],
            "nope.yaml: cannot be read: No such file or directory; `callgate init` writes one",
        ),
        (["serve", "--model", "gpt-5", "--config", "x.yaml"], "leave out one or the other"),
        (["tools", "call", "clokc"], "got clokc\n  did you mean clock?"),
        (["tools", "call", "calculator", '{"expresion": "1"}'], "did you mean expression?"),
        (["chat", "-m", "demo", "--url", "http://127.0.0.1:1"], "no server runs there: `callgate serve` starts one"),
        (["approvals", "list", "--url", "http://127.0.0.1:1"], "no server runs there: `callgate serve` starts one"),
        (["reload", "--url", "http://127.0.0.1:1"], "no server runs there: `callgate serve` starts one"),
        (["health", "--url", "http://127.0.0.1:1"], "no server runs there: `callgate serve` starts one"),
        (["--config", "x.yaml", "check"], "it stands behind the command: callgate check --config FILE"),
        (["models", "list"], "`callgate models` alone lists them"),
        (["version"], "No command is called 'version': callgate --version"),
        (["runs", "list"], "the config has no `data_dir`"),
        (["runs", "prune"], "the config has no `data_dir` (`data_dir: ./data` makes a folder beside it)"),
        (["calls"], "the config has no `data_dir` (`data_dir: ./data` makes a folder beside it)"),
        (["keys", "revoke", "alice"], "the config has no `data_dir` (`data_dir: ./data` makes a folder beside it)"),
        (["health", "--url", "http://127.0.0.1:1"], "Connection refused"),
    ],
)
def test_a_mistake_on_the_command_line_is_clear_in_one_reading(command: list[str], said: str) -> None:
    result = CliRunner().invoke(app, command)
    assert result.exit_code != 0
    assert said in result.output, result.output


@pytest.mark.parametrize(
    "entry",
    [
        "{model: openai/gpt-5, api_key: sk-1}",
        "{model: openai/gpt-5, api_base: 'http://127.0.0.1:1/v1'}",
        "{model: ollama_chat/qwen3}",
        "{model: demo/demo}",
    ],
)
def test_a_model_that_has_a_key_or_needs_none_is_no_warning(entry: str, folder: Path) -> None:
    (folder / "config.yaml").write_text(f"model_list:\n- model_name: m\n  litellm_params: {entry}\n")
    result = CliRunner().invoke(app, ["check", "--config", "config.yaml"])
    assert result.exit_code == 0, result.output
    assert "warning" not in result.output


def test_a_key_in_the_environment_is_no_warning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "config.yaml").write_text(MODEL.replace(", api_key: sk-1", ""))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    assert "warning" not in CliRunner().invoke(app, ["check", "--config", "config.yaml"]).output


def test_a_text_that_looks_like_a_variable_can_still_be_written(folder: Path) -> None:
    from callgate.config.load import load

    (folder / "config.yaml").write_text(MODEL.replace("sk-1", "$$OPENAI_API_KEY"))
    assert load("config.yaml").config.model_list[0].litellm_params.reveal()["api_key"] == "$OPENAI_API_KEY"


def test_the_status_of_no_logins_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["init"]).exit_code == 0
    result = CliRunner().invoke(app, ["mcp", "status"])
    assert result.exit_code == 0
    assert "no logins: no server of the config has `oauth`" in result.output
