"""Real clients, each in an environment of its own, pointed at the served product.

`clients` names them, `environment` makes where they live, `driver` speaks to the small program that plays one of them
(in `drivers/`), `behaviours` says what is expected of all, and `table` writes what came of it to `docs/clients.md`.
"""

import pytest

# Its asserts are those of every test here, though it is no test module.
pytest.register_assert_rewrite("tests.clients.behaviours")
