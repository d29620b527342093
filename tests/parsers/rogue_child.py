"""A pool whose children answer what they like."""

from typing import Any

import msgspec

from callgate.parsers.jobs import MAX_ANSWER
from callgate.parsers.pool import ParserPool
from callgate.untrusted.messagepack import untrusted


class RogueChild(ParserPool):
    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self._answer = answer

    async def run(self, job: Any, payload: Any, source: str) -> Any:
        return self.run_at_once(job, payload, source)

    def run_at_once(self, job: Any, payload: Any, source: str) -> Any:
        return untrusted(self._answer, job.answer)


ROGUE_JSON = {
    "no JSON": b"nothing",
    "no text": b'"\xff\xfe"',
    "of another type": b"17",
    "too deep": b"[" * 100_000,
    "too many values": b"[" + b"{}," * 300_000 + b"{}]",
    "too long": bytes(MAX_ANSWER + 1),
}
ROGUE_PACK = {
    "no msgpack": b"\xc1",
    "no text": b"\x82\xa2\xff\xfe\xc0",
    "of another type": b"\x90",
    "too deep": b"\x82\xaaoperations" + b"\x91" * 100_000,
    "too many values": msgspec.msgpack.encode({"operations": [b""] * 300_000, "left_out": []}),
    "deep within one": msgspec.msgpack.encode({"operations": [b"\x91" * 100_000], "left_out": []}),
    "many within one": msgspec.msgpack.encode(
        {"operations": [b"\xdd\x00\x10\x00\x00" + bytes(1 << 20)], "left_out": []}
    ),
    "too many operations": msgspec.msgpack.encode({"operations": [b""] * 2_001, "left_out": []}),
    "too long": bytes(MAX_ANSWER + 1),
}
