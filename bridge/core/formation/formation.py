"""Formation: nodes that only discovered each other become one Raft cluster, once (docs/explanation/formation.md).

    watching ──unanimous proposal──▶ promised ──all promises seen──▶ endorsed ──all endorse the same──▶ founded
        │                               │ ▲                             │ │                                ▲
        │                    withdrawal │ │ (operator)                  │ └── a founder reports the same ──┘
        └── the trusted cluster is seen ┴─┴─────────────────────────────┴──▶ observer

Raft usually starts from a configuration that an operator writes. Here the nodes agree on a configuration, and simple
rules for this fail. "The lowest NodeId starts" creates two clusters if two nodes do not see each other yet. "Start with
a majority of `expect`" creates two if the number of nodes exceeds `expect`. So each founder durably promises one set,
and durably endorses one founding. Proposals do not decide anything; they only make conflicting promises rare.
"""

from collections.abc import Mapping
from random import Random
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from bridge.core.formation import messages
from bridge.core.formation.alarms import Situation, alarms_of, list_founders
from bridge.core.formation.founding import (
    CLOCK_LIMIT_MS,
    EXPECT_MAX,
    NONCE_BYTES,
    WITHDRAWALS_MAX,
    FormationNotice,
    FormationState,
    Founders,
    Founding,
    Promise,
    founding_of,
    is_set_of_founders,
)
from bridge.core.formation.member import FarmMember

__all__ = ["Formation", "FormationTuning"]

_IS_WRITING = "formation is writing a step. Try again in a moment."


class FormationTuning(Struct, frozen=True):
    """Times of formation: a proposal must be unanimous for `settle_ms`; a promise waits `patience_ms` without alarm."""

    settle_ms: int = 1_000
    patience_ms: int = 20_000


