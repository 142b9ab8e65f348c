"""A token bucket over given time: bounds what others can make this node do."""


class Rate:
    """At most `burst` at once and `per_second` in the long run."""

    def __init__(self, per_second: int, burst: int, now: int) -> None:
        self._per_second = per_second
        self._burst_thousandths = burst * 1_000
        self._thousandths = self._burst_thousandths
        self._filled_at = now

    def take(self, now: int) -> bool:
        """Use one, if there is one."""
        gained = (now - self._filled_at) * self._per_second
        self._thousandths = min(self._thousandths + gained, self._burst_thousandths)
        self._filled_at = now
        if self._thousandths < 1_000:  # noqa: PLR2004 - one token is a thousand thousandths
            return False
        self._thousandths -= 1_000
        return True
