import asyncio
import contextvars
import io
import json
import logging
import re
import sys
import warnings
from datetime import UTC, datetime
from functools import partial

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from callgate.config import redaction
from callgate.config.redaction import MASK, Redactor
from callgate.telemetry import logs
from callgate.telemetry.logs import Log, configure, set_log_ids, write_all

SECRET = 'planted "secret"\\with odd\tletters €'


pytestmark = pytest.mark.usefixtures("logging_as_it_was")


@pytest.fixture
def lines():
    """Configures logging as it is in production, and gives what was written so far, line by line."""
    stream = io.StringIO()
    configure(Redactor([SECRET]), format="json", stream=stream)
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_document_with_time_level_logger_and_ids(lines):
    with structlog.contextvars.bound_contextvars(request_id="req_1", run_id="run_1"):
        structlog.get_logger("callgate.test").info("something happened", count=2)

    [line] = lines()
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "something happened",
        "level": "info",
        "logger": "callgate.test",
        "request_id": "req_1",
        "run_id": "run_1",
        "count": 2,
    }


def test_a_line_begins_with_when_how_bad_and_what(lines):
    structlog.get_logger("callgate.test").info("something happened", count=2)
    logging.getLogger("somebody.else").warning("something else")

    assert [list(line)[:4] for line in lines()] == [["timestamp", "level", "event", "logger"]] * 2


def test_lines_of_other_peoples_loggers_have_the_same_shape_and_ids(lines):
    with structlog.contextvars.bound_contextvars(request_id="req_1"):
        logging.getLogger("somebody.else").warning("%s of %d", "two", 3)

    [line] = lines()
    del line["timestamp"]
    assert line == {"event": "two of 3", "level": "warning", "logger": "somebody.else", "request_id": "req_1"}


def _in_the_event(log):
    log.error("failed: %s", SECRET)


def _in_an_exception(log):
    try:
        raise ValueError(SECRET)
    except ValueError:
        log.exception("failed")


def _in_a_chained_exception(log):
    try:
        try:
            raise KeyError(SECRET)
        except KeyError as cause:
            raise RuntimeError("outer") from cause
    except RuntimeError:
        log.exception("failed")


def _in_an_object(log):
    log.error("failed: %r", {"nested": [SECRET]})


@pytest.mark.parametrize("say", [_in_the_event, _in_an_exception, _in_a_chained_exception, _in_an_object])
@pytest.mark.parametrize("get_logger", [structlog.get_logger, logging.getLogger])
@pytest.mark.parametrize("format", ["json", "console"])
def test_a_secret_is_masked_in_every_logger_and_format(say, get_logger, format):
    stream = io.StringIO()
    configure(Redactor([SECRET]), format=format, stream=stream)

    say(get_logger("callgate.test"))

    written = stream.getvalue()
    assert MASK in written
    for form in (SECRET, json.dumps(SECRET)[1:-1], repr(SECRET)[1:-1], "odd\tletters", "planted"):
        assert form not in written


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    # The snowman keeps a generated secret from being a word that the line holds anyway, such as `exception`.
    secret=st.text(st.characters(exclude_categories=["Cs"]), min_size=7).map(lambda text: "☃" + text),
    before=st.text(max_size=10),
    format=st.sampled_from(["json", "console"]),
)
def test_no_planted_secret_survives_in_arguments_fields_or_exceptions(secret, before, format):
    stream = io.StringIO()
    configure(Redactor([secret]), format=format, stream=stream)
    log = structlog.get_logger("t")

    logging.getLogger("t").error("%s", before + secret)
    log.error("e", field={"deep": [before + secret, secret.encode()]}, other=ValueError(secret))
    try:
        raise ValueError(before + secret)
    except ValueError:
        log.exception("failed")

    assert stream.getvalue().count(MASK) >= 4
    assert [form for form in (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1]) if form in stream.getvalue()] == []


def test_a_record_that_does_not_fit_its_arguments_is_logged_without_them(lines, capsys, monkeypatch):
    root = logging.getLogger()
    ours = [handler for handler in root.handlers if type(handler).__module__ == "callgate.telemetry.logs"]
    monkeypatch.setattr(root, "handlers", ours)  # the test runner's own handlers raise here

    logging.getLogger("library").error("%d", SECRET)

    [line] = lines()
    assert line["event"] == "log_record_malformed"
    assert "test_logs.py:" in line["at"]
    assert "planted" not in json.dumps(line) + "".join(capsys.readouterr())


