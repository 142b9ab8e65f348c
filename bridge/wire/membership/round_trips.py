"""The round-trip times that one node measures, as its answer to the query `rtt`.

    3f9a11c0=1 7715371f=12 …          the first 8 digits of a peer's NodeId, and whole milliseconds

An answer to a query has at most 512 bytes, and by default a node probes 30 peers. So a peer takes 8 digits. The digits
of two members are equal in one of a hundred groups of 10,000 members. Values that do not fit are left out, the slowest
first.
"""

import re
from collections.abc import Iterable
from typing import Final

ROUND_TRIPS_QUERY: Final = "rtt"
ANSWER_LIMIT_BYTES: Final = 512
DIGITS: Final = 8
_PAIR: Final = re.compile(rf"([0-9a-f]{{{DIGITS}}})=([0-9]{{1,7}})")


def write_round_trips(found: Iterable[tuple[str, float]]) -> str:
    """Return NodeIds in hexadecimal and milliseconds as an answer."""
    text = ""
    for node_id, rtt_ms in sorted(found, key=lambda pair: pair[1]):
        pair = f"{node_id[:DIGITS]}={round(min(rtt_ms, 10**7 - 1))}"
        if len(text) + 1 + len(pair) > ANSWER_LIMIT_BYTES:
            break
        text = f"{text} {pair}".strip()
    return text


def read_round_trips(text: str) -> tuple[tuple[str, float], ...]:
    """Read the pairs of an answer; other text is left out."""
    return tuple((node_id, float(rtt_ms)) for node_id, rtt_ms in _PAIR.findall(text[:ANSWER_LIMIT_BYTES]))
