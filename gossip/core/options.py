"""Every option of the gossip core, with three presets, and the token bucket that enforces rates.

`lan()` has the timing of memberlist. `loopback()` is for farms on one machine, with shorter periods and timeouts.
`for_overlay()` is for groups far larger than a directory: `overlay` replaces updates by each member's own observations
(docs/reference/simulation.md, "Groups larger than a directory").

An option is here if an operator may have a reason to change it. Bounds on tables are options too, because an edge box
and a rack differ in memory. Lifeguard's parts are options, so that each of them can be measured separately, and
switched off for the whole group. docs/reference/gossip-experiments.md has the option and the effect of each.

`first_hand_verdicts` is for groups with partly untrusted key holders. Verdicts from others do not make an alive member
suspect or dead, and only cause a probe of the member (`gossip.core.updates`).
"""

from typing import Final, Self

from msgspec import Struct, structs
from msgspec.structs import replace

SEED_ADDRESSES_LIMIT: Final = 272
"""Limit for the addresses to join through."""


class TokenBucket:
    """A limit of `burst` immediate tokens and `per_second` tokens on average. The caller supplies the time."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst_thousandths = burst * 1_000
        self._thousandths = self._burst_thousandths
        self._filled_at_ms = 0

    def take(self, now_ms: int) -> bool:
        """Take one token if available, and return True."""
        gained = max(0, now_ms - self._filled_at_ms) * self._per_second
        self._thousandths = min(self._thousandths + gained, self._burst_thousandths)
        self._filled_at_ms = now_ms
        if self._thousandths < 1_000:  # noqa: PLR2004 - one token is a thousand thousandths
            return False
        self._thousandths -= 1_000
        return True


class SwimOptions(Struct, frozen=True, kw_only=True):
    """Times are milliseconds. `join_rate_per_second` and `join_burst` bound the work for unknown nodes."""

    probe_period_ms: int = 1_000
    probe_timeout_ms: int = 500
    helpers: int = 3
    relay_ttl: int = 2
    relays_limit: int = 256
    scrub_every_rounds: int = 4
    reconnect_period_ms: int = 5_000

    awareness_max: int = 8
    nacks: bool = True
    buddy_notice: bool = True
    standstill_grace: bool = True
    suspicion_multiplier: int = 4
    suspicion_max_multiplier: int = 6
    first_hand_verdicts: bool = False

    gossip_period_ms: int = 200
    gossip_fanout: int = 3
    retransmit_multiplier: int = 4
    payload_budget_bytes: int = 1_150
    sample_size: int = 3

    overlay: bool = False
    directory_limit: int = 1_024
    directory_age_ms: int = 3_600_000
    tombstone_ms: int = 21_600_000

    seeds_limit: int = SEED_ADDRESSES_LIMIT
    join_timeout_ms: int = 1_000
    join_tries: int = 3
    joins_in_flight: int = 3
    redirects_per_join: int = 6
    join_backoff_min_ms: int = 1_000
    join_backoff_max_ms: int = 30_000
    join_rate_per_second: int = 20
    join_burst: int = 100
    refutations_per_second: int = 2

    user_messages_limit: int = 64
    user_message_retransmit_multiplier: int = 8
    user_messages_remembered: int = 1_024
    queries_limit: int = 64

    announce_period_ms: int = 30_000
    announce_alone_period_ms: int = 3_000

    def __post_init__(self) -> None:
        for each in structs.fields(self):
            if each.type is not bool and getattr(self, each.name) < (
                0 if each.name in {"helpers", "sample_size", "relay_ttl"} else 1
            ):
                raise ValueError(f"gossip options: {each.name} = {getattr(self, each.name)} must be positive")
        if self.probe_timeout_ms >= self.probe_period_ms:
            raise ValueError(
                f"gossip options: probe_timeout_ms = {self.probe_timeout_ms} must be below probe_period_ms ="
                f" {self.probe_period_ms}: helpers need the remaining time"
            )

    @classmethod
    def lan(cls) -> Self:
        """Return options for machines of one network."""
        return cls()

    @classmethod
    def loopback(cls) -> Self:
        """Return options for processes of one machine, where only a busy scheduler causes delay."""
        return cls(
            probe_period_ms=250,
            probe_timeout_ms=100,
            suspicion_multiplier=8,
            gossip_period_ms=50,
            reconnect_period_ms=1_000,
            join_timeout_ms=300,
            join_backoff_min_ms=200,
            join_backoff_max_ms=5_000,
            join_rate_per_second=100,
            announce_period_ms=10_000,
            announce_alone_period_ms=1_000,
        )

    @classmethod
    def for_overlay(cls) -> Self:
        """Return options for thousands of members, each with some tens of peers (see the module docstring)."""
        return cls(overlay=True, directory_limit=128, directory_age_ms=10_000)

    def plain_swim(self) -> Self:
        """Return the same timing without Lifeguard, as in SWIM's paper, for comparison."""
        return replace(
            self,
            awareness_max=1,
            nacks=False,
            suspicion_max_multiplier=1,
            buddy_notice=False,
            standstill_grace=False,
        )
