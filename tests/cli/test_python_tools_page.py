"""`docs/python-tools.md`, followed by somebody who has nothing but the wheel and an empty folder."""

import os
import re
import subprocess
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "python-tools.md").read_text("utf-8")
FILES = dict(re.findall(r"^```(?:python|yaml)\n(?=# (\S+)\n)(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
COMMANDS = [
    line for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL) for line in block.splitlines()
]
OUTCOMES = {
    "callgate check": (0, "fine; 1 model, 5 tools"),
    """callgate tools call lookup '{"word": "oauth"}'""": (0, "an open standard (oauth)"),
    "callgate tools list": (0, "wait_politely"),
    """callgate tools call chart '{"city": "Oslo"}'""": (0, "The chart of Oslo."),
    """callgate tools call lookup '{"wrod": "oauth"}'""": (3, "did you mean word?"),
}
pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    with (tmp_path / "config.yaml").open("a") as config:
        config.write(
            "  - {kind: python, module: both}\n  - {kind: python, module: charts}\n  - {kind: python, module: orders}\n"
        )
    return tmp_path


def run_in_shell(command: str, folder: Path, installed: Path) -> "subprocess.CompletedProcess[str]":
    path = f"{installed}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env={"PATH": path}, capture_output=True, text=True, check=False, timeout=60
    )


def test_every_file_and_command_of_the_page_is_tried_here():
    assert set(FILES) == {"my_tools.py", "config.yaml", "both.py", "charts.py", "orders.py", "test_my_tools.py"}
    assert {each for each in COMMANDS if each.startswith("callgate")} == set(OUTCOMES)


@pytest.mark.parametrize("command", OUTCOMES)
def test_each_command_does_what_the_page_says(command, folder, installed):
    ran = run_in_shell(command, folder, installed)
    code, words = OUTCOMES[command]
    assert ran.returncode == code, ran.stderr
    assert words in (ran.stdout if code == 0 else ran.stderr)


@pytest.mark.parametrize(
    ("call", "code", "out", "err"),
    [
        ("""chart '{"city": "Oslo"}'""", 0, "image/png", " 25% reading Oslo\n 90% drawing\n"),
        ("""chart '{"city": "Atlantis"}'""", 1, "", "Ask for another city."),
        ("""lookup '{"word": "oauth", "language": "xx"}'""", 1, "", "my_tools.py:13"),
        ("""count_orders '{"state": "open"}'""", 0, "0 orders", ""),
        ("""wait_politely '{"seconds": 0}'""", 0, "done", ""),
        ("""wait_in_a_thread '{"seconds": 0}'""", 0, "done", ""),
    ],
)
def test_progress_errors_and_images_are_as_the_page_says(call, code, out, err, folder, installed):
    ran = run_in_shell(f"callgate tools call {call}", folder, installed)
    assert ran.returncode == code, ran.stderr
    assert out in ran.stdout
    assert err in ran.stderr


def test_a_tool_is_still_a_function(folder, installed):
    ran = run_in_shell("python -m pytest -q -p no:cacheprovider test_my_tools.py", folder, installed)
    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr
