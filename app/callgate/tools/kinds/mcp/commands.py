"""`callgate mcp`: logs in to MCP servers, out of them, and says who is."""

import asyncio
import json
import os
import sys
import threading
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from callgate.cli.options import ConfigOption, JsonOption
from callgate.cli.shared import WRONG, give_up, read_config
from callgate.telemetry.terminal import in_a_line, say

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from callgate.config.load import Loaded
    from callgate.tools.kinds.mcp.authorization import Identity
    from callgate.tools.kinds.mcp.logins import LoginStatus
    from callgate.tools.kinds.mcp.oauth.service import OAuthLogins

T = TypeVar("T")

mcp = typer.Typer(help="Serves tools to MCP clients, and logs in to MCP servers.", no_args_is_help=True)

ServerArgument = Annotated[str, typer.Argument(metavar="NAME", help="The server's name in `mcp_servers`.")]
KeyNameOption = Annotated[
    str,
    typer.Option("--as", metavar="KEY", help="As this key, where the server's entry says `per: key` or `per: user`."),
]
UserOption = Annotated[str, typer.Option("--user", metavar="USER", help="As this user of the key, for `per: user`.")]


@mcp.command("login")
def login(
    name: ServerArgument,
    config: ConfigOption = None,
    scopes: Annotated[
        str, typer.Option("--scopes", metavar="SCOPES", help="Scopes to ask for as well, with spaces between them.")
    ] = "",
    paste: Annotated[
        bool | None,
        typer.Option(
            "--paste/--no-paste", help="Paste the address that the browser ends at. Default: without a display."
        ),
    ] = None,
    key: KeyNameOption = "",
    user: UserOption = "",
) -> None:
    """Log in to a server in the browser. A running Callgate of the same config uses the login within seconds."""
    loaded = _with_logins(config, name)
    if paste is None:
        paste = not _has_display()
    _run(_logged_in(loaded, name, _identity(loaded, name, key, user), tuple(scopes.split()), paste=paste))


@mcp.command("logout")
def logout(name: ServerArgument, config: ConfigOption = None, key: KeyNameOption = "", user: UserOption = "") -> None:
    """Revoke a login to a server, and forget its tokens."""
    loaded = _with_logins(config, name)
    if _run(_logged_out(loaded, name, _identity(loaded, name, key, user))):
        say(f"logged out of {name}")
    else:
        say(f"nobody was logged in to {name}")


