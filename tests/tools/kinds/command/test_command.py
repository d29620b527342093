import base64
import json
import os
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.calls.outcome import Failed, FailureKind, Image, Outcome, Returned
from callgate.tools.kinds.command import command as command_room
from callgate.tools.kinds.command.command import MAX_ARGUMENT, BadCommand, CommandLine, _BadArgument
from callgate.tools.kinds.command.process import CommandProcesses, Paths, ProcessLimits
from tests.tools.executor_kinds import an_occasion, ready

SHOW = 'import sys, json; print(json.dumps(sys.argv[1:]), end="")'
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def line(*argv: Any, properties: tuple[str, ...] = ("text",), **options: Any) -> CommandLine:
    """Never runs in these tests, unless `outcome_of` runs it."""
    options.setdefault("parameters", {"type": "object", "properties": {name: {} for name in properties}})
    return CommandLine(options.pop("processes", CommandProcesses()), argv=argv, **{"cwd": "/", **options})


def argv_of(tool: CommandLine, **arguments: Any) -> list[str]:
    return list(tool._command(arguments).argv)


async def outcome_of(
    *argv: Any, arguments: dict[str, Any] | None = None, max_bytes: int = 100_000, **options: Any
) -> Outcome:
    processes = CommandProcesses()
    tool = line(*argv, processes=processes, properties=tuple(arguments or ()), **options)
    try:
        return await tool.execute(ready("it", **(arguments or {})), an_occasion(max_bytes))
    finally:
        await processes.close()


def script(text: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", text, *arguments)


# Filling in ---------------------------------------------------------------------------------------


def test_a_place_fills_one_argument_or_a_part_of_one():
    tool = line("git", "log", "-n", "{count}", "--since={since}", properties=("count", "since"))
    assert argv_of(tool, count=3, since="last monday") == ["git", "log", "-n", "3", "--since=last monday"]


@pytest.mark.parametrize(("value", "text"), [(True, "true"), (False, "false"), (1.5, "1.5"), ("", ""), (0, "0")])
def test_values_are_written_as_in_json(value, text):
    assert argv_of(line("echo", "{text}"), text=value) == ["echo", text]


def test_what_needs_an_argument_that_is_not_given_is_left_out():
    tool = line("git", "log", ["--author", "{who}"], "--max-count={count}", properties=("who", "count"))
    assert argv_of(tool, who="me") == ["git", "log", "--author", "me"]
    assert argv_of(tool, count=3, who=None) == ["git", "log", "--max-count=3"]


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_no_value_becomes_more_than_one_argument_or_anything_but_itself(value):
    tool = line("echo", "before", "x{text}y", "after")
    assert argv_of(tool, text=value) == ["echo", "before", f"x{value}y", "after"]


def test_a_filled_place_is_not_filled_again():
    tool = line("echo", "x{a}", "{b}", properties=("a", "b"))
    assert argv_of(tool, a="{b}", b="{a}") == ["echo", "x{b}", "{a}"]


@pytest.mark.parametrize("value", ["-rf", "--output=/etc/passwd", "-", "--", -5])
def test_a_value_may_not_begin_an_option(value):
    with pytest.raises(_BadArgument, match="`text` may not begin with a dash"):
        argv_of(line("ls", "{text}"), text=value)
    with pytest.raises(_BadArgument):
        argv_of(line("ls", "--", "{text}"), text=value)


def test_two_places_do_not_make_a_dash_of_an_empty_first():
    with pytest.raises(_BadArgument):
        argv_of(line("ls", "{a}{b}", properties=("a", "b")), a="", b="-rf")


def test_a_dash_is_let_through_where_it_cannot_begin_or_is_allowed_to():
    assert argv_of(line("ls", "--sort={text}"), text="-rf") == ["ls", "--sort=-rf"]
    assert argv_of(line("ls", "{text}", allow_options=True), text="-rf") == ["ls", "-rf"]


@pytest.mark.parametrize("value", ["a\0b", "\ud800", ["a"], {"a": 1}, "x" * (MAX_ARGUMENT + 1)])
def test_what_no_program_can_be_given_is_refused(value):
    with pytest.raises(_BadArgument):
        argv_of(line("echo", "x{text}"), text=value)


def test_stdin_is_all_arguments_as_json_or_a_text_with_places():
    assert line("cat", stdin="json")._command({"text": "ä", "n": 1}).stdin == '{"text":"ä","n":1}'.encode()
    assert line("cat", stdin="{text}\n")._command({"text": "-rf\0"}).stdin == b"-rf\0\n"
    assert line("cat", "{text}")._command({"text": "x"}).stdin == b""


def test_a_lone_surrogate_cannot_be_written_to_stdin():
    for stdin in ("json", "{text}"):
        with pytest.raises(_BadArgument):
            line("cat", stdin=stdin)._command({"text": "\ud800"})


# What an operator may write -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "options", "words"),
    [
        (["no-such-program-anywhere", "{text}"], {}, "the program no-such-program-anywhere is not there"),
        (["./missing.sh", "{text}"], {}, "missing.sh is not there"),
        (["{text}"], {}, "may not choose the program"),
        (["bin/{text}"], {}, "may not choose the program"),
        ([""], {}, "names no program"),
        ([[]], {}, "names no program"),
        (["echo", "a\0b"], {}, "NUL"),
        (["echo", "{txet}"], {}, "`{txet}` is no property"),
        (["echo"], {}, "`text` of `parameters` has no place"),
        (["echo", "{text}"], {"stdin": "{other}"}, "`{other}` is no property"),
        (["echo", "{text}"], {"cwd": "/nowhere/at/all"}, "/nowhere/at/all is not there"),
    ],
)
def test_a_command_that_cannot_be_kept_to_is_refused_at_load(argv, options, words):
    with pytest.raises(BadCommand, match=words.replace("{", r"\{")):
        line(*argv, **options)


