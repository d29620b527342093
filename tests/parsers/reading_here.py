"""A pool without children, for tests of what is read and not of where."""

import importlib
from typing import Any

from callgate.parsers.jobs import Job, JobAnswer, Payload, result_of
from callgate.parsers.pool import ParserPool
from callgate.untrusted.messagepack import untrusted


class ReadingHere(ParserPool):
    async def run(self, job: Job[Any], payload: Payload, source: str) -> Any:
        return self.run_at_once(job, payload, source)

    def run_at_once(self, job: Job[Any], payload: Payload, source: str) -> Any:
        self.jobs[job.kind] += 1
        module, _, name = job.function.partition(":")
        result = getattr(importlib.import_module(module), name)(payload.data)
        return untrusted(result_of(JobAnswer("done", result)), job.answer)
