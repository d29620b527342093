"""What commands print goes one way, which masks secrets and escapes what is not seen."""

import ast

import pytest

from callgate.config import redaction
from callgate.config.redaction import Redactor
from callgate.telemetry.terminal import in_a_line, say, shown
from tests.harness.sources import APP, trees_with

WRITERS = {"echo", "secho", "print", "confirm", "prompt"}
ASKS = {"confirm", "prompt"}
STREAMS = {
    f"sys.{stream}.{method}" for stream in ("stdout", "stderr") for method in ("write", "writelines", "buffer.write")
}
SCHEMA = "config/schema/__main__.py"
"""It writes a file: the schema of the config."""


def written_otherwise(tree: ast.AST) -> list[str]:
    """The calls that print past `say`, or ask with a text that did not go through `shown`."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    wrong: list[str] = []
    for call in calls:
        text = ast.unparse(call)
        name = ast.unparse(call.func).rpartition(".")[2]
        if ast.unparse(call.func) in STREAMS:
            wrong.append(text)
        is_ours = ast.unparse(call.func) in {"print", *(f"{module}.{name}" for module in ("typer", "click"))}
        if name not in WRITERS or not is_ours:
            continue
        asked = call.args[0] if call.args else None
        plain = name in ASKS and (asked is None or isinstance(asked, ast.Constant))
        if not plain and "shown(" not in text:
            wrong.append(text)
    return wrong


def test_no_command_prints_in_another_way() -> None:
    others = {
        str(file.relative_to(APP)): calls
        for file, tree in trees_with(("print", "typer", "click", "sys.std"))
        if file != APP / SCHEMA
        if (calls := written_otherwise(tree))
    }
    assert others == {}


def test_the_check_sees_what_it_should() -> None:
    wrong = ["typer.echo(x)", "print(y)", "typer.confirm(z)", "typer.prompt(f'{a}')", "sys.stderr.write(b)"]
    assert written_otherwise(ast.parse("\n".join(wrong))) == wrong
    right = "say(x)\ntyper.secho(shown(x))\ntyper.prompt('Name')\nself.print(x)"
    assert written_otherwise(ast.parse(right)) == []


def test_a_terminal_gets_no_control_and_no_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redaction, "current", Redactor(["s3cret-of-the-operator"]))
    say("\x1b]0;owned\x07 s3cret-of-the-operator ❤️ naïve\n\tnext cg-key-that-was-just-made")
    say("\x9b2J\u202e", err=True, nl=False)
    said = capsys.readouterr()
    assert said.out == "\\u001b]0;owned\\u0007 *** ❤ naïve\n\tnext cg-key-that-was-just-made\n"
    assert said.err == "\\u009b2J\\u202e"
    assert shown("\x7f") == "\\u007f"
    assert in_a_line("a\nb\u00a0c") == "a\\u000ab\\u00a0c"
