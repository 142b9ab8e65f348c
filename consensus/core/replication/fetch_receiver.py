"""What arrives of pulling replication, in any role: who answers it, and what it means for the role (KIP-595).

    Fetch               the leader serves it (`pull`); anybody else says who leads, if he knows
    FetchSnapshot       likewise, for a piece of the snapshot (`snapshot_serving`)
    FetchReply          the follower takes it: cuts where the logs diverge, appends, follows the commit index
    FetchSnapshotReply  the follower stores the piece (`snapshots`), and asks for the next when it is durable
    BeginQuorumEpoch    follow its sender, unless it contradicts what is known of the term
    EndQuorumEpoch      the leader resigned: campaign, at once or after a back-off that grows with the place in its list

A cluster id that contradicts ours is refused. It ends this process only when an elected leader says it, by refusing our
fetch or by announcing itself: were every contradiction fatal, one misconfigured server could stop a healthy majority,
and a vote request's is therefore a refusal like any other. An id that either side does not know yet is not compared.

"Follow whom I was told" is hearsay: it names whom to fetch from and restarts the timer once, but does not make us deaf
to candidates. Only the leader's own word does. While it does, a leader of a later term that is outside the group as our
log knows it is refused, and a fetch reply that names one is dropped (`Roles.keeps_its_leader`).
"""

from typing import assert_never

from consensus.core import snapshots
from consensus.core.effects import Halt
from consensus.core.model import Milliseconds, ServerId
from consensus.core.pull_messages import (
    BeginQuorumEpoch,
    BeginQuorumEpochReply,
    EndQuorumEpoch,
    EndQuorumEpochReply,
    Fetch,
    FetchReply,
    FetchSnapshot,
    FetchSnapshotReply,
    PullError,
    PullMessage,
    PullRequest,
)
from consensus.core.replica import Replica
from consensus.core.replication.fetch_follower import Fetcher
from consensus.core.replication.fetch_leader import refuse_fetch
from consensus.core.replication.taking import take, take_piece
from consensus.core.roles import Roles
from consensus.core.snapshot_serving import refuse_piece


