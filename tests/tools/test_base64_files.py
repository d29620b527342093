import base64
import json
import time

import pytest

from callgate.tools.base64_files import MIN_LETTERS, without_files
from tests.chaos.scale import held_to

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8
BIG = base64.b64encode(PNG).decode()


@pytest.mark.parametrize("before", ["", '{"data":"', "see ", "\n"])
def test_a_file_is_described_and_what_stands_around_it_stays(before):
    assert without_files(f'{before}{BIG}" and more') == f'{before}[image/png, {len(PNG)} bytes, not shown]" and more'


def test_a_data_uri_goes_by_the_type_it_names():
    text = f"<img src='data:image/svg+xml;charset=utf-8;base64,{BIG}'>"
    assert without_files(text) == f"<img src='[image/svg+xml, {len(PNG)} bytes, not shown]'>"
    assert without_files(f"data:;base64,{BIG}").startswith("[text/plain, ")


def test_slashes_that_json_escaped_are_letters_too():
    data = b"\xff\xd8\xff" * 600
    text = json.dumps({"a": base64.b64encode(data).decode()}).replace("/", "\\/")
    assert without_files(text.replace("\\/", "/")) == f'{{"a": "[image/jpeg, {len(data)} bytes, not shown]"}}'


@pytest.mark.parametrize(
    "text",
    [
        "a" * 5000,
        "deadbeef" * 500,
        "ACGT" * 2000,
        base64.b64encode(PNG[:100]).decode(),
        base64.b64encode(b"just some text " * 200).decode(),
        "iVBORw0KGgo and so on " * 100,
        "data:image/png;base64," + "A" * (MIN_LETTERS - 1) + " " * 600,
    ],
)
def test_what_is_no_file_stays(text):
    assert without_files(text) == text


@pytest.mark.parametrize("text", ["data:" * 200_000, "/9j" * 300_000, ";base64," * 100_000, "data:a/b;a=b" * 80_000])
def test_a_hostile_text_costs_no_more_than_a_long_one(text):
    began = time.process_time()
    without_files(text)
    held_to(5.0, "a hostile text is looked through, of the processor", time.process_time() - began)


@pytest.mark.parametrize(
    "text",
    [
        "iVBORw0KGgo" * 900_000,
        ("/9j/" + "A" * 500 + " ") * 20_000,
        "data:a/" + "b;" * 4_000_000 + ";base64,",
        ";base64," + "data:;base64," * 700_000,
        "data:a/b;base64," + "a\\/" * 3_000_000,
        "[" * 10_000_000,
    ],
)
def test_the_worst_texts_are_read_in_no_time(text):
    began = time.process_time()
    without_files(text)
    held_to(1.5, "the worst texts are looked through, of the processor", time.process_time() - began)
