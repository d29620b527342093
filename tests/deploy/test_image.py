"""The images, built: what is in them, who they run as, and that they serve. `make image-test` builds them first.

`CALLGATE_IMAGE` names the image; `ENGINE` is what runs it (podman or docker).
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.environment import ROOT
from tests.harness.needs import needs

pytestmark = needs("env:CALLGATE_IMAGE")

ENGINE = os.environ.get("ENGINE", "docker")
IMAGE = os.environ.get("CALLGATE_IMAGE", "")
HARDENED = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]


def run_in_image(*words: str, image: str = IMAGE, entry: str, mount: str | None = None) -> str:
    """What a program in the image writes."""
    mounted = [] if mount is None else ["-v", mount]
    command = [ENGINE, "run", "--rm", *HARDENED, "--entrypoint", entry, *mounted, image, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The name of a running container."""
    name = f"callgate-test-{os.getpid()}"
    start = [ENGINE, "run", "--detach", "--name", name, *HARDENED, "-v", f"{ROOT}/deploy:/etc/callgate:ro"]
    start += ["-e", "CALLGATE_CONFIG=/etc/callgate/config.yaml", IMAGE, "serve", "--create-key"]
    subprocess.run(start, check=True, capture_output=True, timeout=60)
    yield name
    subprocess.run([ENGINE, "rm", "--force", name], check=True, capture_output=True, timeout=60)


def test_it_runs_as_an_unprivileged_user():
    assert run_in_image("-u", entry="id").strip() == "10001"


def test_its_list_of_contents_names_every_package_that_is_locked():
    listed = json.loads(run_in_image("/opt/callgate/sbom.cdx.json", entry="cat"))
    names = {re.sub(r"[-_.]+", "-", each["name"]).lower() for each in listed["components"]}
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    unconditional = re.findall(r"^([a-z0-9._-]+)==[^ ;]+ \\$", lock, re.MULTILINE)
    assert len(unconditional) > 30
    assert {re.sub(r"[-_.]+", "-", name) for name in unconditional} <= names


def test_a_mounted_folder_of_tools_is_found(tmp_path: Path):
    (tmp_path / "my_tools.py").write_text("WORD = 'found'\n", encoding="utf-8")
    tmp_path.chmod(0o755)
    found = run_in_image("-c", "import my_tools; print(my_tools.WORD)", entry="python", mount=f"{tmp_path}:/tools:ro")
    assert found.strip() == "found"


def test_it_serves_and_is_healthy_and_ends_in_order(served: str):
    health = [ENGINE, "exec", served, "sh", "-c", "for i in $(seq 100); do callgate health && exit 0; done; exit 1"]
    subprocess.run(health, check=True, capture_output=True, timeout=120)
    log = subprocess.run([ENGINE, "logs", served], check=True, capture_output=True, text=True, timeout=30)
    assert "key" in log.stdout + log.stderr
    subprocess.run([ENGINE, "stop", "--time", "50", served], check=True, capture_output=True, timeout=90)
    code = [ENGINE, "inspect", served, "--format", "{{.State.ExitCode}}"]
    assert subprocess.run(code, check=True, capture_output=True, text=True, timeout=30).stdout.strip() == "0"


def test_the_one_with_programs_has_what_mcp_servers_are_started_with():
    with_programs = f"{IMAGE}:tools"
    assert run_in_image("--version", image=with_programs, entry="node").startswith("v")
    assert run_in_image("--version", image=with_programs, entry="uvx").startswith("uvx")
    assert run_in_image("-u", image=with_programs, entry="id").strip() == "10001"
