"""Landlock itself is tested with commands and with children; here is a kernel without it."""

import pytest

from callgate.parsers import landlock


def test_without_landlock_the_version_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "_syscall", lambda *_: -1)
    assert landlock.landlock_abi() == 0
    with pytest.raises(OSError, match="a ruleset"):
        landlock.PathRules()
