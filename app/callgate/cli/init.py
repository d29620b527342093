"""`callgate init`: writes a first config, from questions, flags, or what is found on this machine."""

import asyncio
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from callgate.cli.shared import WRONG, give_up
from callgate.telemetry.terminal import say, shown

if TYPE_CHECKING:
    from callgate.cli.found import LocalServer
    from callgate.cli.providers import OfferedProvider

SECRETS = "secrets"
"""The folder beside the config for keys that were typed in."""
HEAD = """\
# Written by `callgate init`. `callgate check` reads it, `callgate doctor` asks what it names, `callgate serve` serves it.
version: 1
"""
USUAL_TOOLS = "my_tools.py"
"""The file of a user's own tools, in the docs and in what is written here."""
NO_TOOLS_YET = "# Your own: put my_tools.py beside this file and add `- {kind: python, module: my_tools}`."


@dataclass
class Answers:
    """The answers from which the config is made."""

    models: list[dict[str, Any]] = field(default_factory=list)
    tools: list[dict[str, str]] = field(default_factory=list)
    servers: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: dict[str, tuple[dict[str, Any], str]] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 8000
    keys: list[dict[str, Any]] = field(default_factory=list)


def init(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")] = Path(
        "config.yaml"
    ),
    provider: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="openai, anthropic, gemini, openrouter, ollama, lmstudio, llamacpp or vllm; repeat."
        ),
    ] = None,
    model: Annotated[list[str] | None, typer.Option(metavar="[NAME=]PROVIDER/MODEL", help="A model; repeat.")] = None,
    base_url: Annotated[
        str | None, typer.Option(metavar="URL", help="A server of models with OpenAI's API, anywhere.")
    ] = None,
    mcp: Annotated[list[str] | None, typer.Option(metavar="[NAME=]COMMAND|URL", help="An MCP server; repeat.")] = None,
    mcp_file: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A file of MCP servers of Claude Desktop, Cursor or VS Code; repeat."),
    ] = None,
    tool: Annotated[list[str] | None, typer.Option(metavar="FILE.py", help="Tools in Python; repeat.")] = None,
    host: Annotated[str | None, typer.Option(metavar="ADDRESS", help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(metavar="PORT", help="The port to listen on.")] = None,
    key: Annotated[str | None, typer.Option(metavar="NAME", help="Make a client's key of this name.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Take whatever is found, and ask nothing.")] = False,
    ask: Annotated[
        bool | None, typer.Option("--ask/--no-ask", help="Ask questions. Default: where a person is at a terminal.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write a config.yaml: models, tools, MCP servers, keys.

    Finds providers' keys in the environment, model servers on their usual ports, and the MCP servers of other programs.
    """
    if ask is None:
        ask = sys.stdin.isatty()
    asking = ask and not yes
    if output.exists() and not force and not (asking and typer.confirm(shown(f"{output} is there. Write over it?"))):
        raise give_up(f"{output} is there already: --force writes over it, --output names another file")
    from callgate.cli.one_line import mcp_server, python_tool

    folder = output.resolve().parent
    answers = Answers()
    _take_models(answers, provider or [], model or [], base_url, folder, asking=asking, flags_alone=not (asking or yes))
    for option in mcp or []:
        name, entry = mcp_server(option, answers.servers)
        answers.servers[name] = entry
    _take_servers(answers, mcp_file or [], folder, asking=asking, take_all=yes)
    for option in tool or []:
        _check_place(option, folder)
    answers.tools = [{"kind": "python", **python_tool(option)} for option in tool or []]
    if not tool:
        _notice_tools(answers, folder)
    if host:
        answers.host = host
    elif asking:
        answers.host = typer.prompt("Listen on", default=answers.host)
    used = {str(entry["litellm_params"].get("api_base", "")) for entry in answers.models}
    if any(f":{answers.port}/" in f"{address}/" for address in used):  # used by a model server such as vLLM
        answers.port += 1
    answers.port = port or answers.port
    secret = _take_key(answers, key, asking=asking)
    private = any(entry.get("env") or entry.get("headers") for entry in answers.servers.values())
    if private or answers.left_out:
        mode = 0o600
    else:
        mode = 0o644
    missing = _missing_variables(output, _text(answers))
    _write(output, _text(answers), mode)
    _report(output, answers, secret, missing)


def _check_place(option: str, folder: Path) -> None:
    """Refuse a file of tools that would not be found from where the config is."""
    place = Path(option.partition(":")[0]).expanduser()
    if place.suffix == ".py" and place.is_file() and place.resolve().parent != folder:
        raise give_up(
            f"--tool {option}: modules are found beside the config, and this one is in {place.resolve().parent}: "
            f"put it into {folder}, or the config there with --output {place.parent / 'config.yaml'}"
        )


def _notice_tools(answers: Answers, folder: Path) -> None:
    """Take the tools of a file of the usual name that is there already."""
    if not (folder / USUAL_TOOLS).is_file():
        return
    from callgate.cli.shared import make_importable
    from callgate.tools.kinds.python.function import NotATool, functions_at

    make_importable(folder)
    module = USUAL_TOOLS.removesuffix(".py")
    try:
        functions_at(module)
    except (NotATool, ValueError) as error:
        say(f"note: {USUAL_TOOLS} is not taken: {error}", err=True)
        return
    say(f"{USUAL_TOOLS} is here: its tools are offered.", err=True)
    answers.tools = [{"kind": "python", "module": module}]


def _take_models(
    answers: Answers,
    providers: list[str],
    models: list[str],
    base_url: str | None,
    folder: Path,
    *,
    asking: bool,
    flags_alone: bool,
) -> None:
    from callgate.cli.found import local_servers, models_at
    from callgate.cli.one_line import DEMO, model_entry
    from callgate.cli.providers import PROVIDERS

    _check_names(providers)
    if base_url and not models:
        models = [f"{name}=openai/{name}" for name in asyncio.run(models_at(base_url))]
        if not models:
            raise give_up(f"{base_url} lists no models now: name one with --model openai/NAME")
    answers.models = [model_entry(model, base_url) for model in models]
    if not providers and (models or base_url):
        return
    local = asyncio.run(local_servers())
    if not providers and not flags_alone:
        providers = [name for name, provider in PROVIDERS.items() if provider.key and os.environ.get(provider.key)]
        providers += [server.provider for server in local]
        if asking:
            providers, addresses = _asked_providers(providers)
            for url in addresses:
                answers.models += _models_at_address(url)
    for name in dict.fromkeys(providers):
        if name == "demo":
            answers.models.append(dict(DEMO))
        elif PROVIDERS[name].port:
            answers.models += _local_models(name, next((server for server in local if server.provider == name), None))
        else:
            answers.models += _hosted_models(PROVIDERS[name], folder, asking=asking)
    if not answers.models:
        say("No provider was named and none found: the demo model stands in.", err=True)
        answers.models = [{"model_name": "demo", "litellm_params": {"model": "demo/demo"}}]


def _check_names(providers: list[str]) -> None:
    from callgate.cli.providers import PROVIDERS
    from callgate.config.problems import near

    for provider in providers:
        if provider not in (*PROVIDERS, "demo"):
            hint = near(provider, list(PROVIDERS)) or f": known are {', '.join(PROVIDERS)} and demo"
            raise give_up(f"--provider {provider} is not known{hint}; for another server --base-url URL")


def _asked_providers(suggested: list[str]) -> tuple[list[str], list[str]]:
    """Ask for providers; return their names, and URLs."""
    from callgate.cli.providers import PROVIDERS
    from callgate.config.problems import near
    from callgate.models.providers import DEFAULT, suggestions

    say(f"Known: {', '.join(PROVIDERS)}; demo, which needs no key;")
    say("or the address of any server with OpenAI's API, such as http://127.0.0.1:8080/v1.")
    choices = [*PROVIDERS, "demo"]
    while True:
        answer = typer.prompt("Which providers", default=", ".join(suggested) or DEFAULT)
        words = [word for word in re.split(r"[,\s]+", answer) if word]
        addresses = [word for word in words if re.match(r"https?://[^/]", word)]
        names = [word.lower() for word in words if word not in addresses]
        names = [suggestions().get(word, word) if word not in choices else word for word in names]
        if unknown := [word for word in names if word not in choices]:
            say(f"Not known: {', '.join(f'{word}{near(word, choices)}' for word in unknown)}", err=True)
            continue
        return names, addresses


def _models_at_address(url: str) -> list[dict[str, Any]]:
    from callgate.cli.found import models_at
    from callgate.cli.one_line import model_entry

    names = list(asyncio.run(models_at(url)))
    if not names:
        answer = typer.prompt(shown(f"{url} lists no models now: the name of one"))
        names = [model for model in re.split(r"[,\s]+", answer) if model]
    return [model_entry(f"{model}=openai/{model}", url) for model in names]


def _local_models(name: str, server: "LocalServer | None") -> list[dict[str, Any]]:
    from callgate.cli.one_line import model_entry
    from callgate.cli.providers import PROVIDERS

    provider = PROVIDERS[name]
    if server is None:
        url = provider.local_url() or ""
        models: Sequence[str] = (provider.example,)
        say(f"{provider.title} does not answer at {url} now; {provider.example} stands for its models.", err=True)
    else:
        url = server.url
        models = server.models
    return [model_entry(f"{model}={provider.prefix}/{model}", provider.base_of(url)) for model in models]


def _hosted_models(provider: "OfferedProvider", folder: Path, *, asking: bool) -> list[dict[str, Any]]:
    from callgate.cli.one_line import model_entry

    if asking:
        chosen = typer.prompt(shown(f"{provider.title}: which models"), default=provider.example)
    else:
        chosen = provider.example
    entries = [model_entry(f"{model}={provider.prefix}/{model}") for model in re.split(r"[,\s]+", chosen.strip())]
    # The reference to a provider's key: its variable, or a file that is written now.
    if os.environ.get(provider.key) or not asking:
        key = f"os.environ/{provider.key}"
    else:
        secret = typer.prompt(
            shown(f"{provider.key} is not set. The key (kept in {SECRETS}/), or nothing to set the variable later"),
            default="", hide_input=True, show_default=False,
        )  # fmt: skip
        if not secret.strip():
            key = f"os.environ/{provider.key}"
        else:
            place = folder / SECRETS
            place.mkdir(mode=0o700, exist_ok=True)
            (place / ".gitignore").write_text("*\n")
            file = place / provider.key.lower()
            _write(file, secret.strip() + "\n")
            key = f"file:./{SECRETS}/{file.name}"
    return [{**entry, "litellm_params": {**entry["litellm_params"], "api_key": key}} for entry in entries]


def _take_servers(answers: Answers, files: list[Path], folder: Path, *, asking: bool, take_all: bool) -> None:
    """Take over the MCP servers of the named files, else of found files if the user agrees."""
    from callgate.cli.found import read_servers, usual_files
    from callgate.cli.one_line import free_name

    named = [("", path) for path in files]
    if not named and (asking or take_all):
        named = [*usual_files()]
    for program, path in named:
        try:
            file = read_servers(program, path, folder)
        except ValueError as error:
            if not program:
                raise give_up(error) from None
            say(f"note: {error}", err=True)
            continue
        names = ", ".join((*file.servers, *file.left_out))
        if not names or (
            program
            and asking
            and not typer.confirm(shown(f"Take over the MCP servers of {program}: {names}?"), default=True)
        ):
            continue
        for name, entry in file.servers.items():
            if entry not in answers.servers.values():
                answers.servers[free_name(name, answers.servers)] = entry
        answers.left_out |= file.left_out


def _take_key(answers: Answers, name: str | None, *, asking: bool) -> str | None:
    from callgate.access.keys import mint_key
    from callgate.callers.origin_guard import is_loopback

    if name is None and is_loopback(answers.host):
        if not asking or not typer.confirm(
            "Make a key? Without one, every program on this machine may ask", default=False
        ):
            return None
    elif name is None:
        say(f"{answers.host} can be reached by others, so that clients need a key.", err=True)
    name = name or "first"
    secret, digest = mint_key()
    answers.keys = [{"name": name, "hash": digest, "approve": "on", "admin": "on"}]
    return secret


def _text(answers: Answers) -> str:
    offered = [{**entry, "tools": ["*"]} for entry in answers.models]
    blocks = [
        HEAD,
        _block({"server": {"host": answers.host, "port": answers.port}}),
        "# A folder, from this file's, for recorded runs, the ledger of tool runs, usage and keys.\n"
        + _block({"data_dir": "./data"}),
        "# The names that clients ask for, and the models behind them. `tools`: which of those below each is offered.\n"
        + _block({"model_list": offered}),
        f"{NO_TOOLS_YET}\n"
        + _block({"tools": answers.tools or [{"kind": "python", "module": "callgate.tools.builtin"}]}),
    ]
    if answers.servers or answers.left_out:
        text = "# MCP servers, in the words that other programs use for them.\n"
        if answers.servers:
            text += _block({"mcp_servers": answers.servers})
        else:
            text += "mcp_servers:\n"
        for name, (entry, why) in answers.left_out.items():
            lines = yaml.safe_dump({name: entry}, sort_keys=False).splitlines()
            text += f"  # left out: {why}\n" + "".join(f"  # {line}\n" for line in lines)
        blocks.append(text)
    if answers.keys:
        blocks.append(
            "# Clients' keys, as hashes. `callgate keys create NAME` prints further ones.\n"
            + _block({"keys": answers.keys})
        )
    return "\n".join(blocks)


def _block(section: dict[str, Any]) -> str:
    return yaml.safe_dump(section, sort_keys=False, allow_unicode=True)


def _write(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a new file, so that its mode is right, because it may have secrets."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        file.write(text)


def _missing_variables(output: Path, text: str) -> list[str]:
    """Return the variables that a config needs and that are not set. Exits where `callgate check` would refuse it for anything
    else, so that nothing is written."""
    from callgate.cli.making import mistakes_in
    from callgate.cli.shared import make_importable
    from callgate.config.load import load
    from callgate.config.problems import ConfigError

    draft = output.with_name(f".{output.name}.{os.getpid()}")
    _write(draft, text)
    try:
        loaded = load(draft)
        make_importable(loaded.folder())
        if mistakes := mistakes_in(loaded):
            raise loaded.complaint(*mistakes)
    except ConfigError as error:
        missing = re.findall(r"the environment variable (\w+) is not set", str(error))
        if len(missing) < len(error.problems):
            say(str(error).replace(str(draft), str(output)), err=True)
            say(f"callgate: {output} was not written", err=True)
            raise typer.Exit(WRONG) from None
        return list(dict.fromkeys(missing))
    finally:
        draft.unlink(missing_ok=True)
    return []


def _report(output: Path, answers: Answers, secret: str | None, missing: list[str]) -> None:
    """Print what was written, and what to do next."""
    models = ", ".join(dict.fromkeys(model["model_name"] for model in answers.models))
    say(f"wrote {output}: models {models}; MCP servers {', '.join(answers.servers) or 'none'}")
    for name, (_, why) in answers.left_out.items():
        say(f"left out, as a comment: MCP server {name}: {why}")
    if secret is not None:
        say(f"key (shown this once): {secret}")
    at = ""
    if output != Path("config.yaml"):
        at = f" --config {output}"
    for variable in missing:
        say(f"next: export {variable}=...   (the provider's key; `callgate check{at}` fails until it is set)")
    say(f"next: callgate doctor{at}   (asks every provider and tool server whether it is there)")
    say(f"next: callgate serve{at}   (then point a client at http://{answers.host}:{answers.port}/v1)")
