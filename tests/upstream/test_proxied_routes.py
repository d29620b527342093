"""Requests that are no chats: whose provider can be asked, and forms with another model's name in them."""

from typing import Any

import pytest

from callgate.http.client import HttpClient
from callgate.upstream.proxied_routes import model_in, passage_for, with_model
from callgate.upstream.resolve import ModelEntry

FORM = "multipart/form-data; boundary=XX"


def part(name: str, value: bytes, more: str = "") -> bytes:
    return (
        b'--XX\r\nContent-Disposition: form-data; name="'
        + name.encode()
        + b'"'
        + more.encode()
        + b"\r\n\r\n"
        + value
        + b"\r\n"
    )


END = b"--XX--\r\n"
FILE = part("file", b'--X\r\n\r\nname="model"\r\n\r\n\x00\xff', '; filename="a.wav"\r\nContent-Type: audio/wav')


@pytest.mark.parametrize(
    "form",
    [
        part("model", b"mine") + FILE + END,
        FILE + part("model", b"mine") + END,
        b"a preamble\r\n" + part("language", b"en") + part("model", b"mine", "\r\nContent-Type: text/plain") + END,
    ],
)
def test_a_forms_model_is_found_and_replaced_and_nothing_else(form: bytes) -> None:
    assert model_in(form, FORM) == "mine"
    assert with_model(form, FORM, "theirs/x") == form.replace(b"\r\n\r\nmine\r\n", b"\r\n\r\ntheirs/x\r\n")


@pytest.mark.parametrize(
    ("form", "content_type"),
    [
        (FILE + END, FORM),
        (part("my_model", b"x") + END, FORM),
        (part("file", b"x", '; filename="model"') + END, FORM),
        (part("model", b"mine"), FORM),
        (part("model", b"mine") + END, "multipart/form-data"),
        (part("model", b"mine") + END, "multipart/form-data; boundary=YY"),
        (b"", FORM),
        (b"--XX", FORM),
    ],
)
def test_a_form_without_one_has_none(form: bytes, content_type: str) -> None:
    assert model_in(form, content_type) is None


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("params", "lane", "url"),
    [
        ({"model": "openai/x", "api_base": "http://h/v1"}, "auto", "http://h/v1/chat/completions"),
        ({"model": "openai/x", "api_base": "http://h/v1"}, "litellm", "http://h/v1/chat/completions"),
        ({"model": "hosted_vllm/a/b", "api_base": "http://h/v1/"}, "direct", "http://h/v1/chat/completions"),
        ({"model": "demo/demo"}, "auto", None),
    ],
)
async def test_there_is_a_way_where_the_provider_speaks_openais_api(params: Any, lane: Any, url: str | None) -> None:
    client = HttpClient()
    passage = await passage_for(ModelEntry("m", params, lane=lane), client)
    await client.close()
    assert (passage and passage.endpoint.url) == url


@pytest.mark.anyio
@pytest.mark.leaves("litellm", why="litellm keeps its thread for logging")
async def test_there_is_none_where_it_does_not() -> None:
    client = HttpClient()
    entry = ModelEntry("m", {"model": "anthropic/claude-sonnet-4-5", "api_key": "sk-ant-x"})
    assert await passage_for(entry, client) is None
    await client.close()
