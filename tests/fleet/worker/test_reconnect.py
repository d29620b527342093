"""How a worker reaches Redis again after an outage."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from callgate.telemetry.outages import Outage
from tests.harness.needs import needs
from tests.harness.ports import free_port

pytestmark = needs("module:celery")


class Enough(Exception):
    """It has been tried often enough."""


@pytest.mark.parametrize("of", ["read", "write"])
def test_redis_is_tried_at_short_equal_intervals_however_long_it_is_away_and_it_is_logged_now_and_then(
    monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    from callgate.fleet.worker.celery_app import RECONNECT_SECONDS, celery_app

    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 40:
            raise Enough

    monkeypatch.setattr("callgate.fleet.worker.celery_app.BROKER", Outage())
    monkeypatch.setattr("kombu.utils.functional.sleep", sleep)
    app: Any = celery_app(f"redis://127.0.0.1:{free_port()}", "test:", {"gpu": b"key"})
    connection = getattr(app, f"connection_for_{of}")()
    logged: list[Exception] = []
    with capture_logs() as lines, pytest.raises(Enough):
        connection.ensure_connection(logged.append, app.conf.broker_connection_max_retries, callback=lambda: None)
    assert slept == [RECONNECT_SECONDS] * 40
    assert RECONNECT_SECONDS <= 0.5
    assert [(line["event"], line["failures"]) for line in lines] == [("fleet_redis_away", 1), ("fleet_redis_away", 10)]
    assert logged == [], "Celery would log each of them"
