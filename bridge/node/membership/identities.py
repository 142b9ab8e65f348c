"""What a node does about identities while it runs: its own standing, the keys of an era, the farm's feature level.

    log: this node is retired or evicted ─────▶ it stops, and says why
    log: an era of keys begins ───────────────▶ its own box opened ─▶ gossip and Raft port change keys at once
    gossip: a member refuses our key, and offers the new one ─▶ enough members vouch for it ─▶ likewise
    gossip: somebody comes with an old key ───▶ an admitted identity is offered the new one, sealed for it
    this node leads, all voters know more ────▶ the feature level is raised

*A router that was away while the keys were replaced* has only old ones, which open nothing. If the leader can reach it,
it gets the log over its own Raft port, whose certificate its peers know, and in it its box. If not, it knocks at the
members that it remembers; each answers with the new key sealed for it, signed. One such answer proves nothing: the
router that was evicted meanwhile is in the old log as a member, and could make a key of its own look like the farm's.
So a key counts only when a majority of the other voters that this node knows, and two of them at least, vouch for the
same one. Where that cannot be, the operator brings the key file, which is the way that always works
(`docs/how-to/stolen-router.md`).

*Connections.* The Raft port asks for credentials when a connection begins. So when an era begins, all that were
accepted or made before are ended a moment later, and whoever belongs to the farm connects again. Over I2P no era begins
by itself, since no gossip carries keys: there an eviction ends them.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import trio

from bridge.api.trace import Scalar
from bridge.core.log.feature_level import SUPPORTED_LEVEL, next_level
from bridge.core.membership.admission import Admitted, Standing, is_lapsed, out_refusal, raft_id_of
from bridge.core.membership.eviction import sponsors_needed
from bridge.core.state.farm_state import FarmState
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from bridge.node.membership.admissions import AdmissionStore
from bridge.node.membership.member_directory import MemberDirectory
from bridge.node.membership.membership_provider import MembershipProvider
from bridge.node.raft.applied_state import AppliedState
from bridge.node.raft.entry_signer import EntrySigner
from bridge.node.raft.replica import Replica
from bridge.node.security.farm_keys import FarmKeys
from bridge.wire.keys.box import EraKey, KeyBoxError, open_key, read_offer, seal_key, sign_offer
from bridge.wire.log.entries import encode
from consensus import ServerStoppedError, integer_id
from gossip import AlarmKind, Group, KeyOffered, Keyring

OFFERS_MAX: Final = 8
"""Keys that are vouched for by somebody and not by enough."""
END_CONNECTIONS_AFTER_S: Final = 2.0
LEVEL_EVERY_S: Final = 1.0


class Identities:
    """One node's. `belongs` once the farm is known, `follow` with gossip, `founded` with a log; then `run` it."""

    def __init__(
        self,
        farm_keys: FarmKeys,
        trace: EventLog,
        alarms: Alarms,
        halt: Callable[[str], None],
    ) -> None:
        self._farm_keys = farm_keys
        self._trace = trace
        self._alarms = alarms
        self._halt = halt
        self._node_id = b""
        self._agent: Group | None = None
        """None as well where no gossip carries keys."""
        self._applied_state: AppliedState | None = None
        self._replica: Replica | None = None
        self._notes: AdmissionStore | None = None
        self._offers: dict[EraKey, set[bytes]] = {}
        self._evicted: set[bytes] = set()
        """Whose connections have ended, or were never begun since this node knew of it from the start."""

    def follow(self, company: MembershipProvider) -> None:
        """The others can be heard."""
        self._node_id = company.node_id
        self._agent = company if isinstance(company, Group) else None

    def belongs(self, notes: AdmissionStore) -> None:
        """This node knows its farm. After a restart that is before gossip begins, and long before there is a log."""
        self._notes = notes

    def founded(self, replica: Replica, applied_state: AppliedState, notes: AdmissionStore) -> None:
        """There is a log."""
        self._replica, self._applied_state, self._notes = replica, applied_state, notes
        self._evicted |= notes.out

    def is_out(self, server_id: int) -> bool:
        """Whether the log says that this server's identity is retired or evicted: nobody dials it or listens to it."""
        each = None if self._applied_state is None else self._applied_state.state.admitted.get(server_id)
        return each is not None and not each.is_member

    async def run(
        self,
        replica: Replica,
        applied_state: AppliedState,
        signer: EntrySigner,
        member_directory: MemberDirectory,
        end_connections: Callable[[], None],
    ) -> None:
        """Works until cancelled. `end_connections` ends those to the Raft port, and this node's own to others'."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._raise_level, replica, applied_state, signer, member_directory)
            while True:
                if self._is_thrown_out(applied_state.state):
                    return
                if await self._follow_era(applied_state.state) or self._somebody_is_evicted(applied_state.state):
                    nursery.start_soon(_after_a_moment, end_connections)
                await applied_state.news()

    # -- this node's own standing --------------------------------------------------------------------------------------

    def _is_thrown_out(self, state: FarmState) -> bool:
        reason = out_refusal(state.admitted, self._node_id)
        if reason is not None:
            self._halt(f"this node is not a member of its farm any more: {reason}")
        return reason is not None

    # -- the keys of an era --------------------------------------------------------------------------------------------

    async def _follow_era(self, state: FarmState) -> bool:
        """Whether an era has begun."""
        agent = self._agent
        chain = None if agent is None else agent.keyring
        if agent is None or chain is None or state.rekeying.era <= chain.era:
            return False
        box = state.rekeying.boxes.get(agent.node_id.hex(), b"")
        try:
            content = open_key(box, agent.identity.key, self._farm_keys.current.label)
        except KeyBoxError as error:
            why = str(error) if box else "none was sealed for this node, whose public key was not known then"
            text = f"the farm's keys were replaced, but this node lacks the new one: {why}"
            self._alarms.set(AlarmKind.KEY_RETIRED.value, text, self._farm_keys.way_back)
            return False
        await self._begin_era(agent, chain, content)
        return True

    def _somebody_is_evicted(self, state: FarmState) -> bool:
        """Whether this is news, and no era tells it."""
        evicted = {each.node_id for each in state.admitted.values() if each.standing is Standing.EVICTED}
        news = evicted - self._evicted
        self._evicted |= news
        return bool(news) and self._agent is None

    async def _begin_era(self, agent: Group, chain: Keyring, content: EraKey) -> None:
        if content.era <= chain.era:
            return
        await agent.change_keyring(chain.rekeyed(content.key, content.era, content.used_at))
        self._offers.clear()
        self._alarms.clear(AlarmKind.KEY_RETIRED.value)
        self._trace.append("keys-replaced", {"era": content.era})

    # -- those who were away -------------------------------------------------------------------------------------------

    def offer_to(self, node_id: bytes, public_key: bytes) -> bytes:
        """What somebody with a retired key is told: the key of now, if the log says that he is a member."""
        agent = self._agent
        chain = None if agent is None else agent.keyring
        if agent is None or chain is None or chain.era == 0 or self._applied_state is None:
            return b""
        admitted = self._applied_state.state.admitted
        known = raft_id_of(admitted, node_id)
        if known is None or not admitted[known].is_member:
            return b""
        label = self._farm_keys.current.label
        box = seal_key(EraKey(chain.era, chain.used_at, chain.primary), public_key, label)
        return sign_offer(box, node_id, label, agent.identity.key)

    async def offered(self, event: KeyOffered) -> None:
        """A member refuses this node's key and offers another one."""
        agent = self._agent
        chain = None if agent is None else agent.keyring
        if agent is None or chain is None:
            return
        label = self._farm_keys.current.label
        try:
            offer = read_offer(event.offer, agent.node_id, label)
            content = open_key(offer.box, agent.identity.key, label)
        except KeyBoxError as error:
            self._trace.append("key-offer-refused", {"reason": str(error)})
            return
        voters = self._other_voters(agent.node_id)
        if offer.sponsor not in voters or content.era <= chain.era:
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
            self._trace.append("key-offered", facts)
            if len(sponsors) >= needed:
                await self._begin_era(agent, chain, content)

    def _other_voters(self, own_id: bytes) -> frozenset[bytes]:
        """Identities of the voters, by all that this node knows."""
        if self._replica is None or self._applied_state is None or self._notes is None:
            return frozenset()
        admitted = self._applied_state.state.admitted
        voters = set()
        for server_id in map(integer_id, self._replica.server.describe().raft.configuration.voter_ids):
            each: Admitted | None = admitted.get(server_id)
            node_id = self._notes.node_id_of(server_id) if each is None else each.node_id
            if node_id is not None and node_id != own_id and (each is None or each.is_member):
                voters.add(node_id)
        return frozenset(voters)

    def may_tell_keys(self, node_id: bytes) -> bool:
        """Whether what this identity says of the gossip keys counts: the farm admitted it.

        What is on disk of the farm counts until the log has been replayed. Otherwise a copied key could tell keys to
        every node that restarts, which would pass them on under its own signature. Before a node knows its farm
        nobody is admitted: then whoever signs may be a founder-to-be, and is believed.
        """
        notes = self._notes
        if notes is None:
            return True
        if node_id in notes.out:
            return False
        admitted = {} if self._applied_state is None else self._applied_state.state.admitted
        known = raft_id_of(admitted, node_id)
        if known is not None:
            return admitted[known].is_member
        noted = notes.raft_id_of(node_id)
        return noted is not None and not is_lapsed(admitted, noted)

    # -- the feature level ---------------------------------------------------------------------------------------------

    async def _raise_level(
        self, replica: Replica, applied_state: AppliedState, signer: EntrySigner, member_directory: MemberDirectory
    ) -> None:
        while True:
            await trio.sleep(LEVEL_EVERY_S)
            if not replica.leads:
                continue
            told = {each.metadata.raft_id: each.metadata.feature_level for each in member_directory.members()}
            told[replica.server_id] = SUPPORTED_LEVEL
            voters = map(integer_id, replica.server.describe().raft.configuration.voter_ids)
            level = next_level(applied_state.state.level, [told.get(each) for each in voters])
            if level is not None:
                answer = await replica.server.propose((signer.sign(encode(level)),))
                if answer.position is not None:
                    with suppress(ServerStoppedError):
                        await replica.server.wait_applied(answer.position.index)


async def _after_a_moment(end_connections: Callable[[], None]) -> None:
    # Not at once: the others, too, first have to hear of the new keys, over connections that are open.
    await trio.sleep(END_CONNECTIONS_AFTER_S)
    end_connections()
