import pytest

from callgate.tools.approvals.rules import NO_RULE, ApprovalRule
from callgate.tools.executor import Policy, Safety
from callgate.tools.registry import Registry
from tests.fakes import EchoTool, FakeSource, NamedTool, tool


@pytest.mark.parametrize(
    ("always", "never", "waits"),
    [
        ((), (), None),
        (("*",), (), True),
        ((), ("*",), False),
        (("other",), (), None),
        (("*",), ("read_file",), False),
        (("read_*",), ("*",), True),
        (("read_*",), ("read_file",), False),
        (("read_file",), ("read_*",), True),
        (("read_file",), ("read_file",), True),
        (("safety:write",), (), True),
        (("safety:destructive",), (), None),
        (("safety:write",), ("*",), True),
        (("safety:write",), ("r*",), False),
        (("files/*",), (), True),
    ],
)
def test_of_the_patterns_that_name_a_tool_the_one_that_spells_out_most_counts(always, never, waits):
    assert ApprovalRule(always, never).opinion(NamedTool("read_file", "files/read_file"), "write") is waits


def waiting(registry: Registry) -> list[str]:
    return [each.name for each in registry.tools() if each.tool.policy.require_approval]


def test_an_entry_outranks_the_tool_itself_and_the_tool_outranks_the_rule_for_all():
    registry = Registry(approval=ApprovalRule(always=("a", "b"), never=("own",)))
    registry.add(tool("a", EchoTool()), tool("own", EchoTool(), policy=Policy(require_approval=True)))
    registry.add(tool("b", EchoTool()), approval=ApprovalRule(never=("*",)))
    registry.add(tool("lifted", EchoTool(), policy=Policy(require_approval=True)), approval=ApprovalRule(never=("*",)))
    registry.add(tool("c", EchoTool()))
    assert waiting(registry) == ["a", "own"]


def test_a_rule_may_go_by_safety():
    registry = Registry(approval=ApprovalRule(always=("safety:destructive",)))
    registry.add(tool("wipe", EchoTool(), policy=Policy(safety=Safety.DESTRUCTIVE)), tool("write", EchoTool()))
    assert waiting(registry) == ["wipe"]


@pytest.mark.anyio
async def test_the_rule_of_a_source_matches_its_tools_by_their_original_names():
    registry = Registry()
    source = FakeSource(tool("delete file", EchoTool()), tool("read", EchoTool()), name="files")
    registry.add_source(source, approval=ApprovalRule(always=("delete file",), never=("read",)))
    await registry.open()
    try:
        [name] = waiting(registry)
        assert name.startswith("delete_file_")
    finally:
        await registry.close()


def test_an_empty_rule_does_not_decide():
    assert NO_RULE.opinion(NamedTool("x"), "write") is None