class Pulling:
    """The pulling side of one replica, whatever its role."""

    def __init__(self, replica: Replica, roles: Roles) -> None:
        self._replica = replica
        self._roles = roles
        self.fetcher = Fetcher(replica)

    def tend(self) -> None:
        """After every step: a follower asks for what comes next."""
        follower = self._roles.follower
        if follower is not None:
            self.fetcher.tend(follower.leader)

    def receive(self, sender: ServerId, message: PullMessage) -> None:
        """A plausible message of the strategy arrives."""
        match message:
            case Fetch() | FetchSnapshot():
                self._fetch_requested(message)
            case BeginQuorumEpoch():
                self._begin_requested(message)
            case EndQuorumEpoch():
                self._end_requested(message)
            case FetchReply() | FetchSnapshotReply():
                self._fetch_replied(sender, message)
            case BeginQuorumEpochReply() | EndQuorumEpochReply():
                self._announcement_replied(sender, message)
            case _:
                assert_never(message)

    def _refuse(self, sender: ServerId, request: PullRequest, error: PullError) -> None:
        refuse(self._replica, sender, request, self._roles.leader, error)

    def _fetch_requested(self, fetch: Fetch | FetchSnapshot) -> None:
        """KIP-595, Fetch request handling, steps 1 and 2; the strategy does the others."""
        replica, strategy = self._replica, self._roles.strategy
        if replica.is_foreign(fetch.cluster_id):
            foreign = PullError.NOT_LEADER if strategy is None else PullError.INCONSISTENT_CLUSTER_ID
            self._refuse(fetch.replica, fetch, foreign)
        elif fetch.term > replica.term:
            # Of a voter: it may know more than we. Anybody else, such as a removed server that campaigns in vain, would
            # depose leader after leader.
            if fetch.replica in replica.voters:
                self._roles.check_term(fetch.term)
            self._refuse(fetch.replica, fetch, PullError.UNKNOWN_LEADER_EPOCH)
        elif fetch.term < replica.term:
            self._refuse(fetch.replica, fetch, PullError.FENCED_LEADER_EPOCH)
        elif strategy is None:
            self._refuse(fetch.replica, fetch, PullError.NOT_LEADER)
        else:
            strategy.receive(fetch.replica, fetch)

    def _begin_requested(self, begin: BeginQuorumEpoch) -> None:
        replica, sender = self._replica, begin.leader
        if replica.is_foreign(begin.cluster_id):
            self._refuse(sender, begin, PullError.INCONSISTENT_CLUSTER_ID)
            if sender in replica.voters and begin.term >= replica.term:
                self._halt(f"server {sender}, the leader of term {begin.term}, belongs to cluster {begin.cluster_id}")
            return
        if begin.term < replica.term:
            self._refuse(sender, begin, PullError.FENCED_LEADER_EPOCH)
            return
        outside = self._roles.keeps_its_leader(sender, begin.term)
        if outside or not self._roles.check_term(begin.term, of_a_leader=True):
            self._refuse(sender, begin, PullError.UNKNOWN_LEADER_EPOCH)
            return
        if self._roles.leader not in (None, sender):
            replica.dropped["announcement of a second leader of the term"] += 1
            self._refuse(sender, begin, PullError.INVALID_QUORUM_STATE)
            return
        if not self._leader_has_spoken:
            self.fetcher.begin_anew()
        self._roles.follow(sender)
        reply = BeginQuorumEpochReply(replica.term, sender, begin.correlation)
        replica.outbox.send(sender, reply, after=replica.hard_state_number)

    def _end_requested(self, end: EndQuorumEpoch) -> None:
        replica, sender = self._replica, end.leader
        if replica.is_foreign(end.cluster_id):
            self._refuse(sender, end, PullError.INCONSISTENT_CLUSTER_ID)
            return
        if end.term < replica.term:
            self._refuse(sender, end, PullError.FENCED_LEADER_EPOCH)
            return
        if self._roles.keeps_its_leader(sender, end.term) or not self._roles.check_term(end.term):
            self._refuse(sender, end, PullError.UNKNOWN_LEADER_EPOCH)
            return
        follower = self._roles.follower
        if follower is None or sender not in (follower.leader, follower.former):
            self._refuse(sender, end, PullError.INVALID_QUORUM_STATE)
        elif replica.server_id not in end.preferred:
            self._refuse(sender, end, PullError.INCONSISTENT_VOTER_SET)
        else:
            replica.outbox.send(
                sender, EndQuorumEpochReply(replica.term, None, end.correlation), replica.hard_state_number
            )
            backoff_ms = succession_backoff_ms(replica, end.preferred.index(replica.server_id))
            self._roles.campaign_at(replica.now + backoff_ms)

    def _announcement_replied(self, sender: ServerId, reply: BeginQuorumEpochReply | EndQuorumEpochReply) -> None:
        replica = self._replica
        if sender not in replica.voters:
            replica.dropped["reply from a server outside the configuration"] += 1
            return
        if not self._roles.check_term(reply.term):
            return
        strategy = self._roles.strategy
        if reply.term < replica.term:
            replica.dropped["reply of an older term"] += 1
        elif strategy is not None and isinstance(reply, BeginQuorumEpochReply) and reply.error is None:
            strategy.receive(sender, reply)
        elif reply.error is not None:
            self._hear_of(reply.leader)

    def _fetch_replied(self, sender: ServerId, reply: FetchReply | FetchSnapshotReply) -> None:
        """KIP-595, Fetch response handling."""
        replica, roles = self._replica, self._roles
        asked = self.fetcher.answered(sender, reply.correlation)
        if asked is None:
            replica.dropped["stale or foreign fetch reply"] += 1
            return
        self.fetcher.rest()
        if reply.error is PullError.INCONSISTENT_CLUSTER_ID and reply.leader == sender:
            self._halt(f"the leader, server {sender}, belongs to another cluster")
            return
        named = sender if reply.leader is None else reply.leader
        if roles.keeps_its_leader(sender, reply.term) or roles.keeps_its_leader(named, reply.term):
            return
        if not roles.check_term(reply.term, of_a_leader=reply.error is None and reply.leader == sender):
            return
        if reply.term < replica.term:
            replica.dropped["reply of an older term"] += 1
        elif reply.error is not None:
            self._turned_away(sender, reply)
        elif roles.strategy is not None or reply.leader != sender or roles.leader not in (None, sender):
            replica.dropped["fetch reply of a second leader of the term"] += 1
        else:
            self._follow(sender)
            brought = (
                take(replica, asked, reply) if isinstance(reply, FetchReply) else take_piece(replica, asked, reply)
            )
            if brought:
                self.fetcher.go_on()

    @property
    def _leader_has_spoken(self) -> bool:
        """Whether the leader of this term has told us itself that it leads; hearsay is no such word."""
        follower = self._roles.follower
        return follower is not None and None not in {follower.leader, follower.contact_ms}

    def _follow(self, leader: ServerId) -> None:
        """The leader has answered a fetch. With its first word, what was asked before it led becomes meaningless."""
        if not self._leader_has_spoken:
            self.fetcher.forget_others()
        self._roles.follow(leader)

    def _turned_away(self, sender: ServerId, reply: FetchReply | FetchSnapshotReply) -> None:
        """Who was asked does not lead: go to whom it names, else try the next. A leader lacks what was asked for."""
        if reply.leader == sender:
            self._follow(sender)
            if reply.error is not PullError.THROTTLED:
                snapshots.abandon(self._replica)
            return
        follower = self._roles.follower
        if follower is not None and follower.leader == sender:
            follower.disown()
        self._hear_of(reply.leader)

    def _hear_of(self, leader: ServerId | None) -> None:
        follower = self._roles.follower
        known = self._roles.strategy is not None or self._roles.leader is not None
        if leader is None or known or leader == self._replica.server_id:
            return
        if follower is None or follower.former != leader:
            self._roles.follow_hearsay(leader)
            self.fetcher.go_on()

    def _halt(self, contradiction: str) -> None:
        own = self._replica.cluster_id
        self._replica.outbox.add(
            Halt(
                f"{contradiction}, this server to cluster {own}: stop it, and correct the addresses of its peers or "
                f"give it the storage that belongs to this cluster"
            )
        )


def succession_backoff_ms(replica: Replica, place: int) -> Milliseconds:
    """How long the successor at this place of the list waits: nothing, then one unit, doubled from place to place."""
    if place == 0:
        return 0
    return min(replica.options.election_timeout_min_ms, replica.options.heartbeat_ms << min(place - 1, 32))


def refuse(replica: Replica, sender: ServerId, request: PullRequest, leader: ServerId | None, error: PullError) -> None:
    """Answer a request that changes nothing."""
    match request:
        case Fetch():
            refuse_fetch(replica, request, leader, error)
        case FetchSnapshot():
            refuse_piece(replica, request, leader, error)
        case BeginQuorumEpoch(correlation=correlation):
            reply = BeginQuorumEpochReply(replica.term, leader, correlation, error)
            replica.outbox.send(sender, reply, replica.hard_state_number)
        case EndQuorumEpoch(correlation=correlation):
            refusal = EndQuorumEpochReply(replica.term, leader, correlation, error)
            replica.outbox.send(sender, refusal, replica.hard_state_number)
        case _:
            assert_never(request)
