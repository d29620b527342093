import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from callgate.application import WHOLE
from callgate.callers.caller import ANONYMOUS, Caller
from callgate.config.entry_errors import BadEntry
from callgate.config.load import Loaded, load
from callgate.config.problems import ConfigError
from callgate.config.schema.whole import Config
from callgate.conversation.errors import ChatError
from callgate.conversation.prices import Price
from callgate.models.building import model_entries
from callgate.records.policy import RecordPolicy
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.reload import ConfigSource
from callgate.runtime.runtime import REMEMBERED_ROUTES, OpenRuntime
from callgate.server.siblings import Siblings
from tests.harness.configs import tool_entry

pytestmark = pytest.mark.anyio

DEMO = {"model_name": "demo", "litellm_params": {"model": "demo/demo"}, "tools": ["*"]}
BUILTIN = {"kind": "python", "module": "callgate.tools.builtin"}


def config(**sections: Any) -> Config:
    return Config.model_validate({"model_list": [DEMO], **sections})


def tool_names(manager: RuntimeManager) -> list[str]:
    return [each.name for each in manager.current.registry.tools()]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - nobody announces these
            await asyncio.sleep(0.01)


async def test_a_request_keeps_what_it_leased_and_the_next_one_has_the_new():
    async with RuntimeManager(config()) as manager:
        with manager.leased as before:
            await manager.apply(config(tools=[BUILTIN]))
            assert [each.name for each in before.registry.tools()] == []
            assert manager.current is not before
            assert tool_names(manager) == ["calculator", "clock"]
        with manager.leased as now:
            assert now is manager.current


async def test_a_runtime_is_closed_when_the_last_request_has_left_it_and_not_before():
    order: list[str] = []
    async with RuntimeManager(config()) as manager:
        with manager.leased as old:
            closed = asyncio.Event()
            close = old.close

            async def noted() -> None:
                order.append("closed")
                await close()
                closed.set()

            old.close = noted  # type: ignore[method-assign]
            with manager.leased as same:
                assert same is old
                await manager.apply(config(tools=[BUILTIN]))
                await settled()
            order.append("one of two left")
            await settled()
            order.append("both left")
        async with asyncio.timeout(30):
            await closed.wait()
    assert order == ["one of two left", "both left", "closed"]


class SlowRuntime:
    """Notes how far it is, and goes on when it is let."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.heard: list[str] = []
        self.opening, self.go_on = asyncio.Event(), asyncio.Event()
        self._error = error

    async def open(self) -> None:
        self.heard.append("opening")
        self.opening.set()
        await self.go_on.wait()
        if self._error is not None:
            raise self._error
        self.heard.append("open")

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.heard.append("closed")


async def test_a_start_that_is_cancelled_closes_what_it_had_opened():
    runtime: Any = SlowRuntime()
    starting = asyncio.create_task(OpenRuntime.begin(runtime))
    await runtime.opening.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert runtime.heard == ["opening", "closed"]


async def test_a_start_whose_task_is_cancelled_ends_the_wait_for_it():
    runtime: Any = SlowRuntime()
    starting = asyncio.create_task(OpenRuntime.begin(runtime))
    await runtime.opening.wait()
    [opening] = [task for task in asyncio.all_tasks() if task.get_name() == "runtime"]
    opening.cancel()
    await asyncio.wait([starting, opening], timeout=60)
    assert starting.cancelled()
    assert opening.cancelled()
    assert runtime.heard == ["opening", "closed"]


async def test_a_start_that_fails_closes_what_it_had_opened_and_says_why():
    runtime: Any = SlowRuntime(ValueError("no such server"))
    runtime.go_on.set()
    with pytest.raises(ValueError, match="no such server"):
        await OpenRuntime.begin(runtime)
    assert runtime.heard == ["opening", "closed"]


async def test_the_end_of_a_runtime_is_awaited():
    runtime: Any = SlowRuntime()
    runtime.go_on.set()
    opened = await OpenRuntime.begin(runtime)
    await opened.end()
    assert runtime.heard == ["opening", "open", "closed"]


async def settled() -> None:
    """Lets everything run that can run without an event from outside."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "sections",
    [
        {"tools": [{"kind": "python", "module": "no_such_module"}]},
        {"model_list": [{"model_name": "m", "litellm_params": {"model": "x/y"}, "lane": "direct"}]},
    ],
)
async def test_a_config_from_which_nothing_can_be_made_changes_nothing(sections):
    async with RuntimeManager(config(tools=[BUILTIN])) as manager:
        before = manager.current
        with pytest.raises(BadEntry):
            await manager.apply(Config.model_validate({"model_list": [DEMO], **sections}))
        assert manager.current is before
        assert tool_names(manager) == ["calculator", "clock"]