def test_values_that_json_cannot_hold_do_not_lose_the_line(lines):
    structlog.get_logger().info(
        "odd", big=2**70, half="\ud800", thing=object, data=b"\xff", when={1: {2}}, no=float("nan")
    )

    [line] = lines()
    assert line["big"] == 2**70
    assert line["half"] == "\\ud800"
    assert line["when"] == {"1": [2]}


def test_a_long_value_is_cut_after_masking(lines):
    structlog.get_logger().info("long", text="x" * 16_380 + SECRET + "y" * 100_000)

    [line] = lines()
    assert len(line["text"]) < 17_000
    assert "more characters" in line["text"]
    assert "plan" not in line["text"]


def test_what_is_below_the_level_is_not_written_and_the_level_can_change(lines):
    log = structlog.get_logger("callgate.test")
    log.debug("too quiet")
    stream = io.StringIO()
    configure(Redactor(), level="debug", format="json", stream=stream)

    log.debug("written")
    logging.getLogger("library").debug("written too")

    assert lines() == []
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["written", "written too"]


@pytest.mark.parametrize("name", ["httpx", "httpx2", "LiteLLM"])
def test_talkative_libraries_are_logged_only_when_they_warn(name):
    stream = io.StringIO()
    configure(Redactor(), level="debug", format="json", stream=stream)

    logging.getLogger(name).info("messages=[{...}]")
    logging.getLogger(name).warning("trouble")

    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["trouble"]


@pytest.mark.parametrize("name", ["mcp.client.streamable_http", "client"])
def test_the_mcp_sdk_is_not_logged_because_tool_servers_have_lines_of_ours(name):
    stream = io.StringIO()
    configure(Redactor(), level="debug", format="json", stream=stream)

    logging.getLogger(name).error("Error in post_writer")

    assert stream.getvalue() == ""


def test_a_library_that_brings_its_own_handlers_is_written_once(lines):
    own = io.StringIO()
    logging.getLogger("LiteLLM").addHandler(logging.StreamHandler(own))

    logging.getLogger("LiteLLM").warning("once")

    assert [line["event"] for line in lines()] == ["once"]
    assert own.getvalue() == ""


def test_the_servers_access_log_is_off(lines):
    logging.getLogger("uvicorn.access").info("GET / 200")
    logging.getLogger("uvicorn.error").info("started")

    assert [line["event"] for line in lines()] == ["started"]


def test_on_a_console_the_line_of_uvicorn_about_the_start_is_left_out():
    stream = io.StringIO()
    configure(Redactor(), format="console", stream=stream)
    logging.getLogger("uvicorn.error").info("Started server process")
    logging.getLogger("uvicorn.error").warning("something is odd")

    assert "Started" not in stream.getvalue()
    assert "something is odd" in stream.getvalue()


def test_warnings_become_log_lines(lines):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=False)
        logging.captureWarnings(capture=True)
        warnings.warn("old way", DeprecationWarning, stacklevel=1)

    [line] = lines()
    assert line["logger"] == "py.warnings"
    assert "old way" in line["event"]


def test_on_a_console_a_value_can_neither_forge_a_line_nor_colour_the_terminal():
    stream = io.StringIO()
    configure(Redactor(), format="console", stream=stream)

    structlog.get_logger("t").info("hello\n2030-01-01 [info] forged \x1b[31m", more="a\nb\x1b[0m")

    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()


def test_auto_is_json_without_a_terminal(lines):
    stream = io.StringIO()
    configure(Redactor(), stream=stream)

    structlog.get_logger().info("hello")

    assert json.loads(stream.getvalue())["event"] == "hello"


def test_without_a_stream_lines_go_to_what_standard_error_is_at_that_moment(capsys):
    configure(Redactor(), format="json")
    log = structlog.get_logger()
    replaced, sys.stderr = sys.stderr, io.StringIO()
    try:
        log.info("elsewhere")
        elsewhere = sys.stderr.getvalue()
    finally:
        sys.stderr = replaced
    log.info("here")

    assert json.loads(elsewhere)["event"] == "elsewhere"
    assert json.loads(capsys.readouterr().err)["event"] == "here"


