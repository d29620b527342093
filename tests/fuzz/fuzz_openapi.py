"""An OpenAPI document: tools with schemas that can be sent, or `BadDocument`."""

import json

from callgate.tools.kinds.openapi.document import BadDocument
from callgate.tools.kinds.openapi.reading import read_document
from callgate.tools.kinds.openapi.source import Api, OpenApiSource

SOURCE = OpenApiSource("api", Api(base_url="http://127.0.0.1:1", auth={}), "http://127.0.0.1:1/openapi.json")


def run(data: bytes) -> None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return  # said of the file or of the answer before a document is made of it
    try:
        reading = read_document(text, SOURCE.terms())
        SOURCE._take((*reading.operations, *reading.left_out))
    except BadDocument as error:
        assert str(error)  # noqa: PT017 - the error is one of two good ends
        return
    assert SOURCE.tools()
    for tool in SOURCE.tools():
        assert tool.claimed
        json.dumps(tool.parameters)
    assert all(reason for _, reason in SOURCE.left_out())
