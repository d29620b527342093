"""What the config says that keys and groups may, as the callers that they become."""

from typing import Any

from callgate.access.building import caller_of_group, key_entry
from callgate.access.keys import caller_of, mint_key
from callgate.access.oidc.settings import Group
from callgate.access.settings import Key, RateLimits, Rights
from callgate.callers.caller import Caller
from callgate.calls.search_setting import SearchSetting

SAID: dict[str, Any] = {
    "models": ["a", "b-*"],
    "tools": ["c", "d/*"],
    "approve": True,
    "admin": True,
    "see": "own",
    "events": "openwebui",
    "usage": "last_turn",
    "offer": "with_client_tools",
    "tool_search": {"mode": "on"},
    "client_mcp": {"hosts": ["mcp.example.com"]},
    "requests_per_minute": 3,
    "tokens_per_minute": 4,
    "parallel": 5,
    "budget_per_day": 6,
    "budget_per_month": 7,
}
ELSEWHERE = {"responses"}
"""Asked for in the config itself, by the name of the key or the group."""


def test_a_key_and_a_group_that_say_the_same_become_the_same_caller() -> None:
    assert SAID.keys() == Rights.model_fields.keys() - ELSEWHERE
    _, hashed = mint_key()
    of_key = caller_of(key_entry(Key(name="dev", hash=hashed, **SAID)))
    of_group = caller_of_group("dev", Group(**SAID))
    assert of_key == of_group
    nobody = Caller("dev")
    allowance = of_key.allowance
    for name in SAID.keys() - RateLimits.model_fields.keys():
        assert getattr(of_key, name) != getattr(nobody, name), f"{name} is lost on the way"
    for name in RateLimits.model_fields:
        assert getattr(allowance, name) == SAID[name]
    assert isinstance(of_key.tool_search, SearchSetting)