def test_the_ids_of_a_request_stand_on_every_line_written_on_its_behalf(lines):
    def on_behalf_of_a_request() -> None:
        ids = {"request_id": "req_1"}
        set_log_ids(ids)
        logging.getLogger("somebody.else").warning("before")
        ids["run_id"] = "run_1"
        structlog.get_logger("callgate.test").info("after")
        Log("callgate.test").info("quickly")

    contextvars.copy_context().run(on_behalf_of_a_request)
    structlog.get_logger("callgate.test").info("for itself")

    line_ids = [(line.get("request_id"), line.get("run_id")) for line in lines()]
    assert line_ids == [("req_1", None), ("req_1", "run_1"), ("req_1", "run_1"), (None, None)]


@pytest.mark.anyio
async def test_lines_of_all_writers_keep_their_order_and_none_waits_long(lines):
    quick, slow = Log("callgate.test"), structlog.get_logger("callgate.test")
    for number in range(20):
        (quick if number % 2 else slow).info("said", number=number)
        await asyncio.sleep(0)

    written = asyncio.Event()
    asyncio.get_running_loop().call_later(0.02, written.set)
    await written.wait()
    assert [line["number"] for line in lines()] == list(range(20))


def test_a_line_that_a_loop_left_behind_is_written_with_the_next(lines):
    async def say(text: str) -> None:
        Log("callgate.test").info(text)

    for text in ("one", "two", "three"):
        asyncio.run(say(text))
    write_all()

    assert [line["event"] for line in lines()] == ["one", "two", "three"]


def test_a_secret_is_masked_from_the_moment_that_it_is_known_whatever_was_written_before():
    stream, redactor = io.StringIO(), Redactor()
    configure(redactor, format="json", stream=stream)
    said = {"status": 200, "ms": 1.5, "stream": False, "caller": None, "model": "a-secret-later", "names": ["a", "b"]}
    for _ in range(3):
        Log("callgate.test").info("asked", **said)
    redactor.add("a-secret-later")
    Log("callgate.test").info("asked", **said, api_key="short")

    *before, after = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert all(line.items() >= said.items() for line in before)
    assert after.items() >= {**said, "model": MASK, "api_key": MASK}.items()


def test_warnings_and_errors_are_counted_by_their_names_and_nothing_that_others_wrote(lines):
    before = logs.TROUBLE.copy()
    Log("callgate.test").warning("quickly_warned", count=1)
    Log("callgate.test").info("quickly_said")
    said = structlog.get_logger("callgate.test")
    said.warning("warned")
    said.error("failed")
    said.info("said")
    said.error("No name at all: 17")
    structlog.get_logger("somebody.else").error("somebodys")
    logging.getLogger("somebody.else").warning("else")
    assert dict(logs.TROUBLE - before) == {
        ("warning", "quickly_warned"): 1,
        ("warning", "warned"): 1,
        ("error", "failed"): 1,
    }
    assert lines()


