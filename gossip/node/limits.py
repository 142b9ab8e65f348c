"""Limits on the work for unknown nodes, and the count of all drops.

    SourceLimit      a rate for each host, and one for all hosts together, in bounded memory
    AdmissionCheck   the call of the application's `admit`, which isolates its mistakes
    ForeignVersions  the alarm about senders of another version of the protocol
    OtherFarms       the last senders under another farm's key
    Counters         datagrams in and out, and drops by reason: an uncounted drop looks like a datagram that was
                     never sent

*Sources.* In a full table, a new host replaces the least recently used host, and starts with a full bucket. So a flood
from continuously new (forged) hosts passes the buckets of the hosts, but not the common bucket.

*Admission.* `admit` runs inside a step of the core, and a joiner can often cause an exception in it by its metadata.
If a failed check admitted the joiner, a mistake in the check would open the group. So the joiner is refused
(docs/reference/gossip-library.md).

*Other farms.* Two farms may share a network, so a datagram under another farm's key does not raise an alarm here. The
application decides if the listed senders could be its own members.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct, field

from gossip.core.effects import Alarm, AlarmKind
from gossip.core.join import AdmissionPolicy
from gossip.core.member import Address, NodeInfo
from gossip.core.membership import Description
from gossip.core.messages import DOMAIN, CountedDrop, JoinNak, RefusalCode
from gossip.core.options import TokenBucket
from gossip.node.endpoints import endpoint
from gossip.wire.codec import ETAG_LIMIT_BYTES, decode, encode
from gossip.wire.seal import VERSION, SealFault

LOG: Final = logging.getLogger(__name__)
SOURCES_LIMIT: Final = 1024
NEWCOMERS_BURST: Final = 100.0
ERRORS_BURST: Final = 100.0
FOREIGN_SENDERS_LIMIT: Final = 8
FOREIGN_VERSION_ALARM_MS: Final = 60_000
FOREIGN_VERSION_ALARMS_PER_SECOND: Final = 1 / 5
"""Limit of changes of the alarm: any machine can forge senders, and each new one changes the text."""
OTHER_FARMS_LIMIT: Final = 8
OTHER_FARM_LISTED_MS: Final = 60_000


class SourceLimit:
    """A token bucket for each source host, and one for all hosts together."""

    def __init__(
        self, per_second: float, burst: float, all_per_second: float, sources_limit: int = SOURCES_LIMIT
    ) -> None:
        self._per_second = per_second
        self._burst = burst
        self._sources_limit = sources_limit
        self._together = TokenBucket(all_per_second, 2 * all_per_second)
        self.sources: OrderedDict[str, TokenBucket] = OrderedDict()

    def allows(self, source: str, now_ms: int) -> bool:
        """Return True if one more datagram from `source` is within the limits, and count it."""
        bucket = self.sources.get(source)
        if bucket is None:
            bucket = self.sources[source] = TokenBucket(self._per_second, self._burst)
            if len(self.sources) > self._sources_limit:
                self.sources.popitem(last=False)
        self.sources.move_to_end(source)
        return bucket.take(now_ms) and self._together.take(now_ms)


class SourceLimits(Struct):
    """The limits of one node."""

    newcomers: SourceLimit = field(default_factory=lambda: SourceLimit(20.0, NEWCOMERS_BURST, 200.0))
    """JoinReqs and Broadcasts received."""
    errors: SourceLimit = field(default_factory=lambda: SourceLimit(20.0, ERRORS_BURST, 200.0))
    """Refusals sent."""
    boxes: SourceLimit = field(default_factory=lambda: SourceLimit(2.0, 4.0, 20.0))
    """Opened boxes: each costs an exchange of keys, and unknown nodes can send imitations."""
    key_repairs: SourceLimit = field(default_factory=lambda: SourceLimit(2.0, 4.0, 20.0))
    """Keyrings sent to senders with a replaced key, and unreadable datagrams reported to the core."""
    refused_keyrings: TokenBucket = field(default_factory=lambda: TokenBucket(1 / 30, 1.0))
    """Reports to the application of keyring updates from unauthorized nodes: the first, then two a minute."""


class Loss(CountedDrop):
    """Reasons of drops before or after the codec; `SealFault` has the codec's own reasons."""

    ADMIT_FAILED = "admit-failed", "joins refused because the application could not decide on them"
    ANSWER_LOST = "answer-lost", "answers to a query that the application reads too slowly, or no longer"
    FAILED = (
        "failed",
        "datagrams whose handling raised an unexpected error: a fault of the program, with a log record",
    )
    KEYRING_UNAUTHORIZED = "keyring-of-a-stranger", "keyrings from members without the right to change keys"
    LARGER_THAN_QUESTION = (
        "larger-than-question",
        (
            "answers to an unproved address that would be larger than its request: a reflector must not send more than"
            " it receives"
        ),
    )
    MISPLACED = "misplaced", "broadcast datagrams that are not announcements"
    OVERLOADED = "overloaded", "datagrams that arrived faster than this node could read them"
    OVERSIZE = "oversize", "datagrams above the size limit"
    RATE_LIMITED = (
        "rate-limited",
        "datagrams above the limit of one source or of all sources; refusals above the limits for their recipients",
    )
    SEND_FAILED = "send-failed", "datagrams that the operating system refused to send"
    UNENCODABLE = "unencodable", "datagrams that this node could not encode"
    WIDE_AREA = "wide-area", "datagrams to a public address, which `allow_wan` does not allow"


