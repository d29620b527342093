"""`callgate tools` and `callgate check`, as an operator runs them."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.command import Ran, run_command
from tests.harness.configs import tool_entry
from tests.tools.executor_kinds import RAW_MCP

MODELS = [{"model_name": "demo", "litellm_params": {"model": "demo/demo"}}]
BROKEN = {"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json"}}}


def http_tool(**more: Any) -> dict[str, Any]:
    return {"kind": "http", "name": "web", "description": "d", "url": "http://127.0.0.1:1/", **more}


def callgate(*arguments: str, config: dict[str, Any] | None = None, folder: Path, fresh: bool = False) -> Ran:
    (folder / "config.yaml").write_text(yaml.safe_dump({"model_list": MODELS, **(config or {})}))
    return run_command(*arguments, "--config", str(folder / "config.yaml"), fresh=fresh)


def test_tools_are_listed_with_what_they_cost_and_what_is_wrong(tmp_path):
    server = {"command": sys.executable, "args": ["-S", str(RAW_MCP)], "prefix": "raw", "allowed_tools": ["echo"]}
    gone = {"command": "/no/such/program"}
    config = {
        "tools": [
            tool_entry("add"),
            {**tool_entry("send_mail"), "require_approval": "always"},
            http_tool(parameters=BROKEN),
        ],
        "mcp_servers": {"raw": server, "gone": gone},
    }
    ran = callgate("tools", "list", "--json", config=config, folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    tools = {tool["name"]: tool for tool in found["tools"]}
    assert set(tools) == {"add", "raw_echo", "read_more", "send_mail"}
    assert (tools["add"]["kind"], tools["add"]["source"], tools["add"]["safety"]) == ("python", "config", "read_only")
    assert [name for name, tool in tools.items() if tool["require_approval"]] == ["send_mail"]
    assert 20 < tools["add"]["prompt_tokens"] < 200
    [broken] = found["quarantined"]
    assert broken["name"] == "web"
    assert "never fetched" in broken["reason"]
    sources = {source["name"]: source for source in found["sources"]}
    assert sources["raw"]["state"] == "ready"
    assert sources["raw"]["open_ms"] > 0
    assert sources["gone"]["state"] in {"down", "opening"}
    assert sources["gone"]["error"]


def test_people_get_a_table(tmp_path):
    ran = callgate("tools", "list", config={"tools": [tool_entry("add")]}, folder=tmp_path)
    assert ran.stdout.splitlines()[0].split() == ["NAME", "KIND", "SOURCE", "STATE", "SAFETY", "TOKENS"]
    assert ran.stdout.splitlines()[1].split()[:4] == ["add", "python", "config", "ready"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["add", '{"a": 40, "b": 2}'], 0, "42"),
        (["get_time"], 0, "12:00"),
        (["get_weather", '{"city": "Atlantis"}'], 1, "No weather station"),
        (["add", '{"a": 40, "b"'], 3, "truncated"),
        (["add", '{"a": 40}'], 3, "schema_mismatch"),
        (["ad", "{}"], 3, "did you mean add?"),
        (["send_mail", '{"to": "a", "text": "b"}'], 1, "needs approval"),
        (["send_mail", '{"to": "a", "text": "b"}', "--yes"], 1, "mailbox is full"),
    ],
)
def test_a_call_by_hand_goes_through_the_gate_and_the_exit_code_is_its_outcome(tmp_path, arguments, code, words):
    names = ("add", "get_time", "get_weather", "send_mail")
    config = {"tools": [tool_entry(name) for name in names], "require_approval": {"always": ["send_*"]}}
    ran = callgate("tools", "call", *arguments, config=config, folder=tmp_path)
    assert ran.returncode == code, ran.stderr
    assert words in (ran.stdout if code == 0 else ran.stderr)


@pytest.mark.parametrize(
    ("at", "then", "code", "words"),
    [
        ("arguments", "mask", 0, "[CARD]"),
        ("result", "mask", 0, "[CARD]"),
        ("arguments", "block", 1, "Not run: blocked by the guardrail `cards`"),
        ("result", "block", 1, "The result was held back"),
        ("description", "block", 0, "4111 1111 1111 1111"),
    ],
)
def test_a_call_by_hand_goes_through_the_guardrails(tmp_path, at, then, code, words):
    hook = {"name": "cards", "kind": "patterns", "find": ["cards"], "at": [at], "then": then}
    config = {"tools": [tool_entry("echo")], "guardrails": [hook]}
    ran = callgate("tools", "call", "echo", '{"text": "4111 1111 1111 1111"}', config=config, folder=tmp_path)
    assert ran.returncode == code, ran.stderr
    assert words in (ran.stdout if code == 0 else ran.stderr)
    assert ("1111" in ran.stdout + ran.stderr) is (at == "description")


def test_a_tool_that_raises_shows_its_file_and_line_and_its_traceback(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from callgate import tool\n\n@tool\ndef divide(a: int, b: int) -> float:\n    return int('x') if a > 8 else a / b\n"
    )
    config = {"tools": [{"kind": "python", "module": "mine"}]}
    ran = callgate("tools", "call", "divide", '{"a": 1, "b": 0}', config=config, folder=tmp_path)
    assert ran.returncode == 1
    assert "ZeroDivisionError: division by zero" in ran.stderr
    assert "tool_raised" in ran.stderr
    assert f"{tmp_path / 'mine.py'}:5" in ran.stderr
    assert "Traceback" in ran.stderr


def test_a_tool_may_be_called_by_its_origin_and_a_name_that_is_none_has_a_near_one(tmp_path):
    config = {"tools": [tool_entry("add")]}
    ran = callgate("tools", "call", "config/add", '{"a": 1, "b": 2}', config=config, folder=tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "3\n")
    ran = callgate("tools", "call", "ad", "{}", config=config, folder=tmp_path)
    assert ran.returncode == 3
    assert "add" in ran.stderr


def test_a_call_starts_only_the_source_that_it_needs(tmp_path):
    def server(name: str) -> dict[str, Any]:
        script = f"touch {tmp_path}/{name}.started; exec {sys.executable} -S {RAW_MCP}"
        return {"command": "sh", "args": ["-c", script], "allowed_tools": ["echo"]}

    def started() -> set[str]:
        return {each.stem for each in tmp_path.glob("*.started")}

    config = {"tools": [tool_entry("add")], "mcp_servers": {"one": server("one"), "two": server("two")}}
    for call, sources in (("add", set()), ("config/add", set()), ("two_echo", {"two"}), ("one/echo", {"one", "two"})):
        arguments = '{"a": 1, "b": 2}' if "add" in call else '{"text": "hi"}'
        ran = callgate("tools", "call", call, arguments, config=config, folder=tmp_path)
        assert ran.returncode == 0, ran.stderr
        assert started() == sources
    ran = callgate("tools", "call", "tow_echo", '{"text": "hi"}', config=config, folder=tmp_path)
    assert (ran.returncode, "two_echo" in ran.stderr) == (3, True)


def test_programs_get_the_outcome_as_json(tmp_path):
    ran = callgate(
        "tools", "call", "echo", '{"text": "hi"}', "--json", config={"tools": [tool_entry("echo")]}, folder=tmp_path
    )
    assert json.loads(ran.stdout) == {"outcome": "returned", "text": "hi", "cut_bytes": 0}


# check ----------------------------------------------------------------------------------------------------------------


def test_a_config_that_is_fine_is_counted(tmp_path):
    ran = callgate("check", config={"tools": [tool_entry("add")]}, folder=tmp_path)
    assert ran.returncode == 0
    assert ": fine; 1 model, 1 tool\n" in ran.stdout


def test_check_names_the_tools_whose_safety_is_not_given(tmp_path: Path):
    known, unknown = tool_entry("add"), {"kind": "python", "function": "tests.harness.toolshed:echo"}
    ran = callgate("check", config={"tools": [known, unknown]}, folder=tmp_path)
    [note] = [line for line in ran.stdout.splitlines() if "safety" in line]
    assert note.startswith("note: echo: no `safety` is given, so that they count as tools that may change something")


def test_a_module_that_cannot_be_imported_is_reported_with_its_place(tmp_path):
    ran = callgate("check", config={"tools": [{"kind": "python", "module": "no_such_module"}]}, folder=tmp_path)
    assert ran.returncode == 2
    assert f"{tmp_path / 'config.yaml'}:6:3: tools.0: " in ran.stderr


def test_a_server_does_not_start_with_it_and_prints_the_error_in_one_line(tmp_path):
    ran = callgate("serve", config={"tools": [{"kind": "python", "module": "no_such_module"}]}, folder=tmp_path)
    assert ran.returncode == 2
    assert ran.stderr == f"callgate: {tmp_path / 'config.yaml'}:6:3: tools.0: there is no module no_such_module\n"


def test_a_model_that_could_never_be_asked_is_reported_with_its_place(tmp_path):
    models = [{"model_name": "m", "litellm_params": {"model": "x/y"}, "lane": "direct"}]
    ran = callgate("check", config={"model_list": models}, folder=tmp_path)
    assert ran.returncode == 2
    assert "model_list.0: lane is direct" in ran.stderr


@pytest.mark.parametrize(
    ("sections", "place", "near"),
    [
        ({"model_list": [{**MODELS[0], "tools": ["ad"]}]}, "model_list.0.tools", "did you mean 'add'"),
        ({"require_approval": {"always": ["send_mial"]}}, "require_approval", "did you mean 'send_mail'"),
        ({"keys": [{"name": "k", "hash": "sha256:" + 64 * "0", "tools": ["serch"]}]}, "keys.0.tools", "names no tool"),
    ],
)
def test_a_name_that_is_no_tool_s_is_an_error_with_its_place_and_a_near_name(tmp_path, sections, place, near):
    config = {"tools": [tool_entry("add"), tool_entry("send_mail")], **sections}
    ran = callgate("check", config=config, folder=tmp_path)
    assert ran.returncode == 2
    assert place in ran.stderr
    assert near in ran.stderr


def test_a_source_that_is_not_there_cannot_be_named(tmp_path):
    server = {"command": sys.executable, "args": ["-S", str(RAW_MCP)]}
    models = [{**MODELS[0], "tools": ["ghithub/*"]}]
    ran = callgate("check", config={"model_list": models, "mcp_servers": {"github": server}}, folder=tmp_path)
    assert ran.returncode == 2
    assert "did you mean 'github/*'" in ran.stderr


def test_names_that_may_be_those_of_a_server_are_noted_until_it_was_asked(tmp_path):
    server = {
        "command": sys.executable,
        "args": ["-S", str(RAW_MCP)],
        "prefix": "raw",
        "allowed_tools": ["echo", "ecko"],
    }
    models = [{**MODELS[0], "tools": ["raw_ehco"]}]
    rule = {"always": ["*"], "never": ["*cho"]}
    config = {"model_list": models, "mcp_servers": {"raw": server}, "require_approval": rule}
    ran = callgate("check", config=config, folder=tmp_path)
    assert ran.returncode == 0
    assert re.search(
        r"^note: \S+:\d+:\d+: model_list.0.tools \(demo\): 'raw_ehco' names no tool", ran.stderr, re.MULTILINE
    )
    ran = callgate("doctor", "--json", config=config, folder=tmp_path)
    warned = [check["detail"] for check in json.loads(ran.stdout)["checks"] if check["status"] == "warn"]
    assert any("'raw_ehco' names no tool; did you mean 'raw_echo'?" in detail for detail in warned)
    assert any("require_approval.never: '*cho' names no tool; did you mean 'raw/*cho'?" in detail for detail in warned)
    assert any("allowed_tools: 'ecko' names no tool; did you mean 'echo'?" in detail for detail in warned)


def test_two_tools_of_one_name_are_shown_with_what_each_is_called(tmp_path):
    server = {"command": sys.executable, "args": ["-S", str(RAW_MCP)], "prefix": "", "allowed_tools": ["echo"]}
    config = {"mcp_servers": {"one": server, "two": server}, "tools": [tool_entry("add")]}
    ran = callgate("tools", "list", config=config, folder=tmp_path)
    assert "name clash echo: one/echo is echo_" in ran.stdout
    ran = callgate("doctor", config=config, folder=tmp_path)
    assert "warn  name echo: " in ran.stdout


def test_a_file_of_pins_that_is_too_deep_is_one_clear_line(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "tool_pins.json").write_bytes(b'{"a":' * 100_000)
    ran = callgate("check", config={"data_dir": str(tmp_path / "data")}, folder=tmp_path)
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr
    assert "move it away to start anew" in ran.stderr.replace("\n", " ")


@pytest.mark.parametrize("name", ["ledger.sqlite3", "keys.sqlite3", "tool_pins.json"])
def test_a_damaged_file_is_one_clear_line_and_stays_as_it_is(tmp_path, name):
    file = tmp_path / "data" / name
    file.parent.mkdir()
    file.write_bytes(bytes(range(256)) * 32)
    ran = callgate("check", config={"data_dir": str(file.parent)}, folder=tmp_path)
    assert ran.returncode not in (0, None)
    assert "Traceback" not in ran.stderr
    [line] = [line for line in ran.stderr.splitlines() if "data_dir" in line]
    assert "file is not a database" in line or "move it away" in line
    assert file.read_bytes() == bytes(range(256)) * 32


def test_a_schema_that_cannot_be_compiled_is_reported(tmp_path):
    ran = callgate("check", config={"tools": [http_tool(parameters=BROKEN)]}, folder=tmp_path)
    assert ran.returncode == 1
    assert "tool web cannot be used" in ran.stderr


def test_what_a_providers_dialect_leaves_out_of_a_schema_is_noted_once(tmp_path):
    parameters = {"type": "object", "properties": {"a": {"type": "string", "format": "uri"}}}
    models = [
        {"model_name": name, "litellm_params": {"model": f"gemini/{name}", "api_key": "k"}, "tools": ["web"]}
        for name in ("gemini-a", "gemini-b")
    ]
    ran = callgate("check", config={"model_list": models, "tools": [http_tool(parameters=parameters)]}, folder=tmp_path)
    assert ran.returncode == 0
    notes = [line for line in ran.stdout.splitlines() if line.startswith("note: gemini")]
    assert notes == ["note: gemini schemas cannot say all of web: /properties/a: format uri left out"]


def test_all_unusable_entries_are_reported_at_once(tmp_path):
    tools = [
        {"kind": "python", "module": "no_such_module"},
        {"kind": "python", "module": "callgate.tools.builtin"},
        {"kind": "python", "function": "callgate.tools.builtin:clok"},
        {"kind": "python", "function": "no_such_module:lookup"},
    ]
    ran = callgate("check", config={"tools": tools}, folder=tmp_path)

    assert ran.returncode == 2
    assert [line.split(": ")[-2] for line in ran.stderr.splitlines()] == ["tools.0", "tools.2", "tools.3"], ran.stderr


def test_seven_broken_entries_and_missing_variables_are_reported_at_once(tmp_path):
    (tmp_path / "mine.py").write_text("import no_such_dependency")
    config = {
        "model_list": [
            *MODELS,
            {"model_name": "gpt", "litellm_params": {"model": "openai/gpt-5", "api_key": "os.environ/NO_SUCH_KEY"}},
            {"model_name": "far", "litellm_params": {"model": "x/y"}, "lane": "direct"},
            {"model_name": "odd", "litelm_params": {"model": "x/y"}},
            {"model_name": "lost", "litellm_params": {"model": "demo/demo"}, "fallbacks": ["odd", "ood"]},
        ],
        "tools": [
            {"kind": "python", "module": "no_such_module"},
            {"kind": "python", "function": "mine:lookup"},
            {"kind": "pyhton", "module": "mine"},
            http_tool(name="header", headers={"Authorization": "${NO_SUCH_TOKEN}"}),
            http_tool(name="address", url="os.environ/NO_SUCH_ADDRESS"),
            {"kind": "command", "name": "gone", "description": "d", "argv": ["/no/such/program"]},
        ],
        "server": {"prot": 8000},
        "mcp_servers": {"nothing": {"args": ["-y"]}},
    }
    ran = callgate("check", config=config, folder=tmp_path)

    assert ran.returncode == 2
    places = [re.search(r":\d+:\d+: ([\w.]+): ", line) for line in ran.stderr.splitlines()]
    assert sorted(place[1] for place in places if place) == [
        "mcp_servers.nothing",
        "model_list.1.litellm_params.api_key",
        "model_list.2",
        "model_list.3.litellm_params",
        "model_list.3.litelm_params",
        "model_list.4.fallbacks.1",
        "server.prot",
        "tools.0",
        "tools.1",
        "tools.2",
        "tools.3.headers.Authorization",
        "tools.4.url",
        "tools.5",
    ], ran.stderr


OFFERED = {"model_name": "demo", "litellm_params": {"model": "demo/demo"}, "tools": ["*"]}


def test_a_module_beside_the_config_is_found_before_any_other_and_may_not_hide_one_that_is_needed(tmp_path):
    (tmp_path / "statistics.py").write_text("")
    (tmp_path / "mine.py").write_text(
        'from callgate import tool\n\n\n@tool\ndef lookup() -> str:\n    """Finds."""\n    return \'found\'\n'
    )
    config = {"model_list": [OFFERED], "tools": [{"kind": "python", "module": "mine"}]}
    ran = callgate("check", config=config, folder=tmp_path)
    never = f"{tmp_path / 'statistics.py'} has the name of a module of the standard library and is never loaded"
    assert (ran.returncode, ran.stderr) == (0, f"warning: {never}: give the file another name\n")
    ran = callgate("check", config={"tools": [{"kind": "python", "module": "statistics"}]}, folder=tmp_path)
    assert ran.returncode == 2
    assert "statistics.py has the name of a module of the standard library: give the file another name" in ran.stderr


def test_no_file_beside_the_config_is_loaded_in_place_of_a_module_that_is_needed(tmp_path):
    needed = {
        *sys.stdlib_module_names,
        "callgate",
        "yaml",
        "pydantic",
        "structlog",
        "anyio",
        "fastapi",
        "mcp",
        "litellm",
    }
    for name in needed:
        (tmp_path / f"{name}.py").write_text(f"raise AssertionError('{name} of the folder was loaded')\n")
    (tmp_path / "mine.py").write_text(
        "import queue, yaml\nfrom callgate import tool\n\n\n@tool\ndef lookup() -> str:\n    'Finds.'\n    return yaml.__name__\n"
    )
    config = {"model_list": [OFFERED], "tools": [{"kind": "python", "module": "mine"}]}
    ran = callgate("tools", "call", "lookup", config=config, folder=tmp_path, fresh=True)
    assert (ran.returncode, ran.stdout) == (0, "yaml\n"), ran.stderr
    ran = callgate("check", config=config, folder=tmp_path, fresh=True)
    assert ran.returncode == 0, ran.stderr
    assert {Path(line.split()[1]).stem for line in ran.stderr.splitlines()} == needed


def test_a_key_s_models_that_are_none_are_an_error_with_a_near_name(tmp_path):
    config = {"keys": [{"name": "k", "hash": "sha256:" + 64 * "0", "models": ["demo", "dmeo"]}]}
    ran = callgate("check", config=config, folder=tmp_path)
    assert ran.returncode == 2
    assert "keys.0.models.1: 'dmeo' names no model; did you mean 'demo'?" in ran.stderr