def test_paths_that_could_be_made_to_lead_elsewhere_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(command_room, "landlock_abi", lambda: 6)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(BadCommand, match=r"leads over a link; write .*/real"):
        line("echo", "{text}", paths=Paths(read=(f"{tmp_path}/link/x",)))
    with pytest.raises(BadCommand, match="which the command may write"):
        line("echo", "{text}", paths=Paths(read=(f"{tmp_path}/real/in",), write=(f"{tmp_path}/real",)))
    with pytest.raises(BadCommand, match="which the command may write"):
        line("echo", "{text}", paths=Paths(write=(f"{tmp_path}/real", f"{tmp_path}/real/in")))
    line("echo", "{text}", paths=Paths(read=(f"{tmp_path}/real",), write=(f"{tmp_path}/real/out", f"{tmp_path}/real2")))


def test_paths_without_landlock_are_refused_and_not_ignored(monkeypatch):
    monkeypatch.setattr(command_room, "landlock_abi", lambda: 0)
    with pytest.raises(BadCommand, match="Landlock"):
        line("echo", "{text}", paths=Paths())


def test_a_program_with_a_slash_is_looked_for_where_it_runs(tmp_path):
    program = tmp_path / "tool.sh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert line("./tool.sh", "{text}", cwd=str(tmp_path))._command({"text": ""}).program == str(program)


def test_its_path_is_searched_and_not_ours(tmp_path):
    program = tmp_path / "only-there"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    with pytest.raises(BadCommand):
        line("only-there", "{text}")
    assert line("only-there", "{text}", env={"PATH": str(tmp_path)})._command({"text": ""}).program == str(program)


# Running ------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize(
    "value",
    ["$(id)", "`id`", "; id", "| id", "&& id", "$HOME", "*", "~", "a  b", "'\"\\", "\n", "> /tmp/x", "%s", "é漢"],
)
async def test_what_means_something_to_a_shell_means_nothing_here(value):
    outcome = await outcome_of(*script(SHOW, "{text}"), arguments={"text": value})
    assert outcome == Returned(json.dumps([value]))