class OtherFarm(Struct, frozen=True):
    """A host that sends gossip under another farm's key, and the label of that key. Both are unproved."""

    source: Address
    label: bytes


class WireDescription(Struct, frozen=True):
    """The counters at one moment."""

    received: int
    received_bytes: int
    sent: int
    sent_bytes: int
    dropped: Mapping[CountedDrop, int]
    piggyback_left_out: int
    """Updates and samples with an invalid signature; the messages that carried them were accepted."""
    events_lost: int
    """Events that a reader missed."""
    resumptions: int = 0
    """Steps between the clocks, and new boot ids, after a resumption or a clock correction. Each led to a new salt."""
    other_farms: tuple[OtherFarm, ...] = ()
    """The last senders under another farm's key within a minute, in order of their addresses."""


class GroupDescription(Struct, frozen=True):
    """The state of the core, and the counters of the wire."""

    core: Description
    wire: WireDescription


class Counters(Struct):
    """The running figures of one node."""

    received: int = 0
    received_bytes: int = 0
    sent: int = 0
    sent_bytes: int = 0
    dropped: Counter[CountedDrop] = field(default_factory=Counter)
    piggyback_left_out: int = 0
    resumptions: int = 0

    def drop(self, reason: SealFault | Loss) -> None:
        """Count a drop."""
        self.dropped[reason] += 1

    def failed(self, error: Exception) -> None:
        """Count a datagram that an unexpected error stopped, and log the error with its traceback."""
        self.drop(Loss.FAILED)
        LOG.error("a fault of the program: gossip dropped a datagram", exc_info=error)

    def describe(self, overflowed: int, events_lost: int, other_farms: tuple[OtherFarm, ...] = ()) -> WireDescription:
        """Return the current figures; `overflowed` datagrams were dropped by the kernel."""
        dropped = self.dropped + Counter({Loss.OVERLOADED: overflowed})
        return WireDescription(
            received=self.received,
            received_bytes=self.received_bytes,
            sent=self.sent,
            sent_bytes=self.sent_bytes,
            dropped=MappingProxyType(dict(sorted(dropped.items()))),
            piggyback_left_out=self.piggyback_left_out,
            events_lost=events_lost,
            resumptions=self.resumptions,
            other_farms=other_farms,
        )


