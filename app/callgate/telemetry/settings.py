"""Where spans of requests are sent."""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field, SecretStr

from callgate.config.schema.guards import WidensTo
from callgate.config.schema.values import NO_BOOLEAN, Seconds, Section, Switch, WebAddress

PATH = "/v1/traces"


def _with_path(address: str) -> str:
    scheme, _, place = address.partition("://")
    host, slash, path = place.partition("/")
    if slash and path:
        return address
    return f"{scheme}://{host}{PATH}"


Shown: TypeAlias = Literal["no_content", "span_only", "event_only", "span_and_event"]

CONTENT = WidensTo(("no_content", "span_only", "event_only", "span_and_event"))


class Traces(Section):
    """OpenTelemetry: a span for each request, turn of a model, attempt and tool call, sent to a collector by OTLP over HTTP. What
    is not said here is taken from the standard `OTEL_*` variables."""

    endpoint: Annotated[Annotated[WebAddress, AfterValidator(_with_path)] | None, Field(repr=False)] = None
    """Where to send them, such as `http://localhost:4318`; `/v1/traces` is added where no path is given. Nowhere if left out."""
    headers: Mapping[str, SecretStr] = Field(default_factory=dict)
    """Headers to send with them."""
    sample: Annotated[float, Field(ge=0, le=1), NO_BOOLEAN] = 1.0
    """The share of requests that are traced, of those that come without a `traceparent`."""
    follow_parent: Switch = True
    """A request that comes with a `traceparent` is traced if that says so; `off` has `sample` decide of all."""
    timeout_seconds: Seconds = 10.0
    """How long one batch may take to be sent."""
    compression: Literal["none", "gzip"] = "none"
    """How batches are sent."""
    service_name: Annotated[str, Field(min_length=1)] = "callgate"
    """The resource attribute `service.name` of the spans."""
    resource: Mapping[str, str] = Field(default_factory=dict)
    """Further resource attributes."""
    content: Annotated[Shown, CONTENT] = "no_content"
    """Where texts are added: in attributes of the spans, in their events, or in both. Only for runs whose texts are kept
    (`record.content`)."""
    latest_names: Switch = False
    """Name attributes as conventions for generative AI after 1.41 do."""
