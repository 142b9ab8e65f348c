"""What is asked of the state machine's owner before this server stores what another server sends.

    append, log pack ──▶ `entries`  ──▶ an objection: answered by the core as if it had not come, nothing is stored
    snapshot         ──▶ `snapshot` ──▶ an objection: it was received whole and is not installed

Once an entry is in the log it is applied when a leader says so, after every restart again: a state machine that cannot
take it would end the server for good. So what it cannot take is refused where it comes in. An append that is refused so
is no contact with a leader: no timer starts anew, no lease and no majority rests on its answer.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from consensus.core.model import Entry


@dataclass(frozen=True, slots=True)
class ContentChecks:
    """Each says in words what it objects to, or None. Neither may raise."""

    entries: Callable[[tuple[Entry, ...]], str | None] = lambda _: None
    """Asked in the trio run, for every append; it must be fast."""
    snapshot: Callable[[Iterator[bytes]], str | None] = lambda _: None
    """Asked in the disk's thread, with the state in pieces, once the checksums have matched."""