async def test_two_moves_at_once_come_one_after_the_other():
    async with RuntimeManager(config()) as manager:
        await asyncio.gather(*(manager.apply(config(tools=[BUILTIN])) for _ in range(5)))
        assert tool_names(manager) == ["calculator", "clock"]


async def test_an_old_runtime_is_forgotten():
    async with RuntimeManager(config()) as manager:
        old = weakref.ref(manager.current)
        await manager.apply(config(tools=[BUILTIN]))

        def is_gone() -> bool:
            gc.collect()
            return old() is None

        await until(is_gone)


async def test_what_counts_and_waits_survives_a_move():
    async with RuntimeManager(config()) as manager:
        manager.metrics.reloads.of("done").inc()
        approvals, metrics = manager.current.approvals, manager.current.metrics
        await manager.apply(config(tools=[BUILTIN]))
        assert manager.current.approvals is approvals
        assert manager.current.metrics is metrics


async def test_calls_under_way_count_in_the_new_runtime_where_the_limit_is_the_same():
    async with RuntimeManager(config(tools=[{**BUILTIN, "concurrency": 1}])) as manager:
        with manager.leased as old:
            [gate] = old.registry.limits.on_the_way_to("config/clock", "")
            await gate.enter()
            await manager.apply(config(tools=[{**BUILTIN, "concurrency": 1, "timeout": 5}]))
            assert manager.current.registry.limits.on_the_way_to("config/clock", "") == [gate]
            await manager.apply(config(tools=[{**BUILTIN, "concurrency": 2}]))
            [wider] = manager.current.registry.limits.on_the_way_to("config/clock", "")
            assert wider is not gate
            gate.leave()
        await manager.apply(config(tools=[BUILTIN]))
        assert manager.current.registry.limits.on_the_way_to("config/clock", "") == []


async def test_what_has_changed_is_logged_and_what_needs_a_restart():
    async with RuntimeManager(config()) as manager:
        moved = await manager.apply(config(tools=[BUILTIN], server={"port": 9001, "heartbeat_seconds": 3}))
        assert moved.changed == ("server", "tools")
        assert moved.needs_restart == ("server.port",)
        assert manager.current.config.server.heartbeat_seconds == 3


async def test_new_sizes_of_pools_need_a_restart():
    async with RuntimeManager(config(limits={"tool_threads": 3})) as manager:
        moved = await manager.apply(config(limits={"tool_threads": 4, "child_processes": 2, "calls_per_turn": 5}))
        assert moved.needs_restart == ("limits.tool_threads", "limits.child_processes")


async def test_no_more_threads_run_tools_than_the_limit():
    async with RuntimeManager(config(limits={"tool_threads": 2})) as manager:
        threads, release, running = manager.shared.threads, threading.Event(), asyncio.Semaphore(0)
        loop = asyncio.get_running_loop()

        def work():
            loop.call_soon_threadsafe(running.release)
            release.wait(10)

        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(threads.run(work))
            await running.acquire()
            await running.acquire()
            begun = len(threads._threads)  # the third call has asked by now: it was made before any thread spoke
            release.set()
            await running.acquire()
        assert begun == 2


async def test_no_more_commands_run_than_the_limit():
    async with RuntimeManager(config(limits={"child_processes": 1})) as manager:
        queue = manager.shared.processes.queue
        await queue.enter()
        waiting = asyncio.create_task(queue.enter())
        await settled()
        assert (queue.waiting, waiting.done()) == (1, False)
        queue.leave()
        await waiting
        queue.leave()


def test_a_models_answers_are_no_longer_than_the_limit():
    assert {entry.answer_bytes for entry in model_entries(config(limits={"answer_bytes": 5000}))} == {5000}


# Reading again --------------------------------------------------------------------------------------------------------


@dataclass
class AFile:
    """A config file, and who reads it again."""

    path: Path
    read_configs: list[Loaded] = field(default_factory=list)
    applied: list[Loaded] = field(default_factory=list)
    before_reading: Callable[[], None] = lambda: None

    def write(self, text: str) -> None:
        self.path.write_text(text)

    def read(self) -> Loaded:
        self.before_reading()
        return load(self.path, environ={"TOKEN": "a-new-secret"})

    def manager(self, siblings: Siblings | None = None) -> RuntimeManager:
        reading = ConfigSource(self.read, lambda: (), self.read_configs.append, self.applied.append)
        return RuntimeManager(load(self.path, environ={"TOKEN": "x"}).config, reading, siblings, WHOLE)


FILE = """\
model_list:
  - model_name: demo
    litellm_params: {model: demo/demo}
    tools: ["*"]
"""
WITH_TOOLS = FILE + "tools:\n  - kind: python\n    module: callgate.tools.builtin\n"


