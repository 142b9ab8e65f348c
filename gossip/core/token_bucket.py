"""A token bucket: bounds what others can make this node do. It is given the time and starts full."""


class TokenBucket:
    """At most `burst` at once and `per_second` in the long run."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst_thousandths = burst * 1_000
        self._thousandths = self._burst_thousandths
        self._filled_at_ms = 0

    def take(self, now_ms: int) -> bool:
        """Take one token if there is one."""
        gained = max(0, now_ms - self._filled_at_ms) * self._per_second
        self._thousandths = min(self._thousandths + gained, self._burst_thousandths)
        self._filled_at_ms = now_ms
        if self._thousandths < 1_000:  # noqa: PLR2004 - one token is a thousand thousandths
            return False
        self._thousandths -= 1_000
        return True
