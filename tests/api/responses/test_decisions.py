"""Decisions about calls, where a connection remembers the response longer than the store remembers the decision."""

import msgspec
import pytest

from callgate.api.responses.approvals import decisions_of
from callgate.api.responses.kept import CONNECTION, ConnectionMemory, KeptResponses
from callgate.conversation.errors import ChatError
from callgate.stores.memory import MemoryStore
from callgate.stores.responses import Responses, StoredResponse

pytestmark = pytest.mark.anyio

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
YES = [{"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}]


async def test_a_decision_counts_once_though_the_store_has_forgotten_it() -> None:
    kept, memory = KeptResponses(Responses(MemoryStore(1, 10_000), 60.0)), ConnectionMemory()
    token = CONNECTION.set(memory)
    try:
        history = [{"role": "assistant", "content": None, "tool_calls": [CALL]}]
        memory.keep("resp_1", StoredResponse(msgspec.Raw(b"{}"), [], history, approvals={"mcpr_1": "c1"}))
        assert set(decisions_of(YES, await kept.parent("o", "resp_1")).approved) == {"c1"}
        await kept.decide("o", ["mcpr_1"])
        await kept.decide("o", ["mcpr_2"])  # there is room for one alone
        with pytest.raises(ChatError):
            decisions_of(YES, await kept.parent("o", "resp_1"))
    finally:
        CONNECTION.reset(token)
