import pytest

from callgate.conversation.usage import MOST_TOKENS, Usage
from callgate.telemetry import metrics as room
from callgate.telemetry.metrics import Metrics


@pytest.fixture
def metrics():
    return Metrics()


def samples(metrics, name):
    return {
        tuple(sample.labels.values()): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == name
    }


def test_requests_are_counted_and_timed_by_route_status_and_model(metrics):
    metrics.request("/v1/chat/completions", 200, "demo", 0.2)
    metrics.request("/v1/chat/completions", 200, "demo", 0.3)
    metrics.request("/v1/models", 401, "", 0.001)

    counted = samples(metrics, "callgate_requests_total")
    assert counted == {("/v1/chat/completions", "200", "demo"): 2, ("/v1/models", "401", ""): 1}
    assert sum(samples(metrics, "callgate_request_seconds_sum").values()) == pytest.approx(0.501)


def test_what_is_timed_falls_into_the_buckets_that_are_no_shorter(metrics):
    for seconds in (0.01, 0.02, 599.0, 601.0):
        metrics.turn_seconds.of("demo").observe(seconds)

    buckets = samples(metrics, "callgate_turn_seconds_bucket")
    assert {le: count for (_, le), count in buckets.items() if le in ("0.01", "0.05", "600.0", "+Inf")} == {
        "0.01": 1,
        "0.05": 2,
        "600.0": 3,
        "+Inf": 4,
    }
    assert samples(metrics, "callgate_turn_seconds_count") == {("demo",): 4}


def test_what_is_in_flight_goes_up_and_down(metrics):
    with metrics.in_flight.track_inprogress():
        assert samples(metrics, "callgate_requests_in_flight") == {(): 1}
    assert samples(metrics, "callgate_requests_in_flight") == {(): 0}


def test_labels_beyond_the_bound_are_counted_as_other(metrics, monkeypatch):
    monkeypatch.setattr(room, "_MAX_CHILDREN", 3)

    for name in ("a", "b", "c", "d", "e", "a"):
        metrics.turns.of(name).inc()

    assert samples(metrics, "callgate_turns_total") == {("a",): 2, ("b",): 1, ("c",): 1, ("other",): 2}


def test_tokens_are_counted_by_kind_and_nonsense_is_not(metrics):
    metrics.model("demo").reported(
        Usage(
            {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "total_tokens": 15,
                "prompt_tokens_details": {"cached_tokens": 4},
                "completion_tokens_details": None,
            }
        ).counts()
    )
    metrics.model("demo").reported(
        Usage(
            {"prompt_tokens": None, "completion_tokens": "5", "prompt_tokens_details": {"cached_tokens": -1}}
        ).counts()
    )

    metrics.model("odd").reported(Usage({"prompt_tokens": 10**30, "completion_tokens": float("inf")}).counts())

    counted = samples(metrics, "callgate_tokens_total")
    assert counted == {
        ("demo", "prompt"): 10,
        ("demo", "completion"): 5,
        ("demo", "cached"): 4,
        ("odd", "prompt"): MOST_TOKENS,
    }


@pytest.mark.parametrize(
    ("accept", "content_type"), [("", "text/plain"), ("application/openmetrics-text", "application/openmetrics-text")]
)
def test_a_scraper_gets_what_it_accepts(metrics, accept, content_type):
    metrics.request("/v1/models", 200, "", 0.1)

    body, media_type = metrics.exposition(accept)

    assert media_type.startswith(content_type)
    assert b'callgate_requests_total{model="",route="/v1/models",status="200"} 1.0' in body


def test_two_registries_do_not_meet(metrics):
    metrics.turns.of("demo").inc()

    assert samples(Metrics(), "callgate_turns_total") == {}


def test_what_keys_use_is_shown_by_key_and_bounded():
    metrics = Metrics()
    for number in range(600):
        metrics.model("gpt", f"key{number}").requests = 1
    metrics.model("other model", "key0").spent(Usage({"prompt_tokens": 3, "completion_tokens": 2}).counts(), None)
    metrics.model("gpt", "key0").failed_request()

    shown = metrics.exposition()[0].decode()

    assert 'callgate_key_used_total{key="key0",what="requests"} 2.0' in shown
    assert 'callgate_key_used_total{key="key0",what="failed"} 1.0' in shown
    assert 'callgate_key_used_total{key="key0",what="tokens_in"} 3.0' in shown
    assert 'callgate_key_used_total{key="other",what="requests"} 100.0' in shown
