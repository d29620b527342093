import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.tools.builtin import calculate, calculator, clock
from callgate.tools.executor import Safety
from callgate.tools.kinds.python.authoring import ToolError
from callgate.tools.kinds.python.function import python_tool
from callgate.tools.kinds.python.threads import ThreadPool
from tests.tools.executor_kinds import an_occasion, ready

TOOLS = {tool.name: tool for tool in (python_tool(each, ThreadPool()) for each in (clock, calculator))}


def test_both_only_read():
    assert {name: tool.policy.safety for name, tool in TOOLS.items()} == {
        "clock": Safety.READ_ONLY,
        "calculator": Safety.READ_ONLY,
    }


@pytest.mark.parametrize(
    "expression, value",
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("-2 ** 2", -4),
        ("2 ** 3 ** 2", 512),
        ("7 // 2", 3),
        ("-7 % 3", 2),
        ("7 / 2", 3.5),
        ("2 ** -1", 0.5),
        ("1e3", 1000.0),
        ("sqrt(16)", 4.0),
        ("round(2.567, 2)", 2.57),
        ("round(2.5)", 2),
        ("min(3, 1, 2) + max(1, 2)", 3),
        ("sin(pi / 2)", 1.0),
        ("abs(-3)", 3),
        (" 1 ", 1),
        ("2 ** 4000", 2**4000),
        ("factorial(20)", math.factorial(20)),
    ],
)
def test_arithmetic(expression, value):
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "1 +",
        "2 ** 5000",
        "9 ** 9 ** 9",
        "10 ** 400 * 1.0",
        "1e400",
        "(-1) ** 0.5",
        "1 / 0",
        "0 ** -1",
        "sqrt(-1)",
        "factorial(501)",
        "factorial(2.5)",
        "round(1, 9999999999)",
        "min()",
        "sqrt(1, 2)",
        "True + 1",
        "1j",
        "'a' * 3",
        "x",
        "__import__('os')",
        "(1).__class__",
        "[1][0]",
        "lambda: 1",
        "1 if 1 else 2",
        "1 < 2",
        "1 << 99999999",
        "sqrt(x=1)",
        "sqrt.__call__(1)",
        "max(*(1,))",
        "a := 1",
        "f'{1}'",
        "(" * 300 + "1" + ")" * 300,
        "-" * 400 + "1",
        "-" * 400 + "x",
        "1" * 501,
        "\0",
    ],
)
def test_everything_else_is_refused_with_a_message_for_the_model(expression):
    with pytest.raises(ToolError):
        calculate(expression)


@given(st.text(st.sampled_from("0123456789+-*/%().e ,sqrtminx"), max_size=60))
def test_any_text_gives_a_number_or_a_refusal(text):
    try:
        value = calculate(text)
    except ToolError:
        return
    assert isinstance(value, int | float)


@pytest.mark.anyio
async def test_the_clock_returns_the_time_of_a_zone():
    outcome = await TOOLS["clock"].executor.execute(ready("clock", timezone="Asia/Tokyo"), an_occasion())
    assert '+09:00"' in outcome.text
    assert '"timezone":"Asia/Tokyo"' in outcome.text


@pytest.mark.anyio
@pytest.mark.parametrize("zone", ["Mars/Olympus", "../../etc/passwd", "/etc/passwd", "", "Europe", "a\0b"])
async def test_a_zone_that_is_none_is_named(zone):
    outcome = await TOOLS["clock"].executor.execute(ready("clock", timezone=zone), an_occasion())
    assert "no time zone" in outcome.text


@pytest.mark.anyio
async def test_the_calculator_answers_with_the_number():
    outcome = await TOOLS["calculator"].executor.execute(ready("calculator", expression="6*7"), an_occasion())
    assert outcome.text == "42"