@pytest.fixture
def file(tmp_path) -> AFile:
    made = AFile(tmp_path / "config.yaml")
    made.write(FILE)
    return made


async def test_the_file_is_read_again_on_request(file):
    async with file.manager() as manager:
        file.write(WITH_TOOLS)
        moved = await manager.reload()
        assert moved.changed == ("tools",)
        assert tool_names(manager) == ["calculator", "clock"]
        assert [it.config for it in file.applied] == [manager.current.config]


async def test_a_worker_that_is_started_again_serves_what_the_others_do_by_now(file, tmp_path):
    siblings = Siblings(2, tmp_path)
    first = file.manager(siblings)
    siblings.note(1, lives=True)
    file.write(WITH_TOOLS)
    async with first as manager:
        assert tool_names(manager) == ["calculator", "clock"]
    file.write(FILE)
    broken = file.manager(siblings)
    file.write(FILE + "tools: [")
    async with broken as manager:
        assert tool_names(manager) == []


async def test_a_worker_that_is_started_again_takes_what_widens_only_if_another_did(file, tmp_path):
    """With the config that its parent read at first, and the files as they are by now."""
    siblings = Siblings(2, tmp_path)
    wide = FILE + "reload: {watch: off}\n"
    narrow = wide + "require_approval: always\n"
    reading = ConfigSource(file.read, lambda: (file.path,))

    def manager_of(text: str) -> RuntimeManager:
        file.write(text)
        return RuntimeManager(file.read().config, reading, siblings, WHOLE)

    replaced, another, late = manager_of(narrow), manager_of(narrow), manager_of(narrow)
    siblings.note(1, lives=True)
    file.write(wide)
    async with replaced as manager:
        assert manager.current.config.require_approval.always == ("*",)
        assert any("require_approval" in problem for problem in manager.refused)
        await manager.reload(widen=True)
        assert manager.refused == ()
    async with another as manager:
        assert manager.current.config.require_approval.always == ()
    file.write(wide + "loop: {max_iterations: 3}\n")  # another file than the one that was taken
    async with late as manager:
        assert manager.current.config.require_approval.always == ("*",)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (FILE + "loop:\n  max_iteration: 3\n", ":6:3: loop.max_iteration: unknown key"),
        (FILE + "tools: [", ":5:9: not readable as YAML"),
        (FILE + "tools:\n  - kind: python\n    module: no_such_module\n", ":6:5: tools.0: "),
        (FILE.replace("demo/demo", "x/y") + "    lane: direct\n", ":2:5: model_list.0: "),
        (FILE.replace("demo/demo", "os.environ/NOT_SET"), ":3:29: model_list.0.litellm_params.model: "),
    ],
)
async def test_a_bad_file_changes_nothing_and_says_where_it_is_bad(file, text, place):
    async with file.manager() as manager:
        before = manager.current
        file.write(text)
        with pytest.raises(ConfigError) as mistakes:
            await manager.reload()
        assert place in str(mistakes.value)
        assert manager.current is before
        assert file.applied == []
        file.write(WITH_TOOLS)
        await manager.reload()
        assert tool_names(manager) == ["calculator", "clock"]


async def test_new_secrets_are_known_before_anything_is_built_from_them(file):
    async with file.manager() as manager:
        header = "    headers: {A: '${TOKEN}'}\n"
        http = "tools:\n  - kind: http\n    name: x\n    description: d\n    url: https://x.example\n"
        file.write(FILE + http + header + "  - kind: python\n    module: no_such_module\n")
        with pytest.raises(ConfigError):
            await manager.reload()
        assert [loaded.secrets for loaded in file.read_configs] == [{"a-new-secret"}]


async def test_asking_from_outside_the_loop_reloads_too(file):
    async with file.manager() as manager:
        file.write(WITH_TOOLS)
        await asyncio.to_thread(manager.ask_to_reload)
        await until(lambda: file.applied)
        assert tool_names(manager) == ["calculator", "clock"]


async def test_a_reload_of_a_bad_file_is_survived_and_the_next_reload_works(file):
    async with file.manager() as manager:
        file.write("not: [a config")
        manager.ask_to_reload()
        await until(lambda: b'config_reloads_total{result="refused"} 1' in manager.metrics.exposition("")[0])
        file.write(WITH_TOOLS)
        manager.ask_to_reload()
        await until(lambda: file.applied)


async def test_who_asked_and_left_does_not_stop_the_reload(file):
    async with file.manager() as manager:
        file.write(WITH_TOOLS)
        asking = asyncio.create_task(manager.reload())
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        await until(lambda: file.applied)
        assert tool_names(manager) == ["calculator", "clock"]


