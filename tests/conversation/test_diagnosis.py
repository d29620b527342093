from typing import Any

import msgspec

from callgate.calls.outcome import Returned
from callgate.calls.states import BrokenCall, Finding, Flaw, ReadyCall
from callgate.conversation.diagnosis import Diagnosis
from callgate.conversation.events import (
    BEFORE_ALL_TURNS,
    CallEnded,
    CallNotRun,
    PromptedCalling,
    Responder,
    TurnAccount,
    TurnEnded,
)
from callgate.conversation.prices import Price
from callgate.conversation.usage import TokenCounts, Usage


def account(**given: Any) -> TurnAccount:
    plain: dict[str, Any] = {"reasons": ("stop",), "findings": (), "run": (), "handed_back": (), "broken": ()}
    return TurnAccount(**plain, usage=None, seconds=0.5, **given)


def report_of(diagnosis: Diagnosis) -> dict[str, Any]:
    report: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(diagnosis.report()))
    return report


def test_a_turn_says_which_way_its_model_was_reached():
    diagnosis = Diagnosis(run_id="run_1")
    diagnosis.handle(TurnEnded(0, account(lane="translated")))
    assert report_of(diagnosis)["turns"][0]["lane"] == "translated"


def test_a_prompted_turn_names_the_format_it_was_prompted_in():
    diagnosis = Diagnosis(run_id="run_1")
    diagnosis.handle(TurnEnded(0, account(prompted=PromptedCalling("hermes", 120))))
    diagnosis.handle(TurnEnded(1, account()))
    in_words, natively = report_of(diagnosis)["turns"]
    assert in_words["asked_in_words"] == {"format": "hermes", "extra_tokens": 120}
    assert "asked_in_words" not in natively


def test_calls_that_were_run_again_are_named_apart():
    diagnosis = Diagnosis(run_id="run_1")
    diagnosis.handle(CallEnded(BEFORE_ALL_TURNS, ReadyCall("h", "clock", {}, "{}"), Returned("noon"), 0.25))
    report = report_of(diagnosis)
    assert report["recovered"] == [{"id": "h", "name": "clock", "outcome": "returned", "ms": 250.0}]
    assert report["turns"] == []


def test_the_calls_of_a_turn_are_listed_in_the_models_order():
    broken = BrokenCall("c1", "clock", Flaw.TRUNCATED, "{")
    theirs, ours = ReadyCall("c2", "theirs", {}, "{}"), ReadyCall("c3", "clock", {}, "{}")
    answer = TurnAccount(("stop",), (), (ours,), (theirs,), (broken,), None, 0.5, calls=(broken, theirs, ours))
    diagnosis = Diagnosis(run_id="run_1")
    diagnosis.handle(TurnEnded(0, answer))
    diagnosis.handle(CallEnded(0, ours, Returned("noon"), 0.25))
    calls = report_of(diagnosis)["turns"][0]["calls"]
    assert [(call["id"], call.get("owner"), call.get("outcome")) for call in calls] == [
        ("c1", None, None),
        ("c2", "client", None),
        ("c3", "house", "returned"),
    ]


def test_a_turn_of_which_little_is_known_says_little():
    diagnosis = Diagnosis(run_id="run_1")
    diagnosis.handle(TurnEnded(0, account()))
    (turn,) = report_of(diagnosis)["turns"]
    assert list(turn.items()) == [("finish_reason", "stop"), ("findings", []), ("calls", []), ("ms", 500.0)]


def test_a_turn_says_all_that_is_known_of_it_in_one_order():
    diagnosis = Diagnosis(run_id="run_1", sees=lambda: True, price=lambda by: Price(prompt=0.5))
    counts = TokenCounts(prompt=4, completion=1, cached=2, cache_written=1)
    answer = TurnAccount(
        ("stop", "length"),
        (Finding.TOOL_CALLS_WITH_STOP,),
        (),
        (),
        (),
        Usage({"prompt_tokens": 4}),
        0.5,
        reason_is_raw=False,
        prompted=PromptedCalling("hermes", 120),
        not_run=(CallNotRun("clock", "quoted"),),
        lane="direct",
        by=Responder("m", "openai/m", "models.test"),
        counts=counts,
        is_summary=True,
    )
    diagnosis.handle(TurnEnded(0, answer))
    (turn,) = report_of(diagnosis)["turns"]
    assert list(turn.items()) == [
        ("finish_reason", "length"),
        ("findings", ["tool_calls_with_stop"]),
        ("calls", []),
        ("ms", 500.0),
        ("lane", "direct"),
        ("summary", True),
        ("deployment", "openai/m"),
        ("host", "models.test"),
        ("usage", {"prompt_tokens": 4}),
        ("cache", {"read": 2, "written": 1}),
        ("cost", 2.0),
        ("finish_reasons", ["stop", "length"]),
        ("finish_reason_rewritten", True),
        ("asked_in_words", {"format": "hermes", "extra_tokens": 120}),
        ("not_run", [{"name": "clock", "reason": "quoted"}]),
    ]
