"""A session for one master destination at a router's I2CP, open while this node publishes or is the standby.

    idle ──▶ connect ─▶ session ─▶ hand over ─▶ accepted ─▶ (router requests it ─▶ hand over the same)
     ▲          │ lost: wait, growing           │
     └── stop ──┴───────────────────────────────┘

A router publishes for a session only while the session lasts, so the connection stays open. A publisher hands over its
last accepted structure (Meta LeaseSet2) again after each reconnection. Publisher and standby do so at each request of
the router, because the router ends a session that does not reply. A refused structure is dropped: the farm makes a new
plan, and the refused one must not appear later. A structure that is too old for a router is not handed over again.

*The standby (the next candidate) keeps a session, too*, because a router builds the tunnels of a new session for up to
a minute. The candidate's node replies to its router's requests with the structure in force; floodfills that have this
structure ignore the copy. i2pd publishes its last structure again every 30 s, so the node passes each newer structure
to i2pd. A Java router delays the next structure by up to a minute after each hand-over. So the node passes a structure
to a Java router only at its request, or if another publisher takes over. If this node takes over within that minute, it
opens a new session: a Java router does not delay a session's first structure.

The key that signs the structures also signs the session. i2pd does not accept offline keys in sessions. So with a
transient key, the node sends to i2pd the configuration in the key file, which the master signed.
"""

import math
from contextlib import suppress
from random import Random
from typing import Final

import trio
from msgspec import Struct, field

from bridge.node.router.i2cp_connection import ANSWER_TIMEOUT_S, I2cpConnection, RouterDate, open_i2cp
from bridge.node.router.link import Credentials, Link, RouterLost, Software
from bridge.node.router.router import RouterError
from bridge.wire.i2p.destination_keys import SigningKey
from bridge.wire.i2p.i2cp_session import SessionConfig
from bridge.wire.i2p.meta_lease_set import decode
from consensus.net import Backoff

PUBLISH_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 5.0
RETRY_FIRST_S, RETRY_LONGEST_S, RETRY_SPREAD = 1.0, 60.0, 0.2
JAVA_DELAY_S: Final = 60.0
REPEAT_EVERY_S, REPEAT_FOR_S = 3.0, 24.0
"""Interval and whole time, in seconds, of the repetitions of an urgent structure to i2pd, which publishes at most once
in 20 s.
"""
STRUCTURE_LIFE_MS: Final = 9 * 60_000
"""A Java router refuses structures published more than ten minutes ago."""


OLD_KEY_FILE: Final = (
    "the signing key file does not contain the session configuration that i2pd needs, because an older version made it:"
    " make a new one with `garlicfarm keys offline` on the machine with the master key (`garlicfarm help signing-keys`)"
)


class I2cpAccess(Struct, frozen=True):
    """The access to a router's I2CP."""

    link: Link
    software: Software
    credentials: Credentials | None = None


def session_obstacle(access: I2cpAccess, key: SigningKey) -> str | None:
    """Return the reason why the router cannot make a session signed by this key; None if it can."""
    if access.software is not Software.I2PD or key.offline is None or key.session is not None:
        return None
    return OLD_KEY_FILE


class _Offer(Struct, eq=False):
    """A structure that the router has not accepted yet, and the event of its result."""

    structure: bytes
    settled: trio.Event = field(default_factory=trio.Event)
    refusal: str | None = None
    is_sent: bool = False
    """True from the sending of the structure: the router may have accepted the structure before its confirmation."""

    def settle(self, refusal: str | None) -> None:
        self.refusal = refusal
        self.settled.set()


class _HandOvers(Struct):
    """The hand-overs in one session: decides if one is due without a request of the router."""

    repeats: bool
    """True for i2pd."""
    last: bytes | None = None
    last_s: float = -math.inf
    """Time of the last hand-over."""
    next_s: float = math.inf
    """Time of the next repetition."""
    _until_s: float = -math.inf

    def are_due(self, structure: bytes, *, urgent: bool) -> bool:
        if structure == self.last:
            return trio.current_time() >= self.next_s
        return urgent or (self.repeats and self.last is not None)

    def done(self, structure: bytes, *, urgent: bool) -> None:
        now_s = trio.current_time()
        if structure != self.last:
            self._until_s = now_s + REPEAT_FOR_S if self.repeats and urgent else -math.inf
        self.last, self.last_s, next_s = structure, now_s, now_s + REPEAT_EVERY_S
        self.next_s = next_s if next_s <= self._until_s else math.inf