@pytest.mark.anyio
async def test_it_sees_nothing_of_our_environment_but_what_it_is_given(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("TZ", "Europe/Oslo")
    outcome = await outcome_of("env", env={"TOKEN": "t"})
    assert isinstance(outcome, Returned)
    assert dict(each.split("=", 1) for each in outcome.text.splitlines()) == {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "TZ": "Europe/Oslo",
        "TOKEN": "t",
    }


@pytest.mark.anyio
async def test_a_failure_says_its_code_and_the_end_of_its_errors():
    outcome = await outcome_of(*script("import sys; sys.stderr.write('ä' * 9000 + 'no such city'); sys.exit(3)"))
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.RAISED
    assert outcome.text.startswith("It failed with exit code 3: ää")
    assert outcome.text.endswith("no such city")
    assert len(outcome.text) < 3000


@pytest.mark.anyio
async def test_a_failure_without_errors_shows_what_it_wrote():
    outcome = await outcome_of(*script("print('usage: it [city]'); raise SystemExit(2)"))
    assert outcome == Failed("It failed with exit code 2: usage: it [city]")


@pytest.mark.anyio
async def test_a_failure_without_output_is_still_a_failure():
    assert await outcome_of("false") == Failed("It failed with exit code 1.")


@pytest.mark.anyio
async def test_a_code_that_is_fine_is_no_failure():
    assert await outcome_of("false", ok_codes=(0, 1)) == Returned("")


@pytest.mark.anyio
async def test_one_that_went_well_and_wrote_only_errors_is_read_there():
    assert await outcome_of(*script("import sys; sys.stderr.write('switched')")) == Returned("switched")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("text", "limits", "words"),
    [
        ("while True: pass", ProcessLimits(cpu_seconds=1), "Stopped: it used more than 1 s of processor time."),
        ("import os; os.abort()", ProcessLimits(), "It was ended by SIGABRT."),
        (
            "import os, signal\nfor _ in range(60):\n  if os.fork() == 0: signal.pause()\nsignal.pause()",
            ProcessLimits(processes=5),
            "Stopped: it started more than 5 processes.",
        ),
        (
            "import sys\nwhile True: sys.stderr.write('x' * 65536)",
            ProcessLimits(),
            "Stopped: it wrote errors without end: x",
        ),
    ],
)
async def test_what_stopped_it_is_reported(text, limits, words):
    outcome = await outcome_of(*script(text), limits=limits)
    assert isinstance(outcome, Failed)
    assert outcome.text.startswith(words)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("written", "read"),
    [
        (b"one, two, caf\xe9, four", "one, two, caf\ufffd, four"),
        (bytes(range(128, 256)), "[application/octet-stream, 128 bytes, not shown]"),
        (b"a\0b", "[application/octet-stream, 3 bytes, not shown]"),
    ],
)
async def test_text_with_a_few_bytes_that_are_none_is_text(written, read):
    assert await outcome_of(*script(f"import sys; sys.stdout.buffer.write({written!r})")) == Returned(read)


@pytest.mark.anyio
async def test_a_picture_is_shown():
    outcome = await outcome_of(*script(f"import sys; sys.stdout.buffer.write({PIXEL!r})"))
    assert outcome == Returned("", images=(Image(base64.b64encode(PIXEL).decode(), "image/png"),))


@pytest.mark.anyio
async def test_half_a_picture_is_described():
    outcome = await outcome_of(*script(f"import sys; sys.stdout.buffer.write({PIXEL!r} * 2000)"), max_bytes=5000)
    assert isinstance(outcome, Returned)
    assert outcome.images == ()
    assert outcome.text.startswith("[image/png, ")


@pytest.mark.anyio
async def test_a_bad_argument_is_reported_to_the_model_and_nothing_runs():
    outcome = await outcome_of("touch", "{file}", arguments={"file": "--help"})
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.NOT_RUN
    assert "`file`" in outcome.text


@pytest.mark.anyio
async def test_a_program_that_has_gone_since_the_start_is_unavailable(tmp_path):
    program = tmp_path / "tool"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    processes = CommandProcesses()
    tool = line("./tool", processes=processes, cwd=str(tmp_path), properties=())
    program.unlink()
    outcome = await tool.execute(ready("it"), an_occasion())
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.UNAVAILABLE
    await processes.close()
