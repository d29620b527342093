"""`make audit` finds what must not be there, and says aloud what it could not look up."""

import json
import random
import shlex
import string
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RANDOM = random.Random(7)
HOLLOW = "import json, sys; print(json.dumps({'dependencies': %s}))"

pytestmark = pytest.mark.needs("git")


def audit(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "audit.py"), "--folder", str(folder), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def command_line(program: str) -> str:
    return shlex.join([sys.executable, "-c", program])


def made_up(prefix: str, length: int, letters: str = string.ascii_letters + string.digits) -> str:
    return prefix + "".join(RANDOM.choices(letters, k=length))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / "note.md").write_text("Send it as `Authorization: Bearer sk-your-key-goes-in-here`.\n")
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    return tmp_path


def test_where_git_has_no_files_it_is_said_what_is_missing(tmp_path):
    refused = audit(tmp_path)
    assert refused.returncode == 1
    assert "this has to be a clone" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    "secret",
    [
        made_up("sk-proj-", 48),
        made_up("ghp_", 36),
        made_up("AKIA", 16, string.ascii_uppercase + string.digits),
        made_up("AIza", 35),
        "-----BEGIN RSA PRIVATE KEY-----\n" + made_up("", 300) + "\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_a_secret_in_a_file_of_the_repository_is_found_and_not_shown(checkout, secret):
    assert audit(checkout).returncode == 0
    (checkout / "config.yaml").write_text(f"a: 1\nkey: {secret}\n")
    subprocess.run(["git", "add", "."], cwd=checkout, check=True)
    found = audit(checkout)
    assert found.returncode == 1
    assert "secret: config.yaml:2: " in found.stdout
    assert secret[8:] not in found.stdout


def test_a_known_vulnerability_fails_it(checkout):
    (checkout / "requirements.lock").write_text("idna==3.10\n")
    packages = [{"name": "idna", "version": "3.10", "vulns": [{"id": "PYSEC-1", "aliases": []}]}]
    found = audit(checkout, "--pip-audit", command_line(HOLLOW % json.dumps(packages)))
    assert found.returncode == 1
    assert "vulnerable: requirements.lock: idna 3.10: PYSEC-1" in found.stdout


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; sys.exit('no route to host')", "no route to host"),
        (HOLLOW % '[{"name": "idna", "skip_reason": "not found"}]', "1 of 1 packages are not known"),
    ],
)
def test_what_could_not_be_looked_up_is_reported_and_fails_nothing(checkout, program, reason):
    (checkout / "requirements.lock").write_text("idna==3.10\n")
    found = audit(checkout, "--pip-audit", command_line(program))
    assert found.returncode == 0
    assert "SKIPPED, known vulnerabilities were NOT looked up: requirements.lock" in found.stdout
    assert reason in found.stdout


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone: git names the files of the repository")
def test_this_repository_holds_no_secret():
    found = audit(ROOT, "--pip-audit", command_line(HOLLOW % "[]"))
    assert (found.returncode, found.stdout.splitlines()[0]) == (0, "secrets: none in the files of the repository")
