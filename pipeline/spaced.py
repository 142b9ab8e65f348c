"""Work that grows with history, spaced so that it never takes more than a share of the time.

Tables that are made anew out of all history cost more from week to week. Made after each micro-batch, they would in the
end be all that the pipeline does, and the current state would wait for them. So after each time the next one is put off
for `REST_TIMES` as long as the last one took: a fifth of the time at most, and hardly ever felt while it is short.
"""

import time
from collections.abc import Callable

REST_TIMES = 4.0


class Spaced:
    """Calls `action`, unless it is too soon."""

    def __init__(self, action: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._action = action
        self._clock = clock
        self._due: float | None = None

    def __call__(self) -> None:
        """Does it if it is due."""
        began = self._clock()
        if self._due is not None and began < self._due:
            return
        self._action()
        ended = self._clock()
        self._due = ended + REST_TIMES * (ended - began)