class MasterSession:
    """The session of one master destination. `run` it; then publish or keep it ready, and stop."""

    def __init__(self, access: I2cpAccess, key: SigningKey) -> None:
        self._access = access
        self._key = key
        self._offer: _Offer | None = None
        self._accepted: bytes | None = None
        self._is_urgent = False
        """True if the router must get the accepted structure without a request."""
        self._publishes = False
        """True if the last accepted structure is this node's own."""
        self._stopping = False
        self._wake = trio.Event()
        self._over = trio.Event()
        self._backoff = Backoff(RETRY_FIRST_S, RETRY_LONGEST_S, Random(), spread=RETRY_SPREAD)
        self._trouble = f"{access.link} has not been reached yet"
        self.connected = False
        self._has_tunnels = False
        """True if the router has requested a structure in this session: it does so as soon as it has tunnels."""

    async def publish(self, key: SigningKey, structure: bytes) -> None:
        """Have the router accept a structure; raise `RouterError` if it does not."""
        obstacle = session_obstacle(self._access, key)
        if obstacle is not None:
            raise RouterError(obstacle)
        self._key = key
        offer = _Offer(structure)
        if self._offer is not None:
            self._offer.settle("a later structure replaced it")
        self._offer, began_s = offer, trio.current_time()
        self._wake.set()
        try:
            with trio.move_on_after(PUBLISH_TIMEOUT_S):
                await offer.settled.wait()
            if offer.is_sent:
                # The connection's timeouts end this wait, too: the structure is confirmed, or the connection ends.
                with trio.move_on_after(2 * ANSWER_TIMEOUT_S):
                    await offer.settled.wait()
            if not offer.settled.is_set():
                trouble = "it did not confirm the structure" if offer.is_sent else self._trouble
                waited_s = trio.current_time() - began_s
                offer.refusal = f"the router did not accept it within {waited_s:.0f} s: {trouble}"
        finally:
            if self._offer is offer:
                self._offer = None
        if offer.refusal is not None:
            raise RouterError(offer.refusal)

    def keep_ready(self, key: SigningKey, structure: bytes, *, urgent: bool) -> str | None:
        """Keep the session with a structure of the farm; return the reason why it is not ready, None if it is."""
        self._key = key
        self._accepted, self._is_urgent, self._publishes = structure, urgent, False
        self._wake.set()
        return self.obstacle

    @property
    def obstacle(self) -> str | None:
        """The reason why the router cannot publish immediately; None if it can."""
        if not self.connected:
            return self._trouble
        return None if self._has_tunnels else f"{self._access.link} has not built tunnels for it yet"

    async def stop(self) -> None:
        """Destroy the session, if the router can be reached."""
        self._stopping = True
        self._wake.set()
        with trio.move_on_after(STOP_TIMEOUT_S):
            await self._over.wait()

    async def run(self) -> None:
        """Work until stopped or canceled."""
        while not self._stopping:
            self._wake = trio.Event()
            if self._offer is None and self._still_good() is None:
                await self._wake.wait()
                continue
            try:
                async with open_i2cp(self._access.link, self._access.credentials, self._ring) as (connection, date):
                    await self._serve(connection, date)
            except RouterLost as error:
                self._lost(str(error))
                if not self._stopping:
                    await self._pause()
            finally:
                self.connected = self._has_tunnels = False
        self._over.set()

    def _ring(self) -> None:
        self._wake.set()

    async def _serve(self, connection: I2cpConnection, date: RouterDate) -> None:
        session_id = await connection.create_session(self._configuration(date))
        self.connected = True
        is_i2pd = self._access.software is Software.I2PD
        hand_overs = _HandOvers(repeats=is_i2pd)
        while not self._stopping:
            self._wake = trio.Event()
            offer = self._offer
            is_delayed = not is_i2pd and trio.current_time() - hand_overs.last_s < JAVA_DELAY_S
            if offer is not None and is_delayed and not self._publishes:
                break  # `run` opens a new session for the offer
            structure = self._still_good(date.now_ms()) if offer is None else offer.structure
            urgent = self._is_urgent or offer is not None
            self._has_tunnels |= connection.lease_set_requested
            requested = connection.lease_set_requested or offer is not None
            if structure is not None and (requested or hand_overs.are_due(structure, urgent=urgent)):
                if offer is not None:
                    offer.is_sent = True
                await connection.publish(session_id, structure, private_key_count=is_i2pd)
                hand_overs.done(structure, urgent=urgent)
                if requested:
                    self._backoff.reset()
                if offer is not None and self._offer is offer:
                    self._accepted, self._is_urgent, self._publishes, self._offer = structure, True, True, None
                    offer.settle(None)
            elif connection.ended is not None:
                raise RouterLost(connection.ended)
            else:
                # Without a structure a repetition stays due, so its time must not end the wait.
                with trio.CancelScope(deadline=math.inf if structure is None else hand_overs.next_s):
                    await self._wake.wait()
        # A Java router then closes the connection, and i2pd replies; both show that the session has ended.
        with suppress(RouterLost):
            await connection.destroy_session(session_id)
            await connection.get_date()

    def _configuration(self, date: RouterDate) -> SessionConfig:
        if self._access.software is Software.I2PD and self._key.session is not None:
            return self._key.session
        return self._key.sign_session(date.now_ms())

    def _still_good(self, router_now_ms: int | None = None) -> bytes | None:
        """Return the last accepted structure, unless it is too old for the router."""
        if self._accepted is not None and router_now_ms is not None:
            age_ms = router_now_ms - decode(self._accepted).published_s * 1000
            if age_ms > STRUCTURE_LIFE_MS:
                self._accepted = None
        return self._accepted

    def _lost(self, trouble: str) -> None:
        """Report a failure to the publishing task immediately: the task itself delays its next attempt."""
        self._trouble = trouble
        if self._offer is not None:
            self._offer.settle(trouble)
            self._offer = None

    async def _pause(self) -> None:
        """Wait before the next attempt.

        The wait grows with each failure; a structure to publish, or a stop, shortens it, but not below the first wait.
        """
        with trio.move_on_after(self._backoff.next_s()):
            await trio.sleep(RETRY_FIRST_S)
            while self._offer is None and not self._stopping:
                self._wake = trio.Event()
                await self._wake.wait()
