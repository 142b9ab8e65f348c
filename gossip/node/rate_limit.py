"""At most so many per second from each source, in bounded memory.

A token bucket per source host. The table is bounded: a source that is new when it is full takes the place of the one
longest unheard, and begins with a full bucket; so a flood from ever new (forged) sources is not held back by its
sources, and a second bucket for all of them together holds it.
"""

from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass(slots=True)
class Bucket:
    """`burst` at once, then `per_second`."""

    per_second: float
    burst: float
    level: float = field(init=False)
    filled_at_ms: int | None = None

    def __post_init__(self) -> None:
        self.level = self.burst

    def take(self, now_ms: int) -> bool:
        """Take one, if there is one."""
        if self.filled_at_ms is not None:
            gained = max(0, now_ms - self.filled_at_ms) * self.per_second / 1000
            self.level = min(self.burst, self.level + gained)
        self.filled_at_ms = now_ms
        if self.level < 1:
            return False
        self.level -= 1
        return True


@dataclass(slots=True)
class SourceLimit:
    """A bucket for each source, and one for all together."""

    per_second: float
    burst: float
    all_per_second: float
    sources_limit: int = 1024
    sources: OrderedDict[str, Bucket] = field(default_factory=OrderedDict)
    together: Bucket = field(init=False)

    def __post_init__(self) -> None:
        self.together = Bucket(self.all_per_second, 2 * self.all_per_second)

    def allows(self, source: str, now_ms: int) -> bool:
        """Whether one more from `source` is within the limits; if so it is counted."""
        bucket = self.sources.get(source)
        if bucket is None:
            bucket = self.sources[source] = Bucket(self.per_second, self.burst)
            if len(self.sources) > self.sources_limit:
                self.sources.popitem(last=False)
        self.sources.move_to_end(source)
        return bucket.take(now_ms) and self.together.take(now_ms)
