"""Which calls wait for approval, and how."""

import base64
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, SecretStr, field_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from callgate.config.schema.guards import ADMITS, WIDENS_OFF, WIDENS_ON, WidensTo
from callgate.config.schema.values import Count, Globs, Seconds, Section, Switch, WebAddress

SECRET_BYTES = 24
"""The least length of a secret by Standard Webhooks."""


class ApprovalLists(Section):
    """Which tools wait for approval. Of the patterns that name a tool, the one that spells out most counts."""

    always: Globs = ()
    """Tools whose calls wait, as names or globs; `safety:destructive` names all tools of that class."""
    never: Globs = ()
    """Tools whose calls do not wait, in the same way."""


class _OrOneWord:
    """Allows `never` and `always` instead of lists, for all tools."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._lists, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"enum": ["never", "always"]}, handler(schema)]}

    def _lists(self, value: Any) -> Any:
        if value in ("never", "always"):
            return {value: ["*"]}
        if not isinstance(value, (Mapping, ApprovalLists)):
            message = "should be `never`, `always`, or a mapping with lists of names under `never` and `always`"
            raise PydanticCustomError("approval", message)
        return value


RequireApproval: TypeAlias = Annotated[ApprovalLists, _OrOneWord()]


class WebhookSection(Section):
    """Where word is sent of each call that begins to wait."""

    url: Annotated[WebAddress, Field(repr=False)]
    """Gets a POST for each, as Standard Webhooks describes it. Any answer from 200 to 299 takes it; else it is sent again while
    the call waits, ten times at most."""
    secret: SecretStr
    """What the message is signed with (HMAC-SHA256); `whsec_` begins one in base64."""
    arguments: Annotated[Switch, WIDENS_ON] = False
    """Send the arguments of the call too, known secrets masked. Their hash is always there."""
    allow_private: Annotated[Switch, WIDENS_ON] = False
    """Allow private and loopback addresses, which are refused otherwise."""
    allow_hosts: Annotated[Globs, ADMITS] = ()
    """Hosts, as names or globs, whose private addresses may be reached all the same; networks are allowed whole."""

    @field_validator("secret")
    @classmethod
    def _is_long_enough(cls, secret: SecretStr) -> SecretStr:
        text = secret.get_secret_value()
        try:
            if text.startswith("whsec_"):
                size = len(base64.b64decode(text[6:], validate=True))
            else:
                size = len(text.encode())
        except ValueError:
            raise PydanticCustomError("secret", "should be base64 after `whsec_`") from None
        if size < SECRET_BYTES:
            raise PydanticCustomError("secret", "should have 24 bytes or more, such as `openssl rand -hex 24` gives")
        return secret


class Approvals(Section):
    """How calls wait for approval."""

    keyless: Annotated[
        Literal["nobody", "this_machine", "everybody"], WidensTo(("nobody", "this_machine", "everybody"))
    ] = "this_machine"
    """Who may decide about calls where no key is required. `this_machine`: whoever asks, where nobody else can, on loopback; the
    operator alone at his machine needs no key for his first tool. `everybody`: also on an address that others reach."""
    input: Annotated[Literal["approvers", "own"], WidensTo(("approvers", "own"))] = "approvers"
    """Who may answer what a tool asks while it runs, by `elicitation` of its server: whoever may decide about calls. `own`: a key also for
    its own requests, since the question is often for their user."""
    timeout_seconds: Seconds = 300.0
    """How long a call waits; then it is not run, and the model gets that as its result. `limits.request_seconds` goes on meanwhile."""
    max_waiting: Count = 100
    """Calls that may wait at the same time, a half of them of one key; further ones are refused at once."""
    demand_hash: Annotated[Switch, WIDENS_OFF] = False
    """Take a decision only together with the hash of the arguments it is about."""
    webhook: WebhookSection | None = None
    """Where word is sent of each call that begins to wait. Nowhere if left out."""
