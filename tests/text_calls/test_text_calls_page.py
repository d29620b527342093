"""docs/text-calls.md says what asking in a prompt costs; what it says has to be so today."""

import re
from pathlib import Path

from bench.prompt_tokens import logged
from callgate.text_calls.families import _FAMILIES, FALLBACK, known_format
from callgate.text_calls.prompts import FORMATS

PAGE = (Path(__file__).parents[2] / "docs" / "text-calls.md").read_text()
FAMILY_ROW = re.compile(r"^\| ([^|`]+) \| `(\w+)` \|$", re.MULTILINE)
ROW = re.compile(r"^\| `(\w+)` \| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)


def test_every_format_is_in_the_table_with_what_would_be_logged() -> None:
    assert {format: int(of_three) for format, _, _, of_three in ROW.findall(PAGE)} == {
        format: logged(format) for format in FORMATS
    }


def test_the_estimate_is_within_a_third_of_what_was_counted() -> None:
    for format, fixed, each, of_three in ROW.findall(PAGE):
        counted = int(fixed) + 3 * int(each)
        assert abs(int(of_three) - counted) < counted / 3, format


def test_every_family_uses_the_format_of_the_table_and_no_format_is_missing() -> None:
    rows = [(name.strip(), format) for names, format in FAMILY_ROW.findall(PAGE) for name in names.split(",")]
    assert {name: known_format(name) for name, _ in rows} == dict(rows)
    assert {format for _, format in rows} == {format for _, format in _FAMILIES}


def test_a_format_that_is_no_familys_is_named_on_the_page() -> None:
    assert all(f"`{format}`" in PAGE for format in FORMATS)


def test_the_fallback_is_named() -> None:
    assert f"`{FALLBACK}` where the family is not known" in PAGE
