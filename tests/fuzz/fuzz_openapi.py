"""An OpenAPI document: tools with schemas that can be sent, or `BadDocument`."""

import json

from callgate.tools.openapi import Api, OpenApiSource
from callgate.tools.openapi_document import BadDocument

SOURCE = OpenApiSource("api", Api(base_url="http://127.0.0.1:1", auth={}), "http://127.0.0.1:1/openapi.json")


def run(data: bytes) -> None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return  # said of the file or of the answer before a document is made of it
    try:
        tools, left_out = SOURCE._built(text)
    except BadDocument as error:
        assert str(error)  # noqa: PT017 - the error is one of two good ends
        return
    assert tools
    for tool in tools:
        assert tool.wanted
        json.dumps(tool.parameters)
    assert all(reason for _, reason in left_out)
