"""Real MCP servers, as their authors published them: installed once from locks, under `.cache/mcp-servers/`.

`python -m tests.tools.servers.real` installs them ahead of the tests, as CI may do; `… lock` makes the locks anew.
Where node or the package registries are missing the servers are not there, and their tests are skipped aloud, or fail
if `CALLGATE_TESTS_REQUIRE` names `mcp-servers`.
"""

import hashlib
import shutil
import sys
from pathlib import Path

import pytest

from tests.harness.installing import NotMade, alone, run_installer
from tests.harness.needs import demanded

ROOT = Path(__file__).resolve().parents[3]
LOCKS = Path(__file__).parent / "locks"
CACHE = ROOT / ".cache" / "mcp-servers"
PATIENCE = 300.0


def command(name: str) -> str:
    """The path of a server's command, installed if need be. Skips the test where that cannot be."""
    try:
        return str(_node() / name if name in NODE_SERVERS else _pypi() / name)
    except NotMade as why:
        if demanded("mcp-servers"):
            pytest.fail(f"this run demands mcp-servers: {why}", pytrace=False)
        pytest.skip(f"no MCP servers to speak to: {why}")


NODE_SERVERS = frozenset({"mcp-server-everything", "mcp-server-filesystem", "mcp-server-memory"})


def _node() -> Path:
    folder = _folder("node", "package.json", "package-lock.json")
    with alone(CACHE / "node.lock"):
        if not (folder / ".made").exists():
            if shutil.which("npm") is None:
                raise NotMade("npm is not installed")
            folder.mkdir(parents=True, exist_ok=True)
            for lock in ("package.json", "package-lock.json"):
                shutil.copy(LOCKS / lock, folder)
            run_installer(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder, PATIENCE)
            (folder / ".made").touch()
    return folder / "node_modules" / ".bin"


def _pypi() -> Path:
    """In an environment of their own: what they ask for need not fit what we ask for."""
    folder = _folder("pypi", "pypi.txt")
    with alone(CACHE / "pypi.lock"):
        if not (folder / ".made").exists():
            uv = [sys.executable, "-m", "uv", "--quiet"]
            run_installer([*uv, "venv", "--clear", "--python", sys.executable, str(folder)], ROOT, PATIENCE)
            python = ["--python", str(folder / "bin" / "python")]
            wanted = ["--require-hashes", "-r", str(LOCKS / "pypi.txt")]
            run_installer([*uv, "pip", "install", *python, *wanted], ROOT, PATIENCE)
            (folder / ".made").touch()
    return folder / "bin"


def _folder(name: str, *locks: str) -> Path:
    """Named for all that decides what is in it."""
    seed = hashlib.sha256(f"{sys.version_info[:2]} {sys.platform}".encode())
    for lock in locks:
        seed.update((LOCKS / lock).read_bytes())
    return CACHE / f"{name}-{seed.hexdigest()[:12]}"


def lock() -> None:
    """The newest releases that are a week old, with their hashes and without the address of any registry."""
    uv = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "compile",
        "--quiet",
        "--universal",
        "--python-version",
        "3.11",
        "--upgrade",
    ]
    options = ["--generate-hashes", "--no-emit-index-url", "--no-emit-find-links", "--exclude-newer", "7 days"]
    run_installer([*uv, *options, "--output-file", "pypi.txt", "pypi.in"], LOCKS, PATIENCE)
    (LOCKS / "package-lock.json").unlink(missing_ok=True)
    quiet = ["--ignore-scripts", "--no-audit", "--no-fund"]
    run_installer(
        ["npm", "install", "--package-lock-only", "--omit-lockfile-registry-resolved=true", *quiet], LOCKS, PATIENCE
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["lock"]:
        lock()
    else:
        try:
            _node()
            _pypi()
        except NotMade as why:
            sys.exit(str(why))
