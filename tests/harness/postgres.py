"""A Postgres server of the tests' own, on a port of loopback that was free; ends with the block, its files with its folder."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.harness.environment import ROOT
from tests.harness.installing import alone
from tests.harness.needs import POSTGRES
from tests.harness.ports import free_port

START_PATIENCE = 30.0
CACHE = ROOT / ".cache" / "postgres"


class PostgresServer:
    """One server, which may be stopped at once and started again on the same port."""

    def __init__(self, folder: Path, of: "PostgresServer | None" = None) -> None:
        """`of`: the server that it is a copy of, and follows."""
        self.folder = folder
        self.port = free_port()
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:  # it refuses to run as root
            owner = pwd.getpwnam("postgres")
            os.chown(folder, owner.pw_uid, owner.pw_gid)
            self._as = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
        self._process: subprocess.Popen[bytes] | None = None
        data = str(folder / "data")
        if of is None:
            self._begin(folder / "data")
        else:
            self._run("pg_basebackup", "-d", of.url, "-D", data, "-R", "--no-sync", "--checkpoint=fast")

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self, *settings: str) -> None:
        given = ("-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self.folder}")
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    _command("postgres"),
                    *("-D", str(self.folder / "data"), "-p", str(self.port), *given),
                    *(part for setting in settings for part in ("-c", setting)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd=self.folder,
                **self._as,
            )
        self._run("pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port), "-t", "0", attempts=600)

    def standby(self, folder: Path) -> "PostgresServer":
        """A server that follows this one, begun in another folder."""
        other = PostgresServer(folder, of=self)
        other.start("fsync=off", "max_connections=200")
        return other

    def stop(self) -> None:
        """At once, as after a crash: what was committed stays."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None

    def _begin(self, data: Path) -> None:
        """Make the files of a new server: a copy of those that the first one of all runs began with, which takes an eighth of the time."""
        made = CACHE / f"{POSTGRES.parent.name}-{(POSTGRES / 'initdb').stat().st_mtime_ns}"
        with alone(CACHE.with_suffix(".lock")):
            if not made.exists():
                self._run("initdb", "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
                CACHE.mkdir(parents=True, exist_ok=True)
                half_made = made.with_suffix(".half")
                shutil.rmtree(half_made, ignore_errors=True)
                _copy(data, half_made)
                half_made.rename(made)
                return
        _copy(made, data)

    def _run(self, name: str, *arguments: str, attempts: int = 1) -> None:
        for left in reversed(range(attempts)):
            done = subprocess.run(  # noqa: PLW1510 - looked at below
                [_command(name), *arguments], capture_output=True, timeout=START_PATIENCE, cwd=self.folder, **self._as
            )
            if done.returncode == 0:
                return
            if not left:
                raise AssertionError(f"{name}: {done.stderr.decode()} {(self.folder / 'log').read_text()[-2000:]}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                assert self._process is not None
                self._process.wait(0.05)
                raise AssertionError(f"postgres ended: {(self.folder / 'log').read_text()[-2000:]}")


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    # Not in a test's own folder: those are closed to other users, and the server runs as one.
    folder = Path(tempfile.mkdtemp(prefix="callgate-postgres-"))
    try:
        server = PostgresServer(folder)
        server.start("fsync=off", "max_connections=200")
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copy(data: Path, to: Path) -> None:
    """With its owner, which is another user where the tests run as root."""
    subprocess.run(["cp", "-a", str(data), str(to)], check=True)


def _command(name: str) -> str:
    return str(POSTGRES / name)
