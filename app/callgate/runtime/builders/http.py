"""Builds the path values that HTTP and OpenAPI tools share."""

from typing import Literal

from callgate.tools.http_endpoint import PathValues


def path_values(multi_segment: bool | Literal["encoded"]) -> PathValues:
    match multi_segment:
        case "encoded":
            return PathValues.ENCODED
        case True:
            return PathValues.SEGMENTS
        case _:
            return PathValues.ONE_SEGMENT
