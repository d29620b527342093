"""Fields with secrets are not shown where a struct is printed."""

import pytest

from callgate import application  # noqa: F401 - imports all of them
from callgate.config.unprinted import Unprinted
from callgate.models.direct.model import Endpoint


@pytest.mark.parametrize("kind", Unprinted.__subclasses__(), ids=lambda kind: kind.__name__)
def test_each_field_that_is_not_shown_is_there(kind: type[Unprinted]) -> None:
    assert kind.unprinted
    assert kind.unprinted <= {*kind.__struct_fields__}


def test_the_other_fields_are_shown() -> None:
    endpoint = Endpoint("http://x/v1", "m", {"Authorization": "Bearer planted"}, secrets=("planted",))
    assert repr(endpoint).startswith("Endpoint(url='http://x/v1', model='m', defaults={}, include_usage=True")
    assert "planted" not in repr(endpoint) + str(endpoint)