async def test_a_reload_does_not_take_the_last_key_from_what_others_can_reach(file):
    keys = f"server: {{host: 0.0.0.0}}\nkeys:\n  - name: ann\n    hash: sha256:{'0' * 64}\n"
    file.write(FILE + keys)
    async with file.manager() as manager:
        file.write(FILE + "server: {host: 127.0.0.1}\n")
        with pytest.raises(ConfigError, match="none is left"):
            await manager.reload()
        with pytest.raises(ChatError):
            manager.current.access.admit({})


async def test_reloading_a_config_without_a_file_is_an_error():
    async with RuntimeManager(config()) as manager:
        with pytest.raises(ConfigError):
            await manager.reload()
        assert manager.current.access.may_administer(ANONYMOUS)
    async with RuntimeManager(config(server={"host": "0.0.0.0"}, auth="off")) as open_manager:
        assert not open_manager.current.access.may_administer(ANONYMOUS)


WILD = {
    "model_name": "any/*",
    "litellm_params": {"model": "demo/*"},
    "concurrency": 1,
    "model_info": {"input_cost_per_token": 0.5, "output_cost_per_token": 2.0},
}


async def test_all_names_of_a_wildcard_share_its_places():
    async with RuntimeManager(config(model_list=[WILD], limits={"queue_seconds": 0})) as manager:
        runtime = manager.current
        assert runtime.choose("any/a", ANONYMOUS).places == 1
        with await runtime.place_at("any/a"):
            with pytest.raises(ChatError) as refused:
                await runtime.place_at("any/b")
            assert refused.value.code == "model_over_capacity"
        with await runtime.place_at("any/b"):
            pass


async def test_the_route_of_a_plain_request_is_that_of_any_with_the_rights_of_now():
    models = [WILD, {**WILD, "model_name": "tools", "tools": ["*"]}]
    async with RuntimeManager(config(model_list=models, tools=[tool_entry("echo")])) as manager:
        runtime = manager.current
        alice = Caller("alice", models=("any/*", "tools"))
        for model in ("any/a", "any/b", "tools"):
            for _ in range(2):
                assert runtime.choose_plain(model, alice) == runtime.choose(model, alice)
        demoted = Caller("alice", models=("any/b",))
        with pytest.raises(ChatError) as refused:
            runtime.choose_plain("any/a", demoted)
        assert refused.value.code == "model_not_found"
        assert runtime.choose_plain("any/b", demoted).name == "any/*"


async def test_a_plain_request_is_recorded_as_the_policy_of_now_says():
    async with RuntimeManager(config(model_list=[WILD]), parts=WHOLE) as manager:
        runtime = manager.current
        assert not runtime.choose_plain("any/a", ANONYMOUS).is_recorded
        runtime.record_as(RecordPolicy(passed="all"))
        assert runtime.choose_plain("any/a", ANONYMOUS).is_recorded


async def test_made_up_names_of_plain_requests_are_not_remembered_for_ever():
    async with RuntimeManager(config(model_list=[WILD])) as manager:
        runtime = manager.current
        for number in range(REMEMBERED_ROUTES + 10):
            runtime.choose_plain(f"any/{number}", ANONYMOUS)
        assert len(runtime._plain_routes) <= REMEMBERED_ROUTES


async def test_the_prices_of_a_wildcard_hold_for_every_name_and_made_up_names_are_not_remembered_for_ever():
    async with RuntimeManager(config(model_list=[WILD])) as manager:
        for number in range(2100):
            assert manager.current.prices.of(f"any/{number}") == Price(0.5, 2.0, None)
        assert len(manager.current.prices._cached) <= 1024


async def test_keys_that_a_reload_brings_to_a_keyless_server_are_logged():
    key = {"name": "alice", "hash": "sha256:" + 64 * "0"}
    with capture_logs() as logs:
        async with RuntimeManager(config(), parts=WHOLE) as manager:
            for _ in range(2):
                await manager.apply(config(keys=[key]))
    assert [(each["log_level"], each["keys"]) for each in logs if each["event"] == "keys_required"] == [
        ("warning", ["alice"])
    ]


async def test_a_rule_of_the_record_that_names_no_key_or_model_is_refused_or_warned_of(tmp_path):
    less = [{"keys": ["alise"], "keep": "off"}]
    wrong = [*less, {"models": ["dmeo"], "keep": "no_content"}]
    async with RuntimeManager(config()) as manager:
        with pytest.raises(BadEntry) as refused:
            await manager.apply(config(record={"less": wrong}))
    assert [place for place, _ in refused.value.mistakes()] == [
        ("record", "less", 0, "keys", 0),
        ("record", "less", 1, "models", 0),
    ]
    with capture_logs() as logs:
        async with RuntimeManager(config(record={"less": less}, data_dir=str(tmp_path))):
            pass
    assert [(each["where"], each["pattern"]) for each in logs if each["event"] == "record_rule_unmatched"] == [
        ("record.less.0.keys", "alise")
    ]
