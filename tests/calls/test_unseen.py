"""What nobody sees is one table: of descriptions, terminals and the page."""

import json
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

import callgate
from callgate.calls.unseen import SPACES, UNSEEN, escaped, is_unseen, visible

WEB = Path(callgate.__file__).parent / "web"
HIDDEN = "\u3164\u2800\u115f\u034f\u200b\u202e\ue000\ufe0f\U000e0041\U000e01ef\u00ad\u0378"
SHOWN = r"\u3164\u2800\u115f\u034f\u200b\u202e\ue000\ufe0f\udb40\udc41\udb40\uddef\u00ad\u0378"


def line_of_the_page() -> str:
    """The table as the page has it: what browsers know by category, and the ranges beside that."""
    codes = [code for first, last in UNSEEN for code in range(first, last + 1)]
    others = [code for code in codes if unicodedata.category(chr(code))[0] not in "CZ"]
    ranges: list[list[int]] = []
    for code in others:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    classes = "".join(_written(first) + (f"-{_written(last)}" if last > first else "") for first, last in ranges)
    return rf"const UNSEEN = /(?![\n ])[\p{{C}}\p{{Z}}{classes}]/gu;"


def _written(code: int) -> str:
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\u{{{code:x}}}"


def test_the_page_has_the_same_table() -> None:
    assert line_of_the_page() in (WEB / "format.js").read_text().splitlines()


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_page_shows_what_is_hidden_as_the_terminal_does() -> None:
    text = f"rm{HIDDEN} -rf\u00a0/ déjà vu 日本 ✓"
    script = (
        f"import {{ shown }} from {json.dumps((WEB / 'format.js').as_uri())}; console.log(shown({json.dumps(text)}));"
    )
    said = subprocess.run(
        ["node", "--input-type=module", "-e", script], capture_output=True, text=True, check=True, timeout=50
    )
    assert said.stdout == f'"{escaped(text, spaces=True)}"\n'


def test_every_control_and_mark_is_in_it() -> None:
    for code in range(sys.maxunicode + 1):
        category = unicodedata.category(chr(code))
        if category in {"Cc", "Cf", "Cs", "Zl", "Zp"}:
            assert is_unseen(chr(code)), hex(code)
        elif category == "Zs" and code != 0x20:
            assert any(first <= code <= last for first, last in SPACES), hex(code)


def test_what_is_hidden_is_escaped_as_json_does_and_all_else_stays() -> None:
    assert escaped(HIDDEN) == SHOWN
    assert json.loads(f'"{escaped(HIDDEN)}"') == HIDDEN
    assert escaped("a\x1b]0;owned\x07\r\n", keep="\n") == r"a\u001b]0;owned\u0007\u000d" + "\n"
    for plain in ("déjà vu 日本\u3000語", "✓ naïve", "a\tb\n"):
        assert escaped(plain, keep="\n\t") == plain
    assert escaped("a\u00a0b\u3000c", spaces=True) == r"a\u00a0b\u3000c"


def test_a_description_loses_what_is_hidden() -> None:
    assert visible(f"Reads{HIDDEN} a file.\n\tAll of it.") == "Reads a file.\n\tAll of it."