class Formation:
    """One node's part in creating the farm. The first event is `Started`; `durable` is the persisted state, if any.

    `cluster_id` is the cluster id in the farm key file, if any. `founders` are the only nodes that may create the farm,
    if an operator listed them.
    """

    def __init__(
        self,
        node_id: bytes,
        expect: int,
        durable: FormationState,
        random: Random,
        *,
        cluster_id: bytes | None = None,
        may_create: bool = True,
        founders: frozenset[bytes] | None = None,
        tuning: FormationTuning | None = None,
    ) -> None:
        if not 1 <= expect <= EXPECT_MAX:
            raise ValueError(f"expect is {expect}; a farm is created by 1 to {EXPECT_MAX} nodes")
        if founders is not None and not expect <= len(founders) < 2 * expect:
            raise ValueError(
                f"{len(founders)} founders are listed; for `expect = {expect}` list {expect} to {2 * expect - 1}"
            )
        self.deadline: int | None = None
        self._node_id = node_id
        self._expect = expect
        self._durable = durable
        self._random = random
        self._key_file_cluster = cluster_id
        self._founders = founders
        self._may_create = may_create and self._may_be_founder(node_id)
        self._tuning = tuning if tuning is not None else FormationTuning()
        self._members: dict[bytes, FarmMember] = {}
        self._proposal: Founders = ()
        self._unanimous_since: int | None = None
        self._troubled_since: int | None = None
        self._pending: tuple[int, FormationState] | None = None
        self._persist_count = 0
        self._advertised: FormationNotice | None = None
        self._alarms: tuple[str, ...] = ()
        self._effects: list[messages.Effect] = []

    def step(self, event: messages.Event, now: int, clock_ms: int) -> list[messages.Effect]:
        """Process one event; `now` is monotonic, `clock_ms` the wall clock that a promise carries."""
        match event:
            case messages.Started():
                self._announce_outcome()
            case messages.MembersChanged(members):
                self._members = {member.node_id: member for member in members if member.node_id != self._node_id}
            case messages.DeadlineReached():
                self.deadline = None
            case messages.Persisted(number):
                self._persisted(number)
            case messages.WithdrawRequested():
                self._withdraw()
            case messages.ConfirmRequested(cluster_id):
                self._confirm(cluster_id)
            case _:
                assert_never(event)
        self._decide(now, clock_ms)
        effects, self._effects = self._effects, []
        return effects

    @property
    def phase(self) -> messages.FormationPhase:
        """The node's phase, derived from durable state only."""
        if self._durable.founding is not None:
            return messages.FormationPhase.FOUNDED
        if self._durable.known is not None:
            return messages.FormationPhase.OBSERVER
        return messages.FormationPhase.WATCHING if self._durable.promise is None else messages.FormationPhase.PROMISED

    @property
    def founding(self) -> Founding | None:
        """The cluster that this node created or knows."""
        return self._durable.founding or self._durable.known

    @property
    def waiting_for(self) -> Founders:
        """Promised founders whose own promises this node has not seen; after its endorsement, `unendorsed_by`."""
        promise = self._durable.promise
        if promise is None or self.founding is not None:
            return ()
        if self._durable.endorsed is not None and self._durable.endorsed.rests_on(self._node_id, promise):
            return self.unendorsed_by
        return tuple(each for each in promise.founders if each not in self._promises_for(promise.founders))

    @property
    def unendorsed_by(self) -> Founders:
        """Nodes that have not yet endorsed the founding that this node endorsed, and must do so.

        These are its founders, and all other eligible nodes in reach. A node endorses only one founding, so these nodes
        cannot create another farm.
        """
        endorsed = self._durable.endorsed
        if endorsed is None:
            return ()
        needed = set(endorsed.founders) | {
            member.node_id for member in self._members.values() if member.reachable and self._is_candidate(member)
        }
        endorsing = {
            member.node_id
            for member in self._members.values()
            if member.notice.endorses(endorsed) and not member.equivocates
        }
        return tuple(sorted(needed - endorsing - {self._node_id}))

    @property
    def alarms(self) -> tuple[str, ...]:
        """The current alarms, as text for an operator."""
        return self._alarms

    @property
    def ignored(self) -> Mapping[bytes, Founding]:
        """The foundings that this node does not accept, by the NodeId of the member that announces each."""
        own = self.founding
        return {
            node_id: announced
            for node_id, member in self._members.items()
            if (announced := member.notice.founding) is not None
            and announced != own
            and (own is not None or not (self._trusts(announced) or self._may_adopt(announced)))
        }

    @property
    def notice(self) -> FormationNotice:
        """The notice of this node; it contains a promise or founding only once that is durable."""
        if self.founding is not None:
            return FormationNotice(founding=self.founding)
        endorsed = self._durable.endorsed
        endorsement = b"" if endorsed is None else endorsed.cluster_id
        if self._durable.promise is not None:
            return FormationNotice(promise=self._durable.promise, endorsement=endorsement)
        return FormationNotice(proposal=self._proposal, endorsement=endorsement)

    def _decide(self, now: int, clock_ms: int) -> None:
        if self._pending is None and self._durable.founding is None:
            next_state = self._next_state(now, clock_ms)
            if next_state is not None:
                self._persist_count += 1
                self._pending = (self._persist_count, next_state)
                self._effects.append(messages.Persist(self._persist_count, next_state))
        notice = self.notice
        if notice != self._advertised:
            self._advertised = notice
            self._effects.append(messages.Advertise(notice))
        self._review_alarms(now)

    def _next_state(self, now: int, clock_ms: int) -> FormationState | None:
        own = self._own_founding()
        if own is not None:
            return replace(self._durable, founding=own, endorsed=None, revoked=())
        if self._durable.known is not None:
            return None
        foundings = self._foundings_seen()
        if foundings:
            # Without a trusted cluster id, the node waits for its operator (`confirm-cluster`).
            to_join = next((each for each in foundings if self._trusts(each)), None)
            if to_join is not None:
                return replace(self._durable, known=to_join, endorsed=None, revoked=())
            return None
        return self._first_endorsement() or self._first_promise(now, clock_ms)

    def _first_endorsement(self) -> FormationState | None:
        seen = self._complete() if self._durable.endorsed is None else None
        return None if seen is None else replace(self._durable, endorsed=seen)

    @property
    def _trusted(self) -> bytes | None:
        """The cluster id from the key file or from an operator, if any."""
        return self._key_file_cluster or self._durable.confirmed

    def _trusts(self, announced: Founding) -> bool:
        return announced.cluster_id == self._trusted

    def _own_founding(self) -> Founding | None:
        for member in self._members.values():
            announced = member.notice.founding
            if announced is not None and self._may_adopt(announced):
                return announced
        promise, made = self._durable.promise, self._durable.endorsed
        if promise is None or self._durable.known is not None:
            return None
        if self._expect == 1:
            # This promise is the only one in the set, so other nodes cannot have seen a different one.
            made = founding_of({self._node_id: promise})
        if made is None or not made.rests_on(self._node_id, promise):
            return None
        if self._expect > 1 and self.unendorsed_by:
            return None
        if self._trusted is not None and not self._trusts(made):
            return None
        return made if all(seen == made for seen in self._foundings_seen()) else None

    def _complete(self) -> Founding | None:
        """Return the founding of a set with all promises: this node's set, or the first that may still be created."""
        own = self._durable.promise
        sets = {member.notice.promise.founders for member in self._members.values() if member.notice.promise}
        complete = [
            founders
            for founders in sorted(sets)
            if is_set_of_founders(founders, self._expect)
            and self._expect > 1
            and all(self._may_be_founder(each) for each in founders)
            and len(self._promises_for(founders)) == self._expect
        ]
        if own is not None and own.founders in complete:
            return founding_of(self._promises_for(own.founders))
        made = [founding_of(self._promises_for(founders)) for founders in complete]
        return next((each for each in made if self._may_still_be_created(each)), None)

    def _may_adopt(self, announced: Founding) -> bool:
        if self._durable.known is not None and self._durable.known != announced:
            return False
        if not self._has_promised(announced):
            return False
        # Any member, a founder too, can combine this node's public promise with invented ones.
        if self._trusted is not None:
            return self._trusts(announced)
        return announced == self._durable.endorsed or announced in self._durable.revoked

    def _has_promised(self, announced: Founding) -> bool:
        own = self._durable.promise
        promises = self._durable.withdrawn if own is None else (own,)
        return any(announced.rests_on(self._node_id, promise) for promise in promises)

    def _first_promise(self, now: int, clock_ms: int) -> FormationState | None:
        if self._durable.promise is not None or self._durable.endorsed is not None:
            return None
        proposal = self._best_proposal()
        if proposal != self._proposal:
            self._proposal, self._unanimous_since = proposal, None
        others = [self._members[each] for each in proposal if each != self._node_id]
        if not proposal or any(member.notice.backs != proposal for member in others):
            self._unanimous_since = None
            return None
        if self._unanimous_since is None:
            self._unanimous_since = now
        # A single founder does not depend on other nodes, so it does not wait.
        settled_at = self._unanimous_since + (self._tuning.settle_ms if self._expect > 1 else 0)
        if now < settled_at:
            self.deadline = settled_at
            return None
        earlier = self._durable.withdrawn
        promise = (
            replace(earlier[0], founders=proposal)
            if earlier
            else Promise(proposal, min(max(clock_ms, 0), CLOCK_LIMIT_MS - 1), self._random.randbytes(NONCE_BYTES))
        )
        return replace(self._durable, promise=promise)

    def _best_proposal(self) -> Founders:
        if not self._may_create or self._trusted is not None or self._too_many():
            return ()
        available = {self._node_id} | {
            member.node_id for member in self._members.values() if member.reachable and self._is_candidate(member)
        }
        promised: dict[Founders, int] = {}
        for node_id in available:
            founders = self._promised_by(node_id)
            if founders:
                promised[founders] = promised.get(founders, 0) + 1
        completable = [
            founders
            for founders in promised
            if self._node_id in founders
            and is_set_of_founders(founders, self._expect)
            and all(each in available and self._promised_by(each) in ((), founders) for each in founders)
        ]
        if completable:
            return min(completable, key=lambda founders: (-promised[founders], founders))
        free = sorted(node_id for node_id in available if not self._promised_by(node_id))
        lowest = tuple(free[: self._expect])
        return lowest if len(lowest) == self._expect and self._node_id in lowest else ()

    def _promised_by(self, node_id: bytes) -> Founders:
        member = self._members.get(node_id)
        return member.notice.promise.founders if member is not None and member.notice.promise is not None else ()

    def _promises_for(self, founders: Founders) -> dict[bytes, Promise]:
        promises = {
            member.node_id: member.notice.promise
            for member in self._members.values()
            if member.notice.promise is not None
            and member.notice.promise.founders == founders
            and not member.equivocates
        }
        own = self._durable.promise
        if own is not None and own.founders == founders:
            promises[self._node_id] = own
        return {node_id: promise for node_id, promise in promises.items() if node_id in founders}

    def _foundings_seen(self) -> list[Founding]:
        seen = {member.notice.founding for member in self._members.values() if member.notice.founding is not None}
        return sorted(seen, key=lambda founding: founding.cluster_id)

    def _may_still_be_created(self, seen: Founding) -> bool:
        """Return True if this node, outside the set, should endorse the founding.

        Promises of lost nodes may still be listed. So this node must reach all founders, or one founder with this
        endorsement.
        """
        reached = [member for each in seen.founders if (member := self._members.get(each)) and member.reachable]
        return len(reached) == len(seen.founders) or any(member.notice.endorses(seen) for member in reached)

    def _may_be_founder(self, node_id: bytes) -> bool:
        return self._founders is None or node_id in self._founders

    def _is_candidate(self, member: FarmMember) -> bool:
        return member.eligible and not member.equivocates and self._may_be_founder(member.node_id)

    def _too_many(self) -> bool:
        eligible = [
            member
            for member in self._members.values()
            if self._is_candidate(member) and (member.reachable or member.notice.promise is not None)
        ]
        return self._expect > 1 and len(eligible) + 1 >= 2 * self._expect

    def _persisted(self, number: int) -> None:
        if self._pending is None or self._pending[0] != number:
            return
        before, self._durable = self._durable, self._pending[1]
        self._pending = None
        if self._durable.promise != before.promise:
            self._proposal, self._unanimous_since, self._troubled_since = (), None, None
        if (self._durable.founding, self._durable.known) != (before.founding, before.known):
            self._announce_outcome()

    def _announce_outcome(self) -> None:
        if self._durable.founding is not None:
            self._effects.append(
                messages.Founded(self._durable.founding, self._durable.founding.raft_id(self._node_id))
            )
        elif self._durable.known is not None:
            self._effects.append(messages.KnowsCluster(self._durable.known))

    def withdrawal_refusal(self) -> str | None:
        """Return the reason why this node's promise cannot be withdrawn now; None if it can."""
        refusal = None
        if self.founding is not None or self._foundings_seen():
            refusal = "the farm is created, so a withdrawal is too late. To leave it, use `garlicfarm leave`."
        elif self._durable.promise is None and self._durable.endorsed is None:
            refusal = "this node has not made a promise yet."
        elif self._pending is not None:
            refusal = _IS_WRITING
        elif self._is_about_to_exist():
            refusal = f"the founding is under way: all founders have promised. {self._until_it_exists()}"
        elif max(len(self._durable.withdrawn), len(self._durable.revoked)) >= WITHDRAWALS_MAX:
            refusal = f"this node has withdrawn {WITHDRAWALS_MAX} times; give it a new state directory instead."
        return None if refusal is None else f"Withdrawal refused: {refusal}"

    def _withdraw(self) -> None:
        refusal = self.withdrawal_refusal()
        if refusal is not None:
            self._effects.append(messages.FormationRefused(refusal))
            return
        self._persist_count += 1
        promise, endorsed = self._durable.promise, self._durable.endorsed
        next_state = replace(
            self._durable,
            promise=None,
            withdrawn=self._durable.withdrawn if promise is None else (*self._durable.withdrawn, promise),
            endorsed=None,
            revoked=self._durable.revoked if endorsed is None else (*self._durable.revoked, endorsed),
        )
        self._pending = (self._persist_count, next_state)
        self._effects.append(messages.Persist(self._persist_count, next_state))

    def _is_about_to_exist(self) -> bool:
        """Return True if this node has seen the endorsements of all founders of the endorsed founding."""
        endorsed = self._durable.endorsed
        return endorsed is not None and not set(endorsed.founders).intersection(self.unendorsed_by)

    def _until_it_exists(self) -> str:
        """Return the remedy for a founding that all founders endorsed and that cannot be withdrawn: it may exist."""
        blocking, endorsed = self.unendorsed_by, self._durable.endorsed
        if endorsed is None or not blocking:
            return "Check again in a moment."
        names = ", ".join(each.hex() for each in blocking)
        return (
            f"Only other nodes did not confirm it yet: {names}. Check again in a moment. If that lasts, stop or update"
            f" each that is yours. If one is not, someone else has the farm key. {list_founders(endorsed)}"
        )

    def _confirm(self, cluster_id: bytes) -> None:
        cluster = cluster_id.hex()
        reported = sorted({each.cluster_id.hex() for each in self._foundings_seen()})
        refusal = None
        if self.founding is not None:
            refusal = f"this node belongs to cluster {self.founding.cluster_id.hex()} permanently."
        elif self._key_file_cluster not in {None, cluster_id}:
            refusal = "the farm key file of this node names another cluster, and the file decides."
        elif self._pending is not None:
            refusal = _IS_WRITING
        elif cluster not in reported:
            refusal = f"no member reports cluster {cluster}; the members report {', '.join(reported[:4]) or 'none'}."
        if refusal is not None:
            self._effects.append(messages.FormationRefused(f"Confirmation refused: {refusal}"))
            return
        self._persist_count += 1
        self._pending = (self._persist_count, replace(self._durable, confirmed=cluster_id))
        self._effects.append(messages.Persist(*self._pending))

    def _review_alarms(self, now: int) -> None:
        situation = Situation(
            node_id=self._node_id,
            expect=self._expect,
            state=self._durable,
            key_file_cluster=self._key_file_cluster,
            members=self._members,
            foundings=self._foundings_seen(),
            # A dead node of another cluster stays listed for hours, although an operator has done the remedy.
            ignored={
                node_id: founding
                for node_id, founding in self.ignored.items()
                if self.founding is None or self._members[node_id].reachable
            },
            unendorsed_by=self.unendorsed_by,
            too_many=self._too_many(),
        )
        is_waiting = self._trusted is not None or self._durable.endorsed is not None
        incomplete = self.phase is messages.FormationPhase.PROMISED or (
            self.phase is messages.FormationPhase.WATCHING and is_waiting
        )
        if not incomplete:
            self._troubled_since = None
        elif self._troubled_since is None:
            self._troubled_since = now
        patience_ends = (self._troubled_since or 0) + self._tuning.patience_ms
        impatient = incomplete and now >= patience_ends
        if incomplete and not impatient and self.deadline is None:
            self.deadline = patience_ends
        alarms = alarms_of(situation, impatient=impatient)
        self._effects.extend(messages.Alarm(text) for text in alarms if text not in self._alarms)
        self._alarms = alarms
