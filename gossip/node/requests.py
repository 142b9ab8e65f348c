"""What an application asks of its agent, kept until the owner of the core takes it.

A call never waits and never reaches into the core, which may be in the middle of something: it leaves its wish here and
rings the doorbell. Wishes that replace each other are slots with the last word (metadata, maintenance); seeds are a
bounded set; what is said and asked is a bounded queue, and a call beyond its pace or its length is refused at once,
since words dropped silently would look like words lost by the network.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import trio

from gossip.core.events import (
    AnswerGiven,
    Event,
    KeyringChanged,
    LeaveRequested,
    MaintenanceSwitched,
    MetadataChanged,
    QueryRequested,
    SeedsGiven,
    UserEventRequested,
)
from gossip.core.member import METADATA_LIMIT_BYTES, Address
from gossip.core.user_events import BODY_LIMIT_BYTES, NAME_LIMIT_CHARACTERS, QUERY_TIMEOUT_LIMIT_MS, is_sayable
from gossip.node.rate_limit import Bucket
from gossip.node.settings import SEEDS_LIMIT

WORDS_LIMIT: Final = 64
WORDS_PER_SECOND: Final = 20.0
WORDS_BURST: Final = 40.0

Word = UserEventRequested | QueryRequested | AnswerGiven | KeyringChanged


class BusyError(Exception):
    """Too much was said in a short time: nothing was sent, try again a little later."""


def _must_be_text(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be text, not {type(value).__name__}")


def _must_be_bytes(what: str, value: object) -> None:
    if not isinstance(value, bytes):
        raise TypeError(f"{what} must be bytes, not {type(value).__name__}: encode it first")


class Requests:
    """The wishes since the owner last looked."""

    def __init__(self, ring_doorbell: Callable[[], None]) -> None:
        self._ring_doorbell = ring_doorbell
        self._metadata: bytes | None = None
        self._maintenance: bool | None = None
        self._seeds: dict[Address, None] = {}
        self._words: deque[Word] = deque()
        self._allowance = Bucket(WORDS_PER_SECOND, WORDS_BURST)
        self._leave = False
        self.answered = trio.Event()
        """Set when what was asked before now has been carried out."""

    def describe(self, metadata: bytes) -> None:
        """Other metadata."""
        _must_be_bytes("metadata", metadata)
        if len(metadata) > METADATA_LIMIT_BYTES:
            raise ValueError(f"metadata has {len(metadata)} bytes, the limit is {METADATA_LIMIT_BYTES}")
        self._metadata = metadata
        self._ring_doorbell()

    def give_seeds(self, addresses: Sequence[Address]) -> None:
        """Further seeds."""
        for address in addresses:
            if len(self._seeds) < SEEDS_LIMIT:
                self._seeds[address] = None
        self._ring_doorbell()

    def switch_maintenance(self, *, on: bool) -> None:
        """Maintenance on or off."""
        self._maintenance = on
        self._ring_doorbell()

    def leave(self) -> None:
        """Leave the group."""
        self._leave = True
        self._ring_doorbell()

    def speak(self, word: Word, now_ms: int) -> None:
        """Something for the group; `BusyError` beyond the pace."""
        if not isinstance(word, KeyringChanged):
            _must_be_bytes("what is said", word.body)
        if isinstance(word, UserEventRequested | QueryRequested):
            _must_be_text("the name of what is said", word.name)
        if isinstance(word, UserEventRequested | QueryRequested) and not is_sayable(word.name, word.body):
            raise ValueError(
                f"a broadcast or query has a name of 1 to {NAME_LIMIT_CHARACTERS} printable characters and at most "
                f"{BODY_LIMIT_BYTES} bytes, not {len(word.name)} and {len(word.body)}"
            )
        if isinstance(word, QueryRequested) and not 0 < word.timeout_ms <= QUERY_TIMEOUT_LIMIT_MS:
            raise ValueError(
                f"a query's timeout is from 1 ms to {QUERY_TIMEOUT_LIMIT_MS // 1000} s, not {word.timeout_ms} ms"
            )
        if isinstance(word, AnswerGiven) and len(word.body) > BODY_LIMIT_BYTES:
            raise ValueError(f"an answer has at most {BODY_LIMIT_BYTES} bytes, not {len(word.body)}")
        if len(self._words) >= WORDS_LIMIT or not self._allowance.take(now_ms):
            raise BusyError(
                f"more than {WORDS_PER_SECOND:.0f} broadcasts, queries and answers per second: gossip is for few and "
                "small words; nothing was sent, try again in a moment"
            )
        self._words.append(word)
        self._ring_doorbell()

    def take(self) -> tuple[trio.Event, list[Event]]:
        """All wishes, in the order in which they make sense together, and what to set when they are carried out."""
        answered, self.answered = self.answered, trio.Event()
        events: list[Event] = []
        if self._seeds:
            events.append(SeedsGiven(tuple(self._seeds)))
            self._seeds = {}
        if self._metadata is not None:
            events.append(MetadataChanged(self._metadata))
            self._metadata = None
        if self._maintenance is not None:
            events.append(MaintenanceSwitched(self._maintenance))
            self._maintenance = None
        events.extend(self._words)
        self._words.clear()
        if self._leave:
            events.append(LeaveRequested())
            self._leave = False
        return answered, events
