"""Counts the failures of something that may be away, so that an outage is logged when it begins, at powers of ten, and when it is over."""


class Outage:
    """One thing that may be away. Whoever asks it notes each failure and each success, and logs what is returned."""

    def __init__(self) -> None:
        self._failures = 0

    @property
    def is_on(self) -> bool:
        """True if it failed the last time."""
        return self._failures > 0

    def failed(self) -> int:
        """Count a failure; return their number where it is to be logged: 1, 10, 100 and so on, else 0."""
        self._failures += 1
        if str(self._failures).strip("0") == "1":
            return self._failures
        return 0

    def over(self) -> int:
        """Note a success; return the number of failures before it, 0 where there was none."""
        failures = self._failures
        self._failures = 0
        return failures
