"""Requests that are no chats: whose provider can be asked, and forms with another model's name in them."""

from typing import Any

import pytest

from callgate.conversation.errors import ChatError
from callgate.http.client import HttpClient
from callgate.models.proxied_routes import Form, provider_proxy_for
from callgate.models.resolve import ModelConfig
from callgate.policy.litellm_settings import without_settings

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


def test_a_form_is_rewritten_with_the_providers_name_for_the_model() -> None:
    form = Form.read(FILE + part("api_key", b"x") + part("model", b"mine", "\r\nContent-Type: text/plain") + END, FORM)
    content_type, body = form.written_for("theirs/x", without_settings(dict.fromkeys(form.names())))
    assert form.model == "mine"
    written = Form.read(body, content_type)
    assert [(each.name, each.filename, each.content_type) for each in written.parts] == [
        ("file", b"a.wav", b"audio/wav"),
        ("model", None, b"text/plain"),
    ]
    assert [each.value for each in written.parts] == [b'--X\r\n\r\nname="model"\r\n\r\n\x00\xff', b"theirs/x"]


@pytest.mark.parametrize(
    "form",
    [
        part("model", b"cheap") + part("model", b"dear") + END,
        part("model", b"cheap") + part("MODEL", b"dear") + END,
        part("model", b"cheap", '; filename="m"') + END,
        b"a preamble\r\n" + part("model", b"mine") + END,
        part("model", b"mine") + END + part("model", b"other") + END,
        part("model", b"mine"),
        part("model", b"mine") + b"--XX",
        part("model", b"mine", "; name=other") + END,
        part("model", b"mine", "; name*=UTF-8''other") + END,
        part("model", b"mine", '\r\nContent-Disposition: form-data; name="other"') + END,
        part("model", b"mine", "\r\nContent-Transfer-Encoding: base64") + END,
        part("model", b"mine", "\r\n folded: x") + END,
        part("mo\\del", b"mine") + END,
        b'--XX\nContent-Disposition: form-data; name="model"\n\nmine\n--XX--\n',
    ],
)
def test_what_two_readers_could_take_differently_is_refused(form: bytes) -> None:
    with pytest.raises(ChatError) as caught:
        Form.read(form, FORM)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "content_type",
    [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=XX; boundary=YY",
        "multipart/form-data; boundary=XX; charset=utf-7",
        "multipart/form-data; x=1; boundary=XX",
    ],
)
def test_a_form_has_one_boundary(content_type: str) -> None:
    with pytest.raises(ChatError):
        Form.read(part("model", b"mine") + END, content_type)


def test_the_model_of_a_form_without_one_is_none() -> None:
    assert Form.read(FILE + END, FORM).model is None


def test_a_form_of_many_parts_is_read_in_linear_time_or_refused() -> None:
    with pytest.raises(ChatError, match="more than"):
        Form.read(part("a", b"") * 100_000 + END, FORM)


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
    passage = await provider_proxy_for(ModelConfig("m", params, lane=lane), client)
    await client.close()
    assert (passage and passage.endpoint.url) == url


@pytest.mark.anyio
@pytest.mark.leaves("litellm", why="litellm keeps its thread for logging")
async def test_there_is_none_where_it_does_not() -> None:
    client = HttpClient()
    entry = ModelConfig("m", {"model": "anthropic/claude-sonnet-4-5", "api_key": "sk-ant-x"})
    assert await provider_proxy_for(entry, client) is None
    await client.close()
