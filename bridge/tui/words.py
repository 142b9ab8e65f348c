"""Figures as an operator reads them: short and of known width."""

from datetime import UTC, datetime

SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
LATEST_MS = 253_402_300_799_000
"""The last second that a date of four digits can say."""
B32_SUFFIX = ".b32.i2p"


def duration(milliseconds: float) -> str:
    """A length of time in its two leading units; negative when it lies behind."""
    if milliseconds < 0:
        return f"-{duration(-milliseconds)}"
    whole = int(milliseconds)
    if whole < SECOND_MS:
        return f"{whole}ms"
    for unit_ms, unit, part_ms, part in (
        (DAY_MS, "d", HOUR_MS, "h"),
        (HOUR_MS, "h", MINUTE_MS, "m"),
        (MINUTE_MS, "m", SECOND_MS, "s"),
    ):
        if whole >= unit_ms:
            return f"{whole // unit_ms}{unit}{whole % unit_ms // part_ms:02}{part}"
    return f"{whole // SECOND_MS}s"


def milliseconds_text(value: float | None) -> str:
    """A round-trip time, with no digit more than was measured: gossip counts in whole milliseconds."""
    if value is None:
        return "-"
    if value == 0:
        return "<1ms"
    whole = value == int(value) or value >= 10  # noqa: PLR2004 -- two digits that say something
    return f"{value:.0f}ms" if whole else f"{value:.2f}ms"


def clock_text(time_ms: int, *, dated: bool = False) -> str:
    """A moment in UTC."""
    if not 0 <= time_ms <= LATEST_MS:
        return str(time_ms)
    moment = datetime.fromtimestamp(time_ms / SECOND_MS, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC" if dated else "%H:%M:%S")


def short_address(address: str, letters: int = 12) -> str:
    """A destination's address, recognisable but short."""
    head = address.removesuffix(B32_SUFFIX)
    return address if len(head) <= letters else f"{head[:letters]}…{B32_SUFFIX}"


def known(value: object) -> str:
    """A value, or a dash for what is unknown."""
    return "-" if value is None else str(value)