NUMBERS = st.integers(-2000, 2000) | st.integers() | st.floats() | st.sampled_from([0.125, 1.5, 12345.678])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=12) | st.binary(max_size=12) | st.just(SECRET)
    | st.sampled_from(["x" * (logs._MAX_TEXT + 1), "sk-abcdefghijklmnop", "run_" + "0" * 24, "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
FIELDS = st.dictionaries(
    st.sampled_from(["turn", "tool", "token", "api_key", "run_id", "caller", "path", *logs._PROCESSED - {"event"}])
    | st.text(min_size=1, max_size=8).filter(lambda name: name not in {"event", "self"}),
    VALUES,
    max_size=6,
)


@given(
    calls=st.lists(
        st.tuples(st.sampled_from(["debug", "info", "warning"]), st.text(max_size=12) | st.just(SECRET), FIELDS),
        min_size=1,
        max_size=3,
    ),
    ids=st.sampled_from([{}, {"request_id": "req_" + "1" * 24, "run_id": "run_" + "2" * 24}]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_fast_line_equals_the_plain_one_or_is_none(calls, ids):
    stream = io.StringIO()
    configure(Redactor([SECRET]), level="debug", format="json", stream=stream)
    set_log_ids(ids)
    try:
        for level, event, fields in [*calls, *calls]:  # the second time all that is harmless is known
            assert logs._fast is not None
            fast = logs._fast.line_fast("callgate.test", level, event, dict(fields))
            assert fast is not None or not logs._PROCESSED.isdisjoint(fields)
            if fast is not None:
                getattr(structlog.get_logger("callgate.test"), level)(event, **fields)
                write_all()
                plain = stream.getvalue().split("\n")[-2]
                assert fast.partition(",")[2] == plain.partition(",")[2]  # behind the time
                assert fast.partition(":")[0] == plain.partition(":")[0]
    finally:
        set_log_ids({})


@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from(["debug", "info", "warning"]),
            st.sampled_from(["request", SECRET]),
            FIELDS,
            st.sampled_from([0.1, 3.5, 0.0, 99999.9, 1e-05, 12345678.5, 1e22, float("inf"), 3]),
            FIELDS
            | st.just({"stream": True, "model": "m", "turns": 1})
            | st.just({"stream": 1, "model": "m", "turns": True}),
        ),
        min_size=1,
        max_size=3,
    ),
    ids=st.sampled_from([{}, {"request_id": "req_" + "1" * 24, "run_id": "run_" + "2" * 24}]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_usual_line_made_of_parts_equals_the_one_made_whole_or_is_none(calls, ids):
    configure(Redactor([SECRET]), level="debug", format="json", stream=io.StringIO())
    set_log_ids(ids)
    try:
        for level, event, fields, ms, notes in calls * 3:
            assert logs._fast is not None
            usual = logs._fast.usual_line_fast("callgate.test", level, event, fields, ms, notes)
            whole = logs._fast.line_fast("callgate.test", level, event, {**fields, "ms": ms, **notes})
            if usual is not None:
                assert whole is not None
                assert usual.partition(",")[2] == whole.partition(",")[2]  # behind the time
                assert usual.partition(":")[0] == whole.partition(":")[0]
    finally:
        set_log_ids({})


def test_a_line_like_earlier_ones_is_made_of_parts_until_more_is_masked(lines):
    log = Log("callgate.test")
    fields = {"method": "POST", "path": "/v1/chat/completions", "status": 200, "caller": "ann"}
    set_log_ids({"request_id": "req_1", "run_id": "run_1"})
    try:
        for ms in (1.5, 2.5, 3.5):
            log.write_usual("info", "request", fields, ms, {"model": "m", "stream": False})
        assert logs._fast is not None
        usual = partial(logs._fast.usual_line_fast, "callgate.test", "info", "request", fields, 4.5)
        assert usual({"model": "m", "stream": False}) is not None
        assert usual({"model": "m", "stream": 0}) is None  # equal, and written otherwise
        redaction.current.add("completions")
        assert usual({"model": "m", "stream": False}) is None
        log.write_usual("info", "request", fields, 4.5, {"model": "m", "stream": False})
    finally:
        set_log_ids({})
    write_all()

    first, second, third, masked = lines()
    assert [line.pop("ms") for line in (first, second, third, masked)] == [1.5, 2.5, 3.5, 4.5]
    for line in (first, second, third, masked):
        assert line.pop("timestamp").endswith("Z")
    assert first == second == third
    assert list(first) == [
        "level", "event", "logger", "request_id", "run_id", "method", "path", "status", "caller", "model", "stream"
    ]  # fmt: skip
    assert masked == {**first, "path": f"/v1/chat/{MASK}"}


@given(st.datetimes(timezones=st.just(UTC)) | st.just(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)))
def test_the_time_of_a_fast_line_is_written_as_structlog_writes_it(moment):
    configure(Redactor(), format="json", stream=io.StringIO())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(logs, "_now", moment.astimezone)
        assert logs._fast is not None
        line = logs._fast.line_fast("callgate.test", "info", "said", {})
    assert line is not None
    assert json.loads(line)["timestamp"] == moment.isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize("number", [12345678, 12345678.5, -12345678, 912345678.25, 1234567, 12345.67, 1e22])
def test_a_number_that_is_a_secret_is_masked_in_a_fast_line_as_in_a_plain_one(number):
    stream = io.StringIO()
    configure(Redactor(["12345678"]), format="json", stream=stream)
    for log in (Log("callgate.test"), Log("callgate.test"), structlog.get_logger("callgate.test")):
        log.info("said", ms=number, status=200, known=True)
    write_all()
    fast, again, plain = [line.partition(",")[2] for line in stream.getvalue().splitlines()]
    assert fast == again == plain
    assert (MASK in fast) is ("12345678" in str(number))


def test_lines_of_several_threads_are_all_written_while_the_loop_gathers():
    stream = io.StringIO()
    configure(Redactor(), format="json", stream=stream)

    def say(thread: int) -> None:
        for count in range(50):
            Log("callgate.test").info("said", thread=thread, count=count)

    async def main() -> None:
        threads = [asyncio.to_thread(say, thread) for thread in range(4)]
        say(4)
        await asyncio.gather(*threads)
        say(5)

    asyncio.run(main())
    write_all()
    said = [json.loads(line) for line in stream.getvalue().splitlines()]
    places = [(line["thread"], line["count"]) for line in said if line["event"] == "said"]
    assert sorted(places) == [(thread, count) for thread in range(6) for count in range(50)]


def test_what_structlog_processes_itself_is_left_to_it(lines):
    try:
        raise ValueError("planted")
    except ValueError:
        Log("callgate.test").warning("failed", exc_info=True)
    [line] = lines()
    assert "ValueError: planted" in line["exception"]


class FailingStream(io.StringIO):
    """A stream that nobody reads for a while, as a pipe whose reader has gone."""

    failure: Exception | None = BrokenPipeError(32, "Broken pipe")

    def write(self, text: str) -> int:
        if self.failure is not None:
            raise self.failure
        return super().write(text)


@pytest.mark.anyio
@pytest.mark.parametrize("failure", [BrokenPipeError(32, "Broken pipe"), OSError(28, "No space"), ValueError("closed")])
async def test_lines_that_cannot_be_written_are_counted_and_told_once_they_can(failure):
    stream = FailingStream()
    stream.failure = failure
    configure(Redactor([]), format="json", stream=stream)
    before = logs.lost_lines()
    failed: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))

    for _ in range(3):
        structlog.get_logger("callgate.test").warning("nobody_reads")
        write_all()
    await asyncio.to_thread(structlog.get_logger("callgate.test").warning, "nobody_reads")
    assert logs.lost_lines() - before == 4

    stream.failure = None
    for _ in range(2):
        structlog.get_logger("callgate.test").warning("somebody_reads")
        write_all()
    write_all()
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [event["event"] for event in events] == ["somebody_reads", "log_lines_lost", "somebody_reads"]
    assert events[1]["count"] == 4
    assert not failed


