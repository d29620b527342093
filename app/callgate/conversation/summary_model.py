"""A model whose summaries another model writes."""

from contextlib import AbstractAsyncContextManager

import msgspec
from msgspec.structs import replace

from callgate.conversation.attempts import Attempts
from callgate.conversation.ports import ModelAnswer, ModelRequest, Passthrough, TurnModel


class SummaryModel(msgspec.Struct, eq=False, kw_only=True):
    """Wraps a model: a request for a summary goes to the writer."""

    _model: TurnModel
    _writer: TurnModel

    @property
    def name(self) -> str:
        return self._model.name

    def send(
        self, request: ModelRequest | Passthrough, attempts: Attempts | None = None
    ) -> AbstractAsyncContextManager[ModelAnswer]:
        if isinstance(request, ModelRequest) and request.is_summary:
            # No prompt of the writer is kept that would begin with these tools.
            return self._writer.send(replace(request, withheld=()), attempts)
        return self._model.send(request, attempts)
