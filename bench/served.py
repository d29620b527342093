"""Callgate as it is measured: with a key, the gate, logs, metrics, diagnostics and the ledger, as its users run it."""

import contextlib
import hashlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

STEADY = {"PYTHONHASHSEED": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 28), "MALLOC_MMAP_THRESHOLD_": str(1 << 28)}
"""The same hashes, and so the same dicts, each time; and large buffers that glibc keeps when they are freed. Otherwise it is
chance, by what the process did before, whether it gives them back and fetches them again at each request of 100 KB."""
ROOT = Path(__file__).resolve().parent.parent
KEY = "cg-bench-0123456789abcdef"
START_SECONDS = 60.0

CONFIG = """
server: {{port: {port}}}
keys: [{{name: bench, hash: "sha256:{hash}"{rights}}}]
tools: [{{kind: python, function: "bench_tool:echo"}}]
logging: {{format: json}}
data_dir: {data}
model_list:
  - model_name: plain
    litellm_params: &up {{model: openai/gpt-4o-mini, api_base: "http://127.0.0.1:{model}/v1", api_key: x}}
  - {{model_name: tools, litellm_params: *up, tools: [echo]}}
"""
WITH_MCP = """
  - {{model_name: mcp, litellm_params: *up, tools: [far_echo]}}
mcp_servers:
  far: {{url: "http://127.0.0.1:{mcp}/mcp"}}
"""
TOOL = '''async def echo(text: str) -> str:
    """Says it again."""
    return f"echo:{text[:20]}"
'''


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """In memory where there is such a place: how long a disk takes is not ours."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as directory:
        yield Path(directory)


def configured(directory: Path, port: int, model: int, mcp: int | None = None, *, rights: str = ", see: all") -> Path:
    """A config file, and beside it the tool that it names. `rights`: further fields of its key."""
    (directory / "bench_tool.py").write_text(TOOL)
    hashed = hashlib.sha256(KEY.encode()).hexdigest()
    text = CONFIG.format(port=port, hash=hashed, rights=rights, model=model, data=directory / "data")
    if mcp:
        text += WITH_MCP.format(mcp=mcp)
    file = directory / "config.yaml"
    file.write_text(text)
    return file


@dataclass(frozen=True)
class Served:
    """A process of its own."""

    port: int
    process: "subprocess.Popen[bytes]"
    log: Path

    def modules(self) -> int:
        """How many it has imported, if it was asked to count them."""
        return self.log.read_bytes().count(b"import time:")

    def cpu_clock(self) -> float:
        """Seconds of all its threads so far, to the nanosecond, from the CPU clock that Linux keeps of a process."""
        return time.clock_gettime((~self.process.pid << 3) | 2)

    def cpu(self) -> float:
        """Seconds of all its threads so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def megabytes(self) -> float:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


@contextlib.contextmanager
def served(directory: Path, model: int, *options: str) -> Iterator[Served]:
    """`options` are the interpreter's."""
    port = free_port()
    config = configured(directory, port, model)
    command = [sys.executable, *options, "-m", "callgate", "serve", "--config", str(config)]
    with started(command, port, directory, source_root=ROOT / "app", bytecode=directory / "bytecode") as process:
        yield process


@contextlib.contextmanager
def started(command: list[str], port: int, directory: Path, *, source_root: Path, bytecode: Path) -> Iterator[Served]:
    """A server that is ready, and ends with this. It imports Callgate from `source_root`, and tools from `directory`.

    `bytecode`: compiled by the first process, as an installation is. Without it a start is mostly compiling, where nothing
    may be written beside the source."""
    environment = steady_environment() | {
        "PYTHONPATH": os.pathsep.join([str(source_root), str(directory)]),
        "PYTHONPYCACHEPREFIX": str(bytecode),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    written = directory / "server.log"
    with written.open("wb") as log:
        process = subprocess.Popen(command, env=environment, stderr=log, cwd=directory)
        try:
            _wait_for(port, process)
            yield Served(port, process, written)
        finally:
            process.terminate()
            process.wait(START_SECONDS)


def steady_environment() -> dict[str, str]:
    return {**os.environ, **STEADY}


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as asking:
            asking.sendall(b"GET /health/ready HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
            if asking.recv(64).startswith(b"HTTP/1.1 200"):
                return
        time.sleep(0.02)
    raise SystemExit("Callgate did not start")


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