class ForeignVersions:
    """Reports senders of another protocol version by an alarm, and updates it when the senders change."""

    def __init__(self, publish: Callable[[Alarm], None]) -> None:
        self._publish = publish
        self._senders: OrderedDict[str, tuple[Address, int, int]] = OrderedDict()
        """Address, version and time of the last datagram, by host."""
        self._reported = ""
        self._pace = TokenBucket(FOREIGN_VERSION_ALARMS_PER_SECOND, 1.0)

    def record(self, source: Address, version: int, now_ms: int) -> None:
        """Record a datagram of another version."""
        self._senders[source.host] = source, version, now_ms
        self._senders.move_to_end(source.host)
        if len(self._senders) > FOREIGN_SENDERS_LIMIT:
            self._senders.popitem(last=False)
        self.expire(now_ms)

    def expire(self, now_ms: int) -> None:
        """Drop senders without datagrams for the period, and update the alarm."""
        if not self._senders:
            return
        for host, (_, _, received_ms) in list(self._senders.items()):
            if now_ms - received_ms >= FOREIGN_VERSION_ALARM_MS:
                del self._senders[host]
        if not self._senders:
            if self._reported:
                self._publish(Alarm(AlarmKind.FOREIGN_VERSION, "no gossip of another version is received", over=True))
            self._reported = ""
            return
        senders = sorted(f"{endpoint(source)} (version {version})" for source, version, _ in self._senders.values())
        text = (
            f"gossip of another version is received from {', '.join(senders)}; this node reads version {VERSION} only,"
            " so neither side can read the other"
        )
        if text != self._reported and self._pace.take(now_ms):
            self._reported = text
            self._publish(Alarm(AlarmKind.FOREIGN_VERSION, text))


class OtherFarms:
    """The hosts that send gossip under another farm's key, in bounded memory."""

    def __init__(self) -> None:
        self._senders: OrderedDict[str, tuple[OtherFarm, int]] = OrderedDict()
        """The host's last datagram and its time, by host."""

    def record(self, source: Address, label: bytes, now_ms: int) -> None:
        """Record a datagram under the key of this label."""
        self._senders[source.host] = OtherFarm(source, label), now_ms
        self._senders.move_to_end(source.host)
        if len(self._senders) > OTHER_FARMS_LIMIT:
            self._senders.popitem(last=False)

    def recent(self, now_ms: int) -> tuple[OtherFarm, ...]:
        """Return the senders within `OTHER_FARM_LISTED_MS`, in order of their addresses."""
        recent = [each for each, received_ms in self._senders.values() if now_ms - received_ms < OTHER_FARM_LISTED_MS]
        return tuple(sorted(recent, key=lambda each: (each.source.host, each.source.port)))


class AdmissionCheck:
    """Calls the application's `admit`."""

    def __init__(self, admit: AdmissionPolicy, counters: Counters, publish: Callable[[Alarm], None]) -> None:
        self._admit = admit
        self._counters = counters
        self._publish = publish
        self._is_failing = False

    def check(self, joiner: NodeInfo) -> JoinNak | None:
        """Return the refusal for a joiner, or None."""
        try:
            decided = self._admit(joiner)
            _require_answer(decided)
        except Exception as error:  # noqa: BLE001 - the application's code may raise anything
            self._counters.drop(Loss.ADMIT_FAILED)
            if not self._is_failing:
                self._is_failing = True
                text = (
                    f"`admit` did not decide about a joiner ({type(error).__name__}: {error}), so the joiner was"
                    " refused, like every joiner with this error: make `admit` return None or a JoinNak for any"
                    " joiner and any metadata"
                )
                self._publish(Alarm(AlarmKind.ADMIT_FAILED, text))
            return JoinNak(DOMAIN, RefusalCode.POLICY_FAILED)
        if self._is_failing:
            self._is_failing = False
            self._publish(Alarm(AlarmKind.ADMIT_FAILED, "`admit` decides about joiners again", over=True))
        return decided


def _require_answer(decided: object) -> None:
    if decided is None:
        return
    if not isinstance(decided, JoinNak):
        raise TypeError(f"it returned {decided!r:.60}, which is neither None nor a JoinNak")
    decode(encode(decided))  # a joiner would drop a malformed refusal, and continue to send JoinReqs


def offer_to(applicant: NodeInfo, offer_keys: Callable[[NodeInfo], bytes] | None) -> bytes:
    """Return the application's offer to a joiner with a retired key; empty without one."""
    if offer_keys is None:
        return b""
    try:
        offer = offer_keys(applicant)
    except Exception:  # noqa: BLE001 - the application's code may raise anything, and the joiner is refused anyhow
        return b""
    return offer if len(offer) <= ETAG_LIMIT_BYTES else b""
