"""What a durable run stores of an answer before the client is sent its end."""

from callgate.api.answers import BodyWriter
from callgate.api.errors import encode
from callgate.api.run_ports import KeptRun
from callgate.config import redaction
from callgate.conversation.events import ChatEnded


class LastTurnKeeper:
    """Stores the last turn of a durable run, so that a process that resumes the run gives the same answer."""

    copy = None

    def __init__(self, run: KeptRun) -> None:
        self._run = run

    async def store(self, choice: int, ended: ChatEnded) -> None:
        await self._run.store_turns(choice)


class WholeStreamKeeper:
    """Gives a durable run its streamed answer in one piece."""

    def __init__(self, run: KeptRun, body: BodyWriter, choices: int) -> None:
        self._run = run
        self.copy = body
        self._unfinished = choices

    async def store(self, choice: int, ended: ChatEnded) -> None:
        self._unfinished -= 1
        if not self._unfinished:
            self._run.whole_body = redaction.current.data(encode(self.copy.body()))
