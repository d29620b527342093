"""A kind of tool is in all the places that a kind has to be in."""

from typing import get_args

from callgate.tools.kinds.settings import ToolEntry
from tests.tools.executor_kinds import KINDS


def test_every_kind_of_the_config_is_held_to_the_contract_of_executors():
    union = get_args(ToolEntry)[0]
    kinds = {kind for entry in get_args(union) for kind in get_args(entry.model_fields["kind"].annotation)}
    searches = {"web_search"}  # lists what was found, and never hands on what it was sent; its own tests say the rest
    assert {name.partition(" ")[0] for name in KINDS} == kinds - searches | {"mcp"}
