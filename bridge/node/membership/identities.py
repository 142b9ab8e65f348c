"""Changes of identities while a node runs: its own eviction, and the keys of an era.

    log: this node is retired or evicted ────────▶ once `admissions.json` has this fact, it stops with the reason
    log: an era (a new version of the keys) ─────▶ this node opens its box (its sealed key) ─▶ gossip and Raft use it
    gossip: a member refuses this node's key and offers another ─▶ enough members vouch for it ─▶ the same
    gossip: a node sends with an old key ────────▶ if it is admitted, this node offers it the new key, sealed for it

*A node that was offline while the keys were replaced* has only invalid keys. If the leader can reach this node, the
node receives the log, and its box, over its own Raft port, whose certificate the peers know. Otherwise the node
contacts its stored members. Each replies with the new key, sealed for the node and signed. Each also stores the address
in the signed request: a quorum may need the vote of this node, and gossip cannot list it.

One reply is not proof. In this node's old log an evicted node is still a member, and could offer its own key. So a key
is accepted only if a majority of the other known voters, and at least two, vouch for the same key. If that is
impossible, the operator must copy the key file (`docs/how-to/stolen-node.md`).

*Connections.* The Raft port checks credentials only when a connection opens. So shortly after an era begins, all older
connections are closed, and members connect again. With the transport `i2p` gossip does not distribute keys, so an era
does not begin automatically. There an eviction itself closes the connections.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from bridge.api.alarms import KEY_RETIRED
from bridge.api.events import KEY_OFFER_REFUSED, KEY_OFFERED, KEYS_REPLACED
from bridge.api.trace import Scalar
from bridge.core.membership.admission import Admitted, Standing, raft_id_of, retired_or_evicted_refusal
from bridge.core.membership.eviction import sponsors_needed
from bridge.core.state.farm_state import FarmState
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog, clock_ms
from bridge.node.membership.farm_peers import KnownFarm
from bridge.node.raft.replica import Replica
from bridge.node.security.farm_keys import FarmKeys
from bridge.wire.keys.box import EraKey, KeyBoxError, open_key, read_offer, seal_key, sign_offer
from consensus import integer_id
from gossip import ClockBound, Group, KeyOffered, Keyring, NodeInfo
from gossip.wire import PUBLIC_KEY_BYTES

OFFERS_MAX: Final = 8
"""Limit for offered keys that too few members vouch for so far."""
END_CONNECTIONS_AFTER_S: Final = 2.0


@dataclass(slots=True, kw_only=True)
class Identities:
    """The identities of one node's farm, while the node is a server of it. `run` it once."""

    node_id: bytes
    group: Group | None
    """The gossip group; None without gossip."""
    farm_keys: FarmKeys
    known: KnownFarm
    replica: Replica
    halt: Callable[[str], None]
    """Ends this node for the given reason."""
    end_connections: Callable[[], None]
    """Ends the connections to this node's Raft port, and this node's connections to other nodes."""
    learn_outdated: Callable[[NodeInfo], None]
    """Stores the address of a member with a retired key, so that this node's server can connect to it."""
    trace: EventLog
    alarms: Alarms
    _offers: dict[EraKey, set[bytes]] = field(default_factory=dict, init=False)
    _era: int = field(default=0, init=False)
    """The last era of the log that this node has begun, or could not begin."""
    _era_begun: trio.Event = field(default_factory=trio.Event, init=False)
    _lacks_key: bool = field(default=False, init=False)
    """True after an era of the log without a usable key for this node, until its keyring has that era."""
    _evicted: set[bytes] = field(init=False)
    """The evicted identities whose connections have ended, or never began."""

    def __post_init__(self) -> None:
        """Start with the identities that the file already lists as retired or evicted."""
        self._evicted = set(self.known.admissions.out)

    @property
    def _state(self) -> FarmState:
        return self.known.applied_state.state

    async def run(self) -> None:
        """Work until canceled."""
        async with trio.open_nursery() as nursery:
            while True:
                if await self._is_out():
                    return
                seen, era = self._state.applied_index, self._state.rekeying.era
                if await self._follow_era() or self._has_evictions():
                    nursery.start_soon(_after_a_moment, self.end_connections)
                if era > self._era:
                    self._era = era
                    self._era_begun.set()
                    self._era_begun = trio.Event()
                if self._state.applied_index == seen:  # Otherwise entries were applied during the work above.
                    await self.known.applied_state.news()

    async def wait_era(self) -> None:
        """Wait until this node has begun the era of the applied log, or cannot begin it; the alarm has the reason."""
        while self._era < self._state.rekeying.era:
            await self._era_begun.wait()

    # -- this node's own status ----------------------------------------------------------------------------------------

    async def _is_out(self) -> bool:
        admissions, reason = self.known.admissions, retired_or_evicted_refusal(self._state.admitted, self.node_id)
        # After a restart, members refuse this node. So it does not apply its log again, and needs the file.
        while reason is not None and self.node_id not in admissions.out:
            await admissions.news()
        reason = reason or self.known.expulsion(self.node_id)
        if reason is not None:
            self.halt(f"this node is not a member of its farm any more: {reason}")
        return reason is not None

    # -- the keys of an era --------------------------------------------------------------------------------------------

    def _keys(self) -> tuple[Group, Keyring] | None:
        group = self.group
        keyring = None if group is None else group.keyring
        return None if group is None or keyring is None else (group, keyring)

    async def _follow_era(self) -> bool:
        """Begin the log's era if it is new; return True if an era has begun."""
        keys, rekeying = self._keys(), self._state.rekeying
        if keys is None or rekeying.era <= keys[1].era:
            if self._lacks_key:
                self._end_alarm()  # A member has sent the keyring.
            return False
        group, keyring = keys
        if not rekeying.boxes:
            # The log contains this era without keys. Either an entry only adopted the era of the keyrings, or a hostile
            # leader wrote it.
            return False
        box = rekeying.boxes.get(self.node_id.hex(), b"")
        try:
            content = open_key(box, group.identity.key, self.farm_keys.current.label)
        except KeyBoxError as error:
            why = str(error) if box else "no key was sealed for this node, because its public key was unknown then"
            text = f"the farm's keys were replaced, but this node lacks the new one: {why}"
            self._lacks_key = True
            # A hostile leader can begin an era that no node can open. A new era replaces it.
            cure = "if all nodes have this alarm, run `garlicfarm keys replace` at a voter"
            self.alarms.set(KEY_RETIRED, text, f"{self.farm_keys.way_back}; {cure}")
            return False
        await self._begin_era(group, keyring, content)
        return True

    def _has_evictions(self) -> bool:
        """Return True after new evictions in a farm without gossip: there, a new era does not end the connections."""
        evicted = {each.node_id for each in self._state.admitted.values() if each.standing is Standing.EVICTED}
        news = evicted - self._evicted
        self._evicted |= news
        return bool(news) and self.group is None

    async def _begin_era(self, group: Group, keyring: Keyring, content: EraKey) -> None:
        if content.era <= keyring.era:
            return
        # One server chooses the time of the new key's first use. If that server fails, others choose it, and their
        # keyrings merge.
        latest = ClockBound(clock_ms()).at(0)
        await group.change_keyring(keyring.rekeyed(content.key, content.era, content.used_at, latest))
        self._offers.clear()
        self._end_alarm()
        self.trace.append(KEYS_REPLACED, {"era": content.era})

    def _end_alarm(self) -> None:
        self._lacks_key = False
        self.alarms.clear(KEY_RETIRED)

    # -- nodes that were offline ---------------------------------------------------------------------------------------

    def offer_to(self, applicant: NodeInfo) -> bytes:
        """Return the present key, sealed, for a member with a retired key; empty in era 0 and for other nodes."""
        keys, admitted, node_id = self._keys(), self._state.admitted, applicant.node_id
        known = raft_id_of(admitted, node_id)
        if keys is None or keys[1].era == 0 or known is None or not admitted[known].is_member:
            return b""
        group, keyring = keys
        label = self.farm_keys.current.label
        self.learn_outdated(applicant)
        public_key = applicant.credential[:PUBLIC_KEY_BYTES]
        box = seal_key(EraKey(keyring.era, keyring.used_at, keyring.primary), public_key, label)
        return sign_offer(box, node_id, label, group.identity.key)

    async def offered(self, event: KeyOffered) -> None:
        """Handle a member's offer of another key, after it refused this node's."""
        keys = self._keys()
        if keys is None:
            return
        group, keyring = keys
        label = self.farm_keys.current.label
        try:
            offer = read_offer(event.offer, self.node_id, label)
            content = open_key(offer.box, group.identity.key, label)
        except KeyBoxError as error:
            self.trace.append(KEY_OFFER_REFUSED, {"reason": str(error)})
            return
        voters = self._other_voters()
        if offer.sponsor not in voters or content.era <= keyring.era:
            return
        if content not in self._offers and len(self._offers) >= OFFERS_MAX:
            return
        sponsors = self._offers.setdefault(content, set())
        if offer.sponsor not in sponsors:
            sponsors.add(offer.sponsor)
            needed = sponsors_needed(len(voters))
            facts: dict[str, Scalar] = {
                "era": content.era,
                "from": offer.sponsor.hex(),
                "vouching": len(sponsors),
                "needed": needed,
            }
            sponsor = raft_id_of(self._state.admitted, offer.sponsor)
            name = None if sponsor is None else self._state.admitted[sponsor].name
            if name:
                facts["name"] = name
            self.trace.append(KEY_OFFERED, facts)
            if len(sponsors) >= needed:
                await self._begin_era(group, keyring, content)

    def _other_voters(self) -> frozenset[bytes]:
        """Return the identities of the other voters, by the log and `admissions.json`."""
        admitted = self._state.admitted
        voters = set()
        for server_id in map(integer_id, self.replica.server.describe().raft.configuration.voter_ids):
            each: Admitted | None = admitted.get(server_id)
            node_id = self.known.admissions.node_id_of(server_id) if each is None else each.node_id
            if node_id is not None and node_id != self.node_id and (each is None or each.is_member):
                voters.add(node_id)
        return frozenset(voters)


async def _after_a_moment(end_connections: Callable[[], None]) -> None:
    # Delayed: the others first have to receive the new keys, over open connections.
    await trio.sleep(END_CONNECTIONS_AFTER_S)
    end_connections()
