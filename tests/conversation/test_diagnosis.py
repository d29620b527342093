from typing import Any

from callgate.calls.outcome import Returned
from callgate.calls.states import BrokenCall, Flaw, ReadyCall
from callgate.conversation.diagnosis import Diagnosis
from callgate.conversation.events import BEFORE_ALL_TURNS, CallEnded, PromptedCalling, TurnAccount, TurnEnded


def account(**given: Any) -> TurnAccount:
    plain: dict[str, Any] = {"reasons": ("stop",), "findings": (), "run": (), "handed_back": (), "broken": ()}
    return TurnAccount(**plain, usage=None, seconds=0.5, **given)


def test_a_turn_says_which_way_its_model_was_reached():
    diagnosis = Diagnosis(run_id="run_1")
    diagnosis.handle(TurnEnded(0, account(lane="translated")))
    assert diagnosis.report()["turns"][0]["lane"] == "translated"


def test_a_prompted_turn_names_the_format_it_was_prompted_in():
    diagnosis = Diagnosis(run_id="run_1")
    diagnosis.handle(TurnEnded(0, account(prompted=PromptedCalling("hermes", 120))))
    diagnosis.handle(TurnEnded(1, account()))
    in_words, natively = diagnosis.report()["turns"]
    assert in_words["asked_in_words"] == {"format": "hermes", "extra_tokens": 120}
    assert "asked_in_words" not in natively


def test_calls_that_were_run_again_are_named_apart():
    diagnosis = Diagnosis(run_id="run_1")
    diagnosis.handle(CallEnded(BEFORE_ALL_TURNS, ReadyCall("h", "clock", {}, "{}"), Returned("noon"), 0.25))
    report = diagnosis.report()
    assert report["recovered"] == [{"id": "h", "name": "clock", "outcome": "returned", "ms": 250.0}]
    assert report["turns"] == []


def test_the_calls_of_a_turn_are_listed_in_the_models_order():
    broken = BrokenCall("c1", "clock", Flaw.TRUNCATED, "{")
    theirs, ours = ReadyCall("c2", "theirs", {}, "{}"), ReadyCall("c3", "clock", {}, "{}")
    answer = TurnAccount(("stop",), (), (ours,), (theirs,), (broken,), None, 0.5, calls=(broken, theirs, ours))
    diagnosis = Diagnosis(run_id="run_1")
    diagnosis.handle(TurnEnded(0, answer))
    diagnosis.handle(CallEnded(0, ours, Returned("noon"), 0.25))
    calls = diagnosis.report()["turns"][0]["calls"]
    assert [(call["id"], call.get("owner"), call.get("outcome")) for call in calls] == [
        ("c1", None, None),
        ("c2", "client", None),
        ("c3", "house", "returned"),
    ]
