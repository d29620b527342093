"""Errors for the client, with status and code. Everything else is a value for the model or a crash for us."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from callgate.conversation.events import ModelEvent


class ChatError(Exception):
    """An error with what OpenAI's error envelope needs. `detail` is for our logs and is never sent."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        detail: str | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.detail = detail
        self.retryable = retryable
        """The same or another model may be asked again, as long as nothing was sent to the client yet."""
        self.report: Mapping[str, Any] | None = None
        """What a key that may see runs is told beside it, in a field of its own: clients retry by the words of a message."""

    def fields(self) -> dict[str, Any]:
        """Return the fields of the error in OpenAI's format."""
        fields = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return fields | self.report_field()

    def report_field(self) -> dict[str, Any]:
        """Return the field that has the report, if there is one."""
        if self.report is None:
            return {}
        return {"x_callgate": self.report}

    def envelope(self) -> dict[str, Any]:
        return {"error": self.fields()}


class AnswerTooLarge(ChatError):
    """A model's answer exceeds a limit. Not retryable: another answer would exceed it as well."""

    def __init__(self, limit: str) -> None:
        super().__init__(
            502, f"The model's answer has more than {limit}.", type="server_error", code="answer_too_large"
        )


class BrokenOff(Exception):
    """The body of a model's answer ended before its end mark: closed early, or by a transport error."""

    def __init__(self, how: str, transport_error: bool) -> None:
        super().__init__(how)
        self.transport_error = transport_error


class SeparateChoices(Exception):
    """A model was asked for several choices at once and can only answer them one by one. Nothing was emitted.

    `answers` holds the events of each choice where one body had them all; otherwise each choice takes a request.
    """

    def __init__(self, answers: Sequence[Sequence["ModelEvent"]] = ()) -> None:
        super().__init__("the choices come one by one")
        self.answers = answers