@mcp.command("status")
def status(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Which servers are logged in to, as whom and with which scopes."""
    loaded = _with_logins(config)
    from callgate.tools.kinds.mcp.logins import login_facts

    facts = [login_facts(status) for status in _run(_statuses(loaded))]
    if as_json:
        say(json.dumps({"logins": facts}, indent=2))
        return
    for login in facts:
        say(line_of(login))
    if not facts:
        say("no logins: no server of the config has `oauth`, or nobody has logged in")


def line_of(login: Mapping[str, Any]) -> str:
    """Return a login as one line for a terminal."""
    who = ""
    if login["key"]:
        who += f" as {login['key']}"
    if login["user"]:
        who += f", user {in_a_line(login['user'])}"
    line = f"{login['server']}{who}: {login['state']}"
    if login["issuer"]:
        line += f" at {in_a_line(login['issuer'])}"
    if login["scopes"]:
        line += f", scopes {in_a_line(' '.join(login['scopes']))}"
    if login["missing_scopes"]:
        line += f", wants {in_a_line(' '.join(login['missing_scopes']))} as well"
    return line


def _with_logins(config: Any, name: str = "") -> "Loaded":
    """Read the config; exits where it keeps no logins, or has no such server."""
    loaded = read_config(config)
    if loaded.config.data_dir is None and loaded.config.ledger.url is None:
        raise give_up(
            "logins are kept in `data_dir` or in the ledger of `ledger.url`, and the config has neither: `data_dir: ./data`"
        )
    server = loaded.config.mcp_servers.get(name)
    if not name or (server is not None and server.oauth is not None):
        return loaded
    if server is not None and server.url is not None:
        raise give_up(f"mcp_servers.{name} has no `oauth`: add `oauth: {{}}`, which is enough for most servers")
    having = [name for name, server in loaded.config.mcp_servers.items() if server.oauth is not None]
    raise give_up(f"there is no server {name!r} with `oauth`: {', '.join(having) or 'the config has none'}")


def _identity(loaded: "Loaded", name: str, key: str, user: str) -> "Identity":
    from callgate.tools.kinds.mcp.authorization import Identity

    section = loaded.config.mcp_servers[name].oauth
    assert section is not None, "only such a server is logged in to"
    if (key or user) and section.per == "server":
        raise give_up(f"mcp_servers.{name} has one login for everybody: without --as")
    if user and (section.per != "user" or not key):
        raise give_up("--user goes with --as KEY and `per: user`")
    if section.per == "user" and key and not user:
        raise give_up(f"mcp_servers.{name} has a login for each user of a key: --user USER")
    return Identity(key, user)


async def _logged_in(
    loaded: "Loaded", name: str, identity: "Identity", scopes: tuple[str, ...], *, paste: bool
) -> None:
    from callgate.tools.kinds.mcp.logins import callback_address
    from callgate.tools.kinds.mcp.oauth.loopback import LoopbackListener, Pasted

    section = loaded.config.mcp_servers[name].oauth
    assert section is not None, "only such a server is logged in to"
    public_url = loaded.config.server.public_url
    fixed = ""
    if section.redirect == "public":
        if public_url is None:
            raise give_up(f"mcp_servers.{name}.oauth.redirect is `public`, and the config has no `server.public_url`")
        fixed = callback_address(public_url)
    place = Pasted(_read_line, fixed) if paste or fixed else LoopbackListener()
    async with _logins(loaded) as logins, place as back:
        begun = await logins.begin(name, identity, back.redirect_uri, scopes)
        say(f"Log in to {name} at {in_a_line(begun.issuer)}:\n\n{begun.address}\n")
        if not paste:
            _show(begun.address)
        done = await logins.finish(begun.state, await back.came_back(begun.state), browser=begun.browser)
        back.say_end(is_logged_in=True)
    about = f", scopes {in_a_line(' '.join(done.scopes))}" if done.scopes else ""
    say(f"logged in to {name} at {in_a_line(done.issuer)}{about}")


def _show(address: str) -> None:
    """Open a browser. Beside the event loop, which answers it when it comes back: some browsers run until they are closed."""
    import webbrowser  # starts the program without a shell

    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()


async def _logged_out(loaded: "Loaded", name: str, identity: "Identity") -> bool:
    async with _logins(loaded) as logins:
        return await logins.logout(name, identity)


async def _statuses(loaded: "Loaded") -> "list[LoginStatus]":
    async with _logins(loaded) as logins:
        return list(await logins.statuses())


def _logins(loaded: "Loaded") -> "AbstractAsyncContextManager[OAuthLogins]":
    from callgate.cli.own_logins import opened_logins
    from callgate.cli.own_tools import keep_quiet

    keep_quiet(loaded)
    return opened_logins(loaded)


def _run(work: Coroutine[Any, Any, T]) -> T:
    from callgate.tools.kinds.mcp.logins import LoginFailed

    try:
        return asyncio.run(work)
    except LoginFailed as error:
        say(f"callgate: {error}", err=True)
        raise typer.Exit(WRONG) from None


def _has_display() -> bool:
    """Return whether a browser of this machine can be seen by whoever runs the command."""
    if os.environ.get("SSH_CONNECTION"):
        return False
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _read_line() -> str:
    say("After the login the browser shows a page that may not load. Paste its whole address here:")
    return sys.stdin.readline()