def test_a_warning_of_a_library_in_several_lines_has_its_first_as_its_name():
    logs.configure(Redactor())
    with capture_logs() as lines:
        logging.getLogger("celery.worker").warning("CPendingDeprecationWarning: \nIn Celery 5.1\nwe introduced")
    assert [(line["event"], line["text"]) for line in lines] == [
        ("CPendingDeprecationWarning: ", "In Celery 5.1\nwe introduced")
    ]


def test_a_secret_with_a_line_end_in_it_is_masked_in_a_line_of_a_library():
    redactor = Redactor()
    redactor.add("first half\nsecond half")
    configure(redactor)
    with capture_logs() as lines:
        logging.getLogger("celery.worker").warning("said first half\nsecond half")
    assert [(line["event"], "text" in line) for line in lines] == [(f"said {MASK}", False)]


def console_lines(say, **options):
    stream = io.StringIO()
    configure(Redactor(), format="console", stream=stream, **options)
    contextvars.copy_context().run(say)
    return stream.getvalue().splitlines()


def test_a_console_line_has_the_local_moment_the_event_and_its_fields_in_their_order():
    def say():
        set_log_ids({"request_id": "req_0123456789abcdef01234567", "run_id": "run_89abcdef0123456701234567"})
        structlog.get_logger("callgate.api").info("request", path="/v1/models", ms=3.1, agent="two words")

    [line] = console_lines(say)

    moment, _, rest = line.partition(" ")
    assert rest == "info    request  path=/v1/models ms=3.1 agent='two words' run=…01234567 req=…01234567"
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3}", moment)


def test_a_console_line_fits_the_width_and_goes_on_below():
    def say():
        structlog.get_logger("callgate.api").warning("odd", one="a" * 90, two="b" * 90, three="c" * 300)

    lines = console_lines(say)

    assert max(map(len, lines)) <= 120
    assert "".join(line.strip() for line in lines).count("c") == 300
    assert all(line.startswith("             ") for line in lines[1:])


def test_a_console_names_the_loggers_of_others_alone():
    def say():
        structlog.get_logger("callgate.api").info("ours")
        structlog.get_logger("elsewhere").info("theirs")

    ours, theirs = console_lines(say)

    assert "logger" not in ours
    assert theirs.endswith("logger=elsewhere")


def test_a_console_leaves_out_the_files_of_the_page_as_long_as_they_are_there():
    def say():
        log = structlog.get_logger("callgate.access")
        log.info("request", path="/web/app.js", status=200)
        log.warning("request", path="/web/app.js", status=500)

    [line] = console_lines(say)

    assert "status=500" in line
