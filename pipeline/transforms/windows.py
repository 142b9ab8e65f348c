"""The width of the windows of log time, and which requests name a submission.

An entry may be in the log several times: a sender that got no answer submits it again under the same `request`, and
only the first is applied. Each `request` is counted once, by the entry with the lowest index. Entries without a
`request`, or with a text in it that names no submission (`docs/reference/application-json.md`), are all counted, as the
farm applies them all.
"""

import re

DEFAULT_WINDOW = "1 minute"
_WIDTH = re.compile(r"([1-9][0-9]{0,5}) *(second|minute|hour|day|week)s?")
_UNITS_MS = {"second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000, "week": 604_800_000}
_WIDEST_MS = 366 * _UNITS_MS["day"]
REQUEST = "(?s)^.{1,64}-[0-9]{1,19}-(?=[0-9]*[1-9])[0-9]{1,19}$"
"""`CLIENT-BORN-SEQUENCE`, the sequence from 1 on."""


def window_ms(window: str) -> int:
    """The width of windows such as `5 minutes`; they begin at multiples of it since the epoch. Raises ValueError."""
    found = _WIDTH.fullmatch(window.strip().lower())
    if found is None:
        raise ValueError(f"{window!r} is no width of a window: say 30 seconds, 5 minutes, 1 hour, 1 day or the like")
    width_ms = int(found[1]) * _UNITS_MS[found[2]]
    if width_ms > _WIDEST_MS:
        raise ValueError(f"{window!r} is wider than a year: name a shorter window")
    return width_ms
