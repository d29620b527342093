from typing import Any

from callgate.conversation.diagnosis import Diagnosis
from callgate.conversation.events import PromptedCalling, TurnAccount, TurnEnded


def account(**given: Any) -> TurnAccount:
    plain: dict[str, Any] = {"reasons": ("stop",), "findings": (), "run": (), "handed_back": (), "broken": ()}
    return TurnAccount(**plain, usage=None, seconds=0.5, **given)


def test_a_turn_says_which_way_its_model_was_reached():
    diagnosis = Diagnosis("run_1")
    diagnosis.handle(TurnEnded(0, account(lane="translated")))
    assert diagnosis.report()["turns"][0]["lane"] == "translated"


def test_a_turn_says_how_it_was_asked_for_calls_where_that_was_in_words():
    diagnosis = Diagnosis("run_1")
    diagnosis.handle(TurnEnded(0, account(prompted=PromptedCalling("hermes", 120))))
    diagnosis.handle(TurnEnded(1, account()))
    in_words, natively = diagnosis.report()["turns"]
    assert in_words["asked_in_words"] == {"format": "hermes", "extra_tokens": 120}
    assert "asked_in_words" not in natively
