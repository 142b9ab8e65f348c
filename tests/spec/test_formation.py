"""Formation of a farm: nodes promise a set of exactly `expect` founders, durably and once."""

from collections.abc import Iterable, Sequence
from random import Random
from typing import TypeVar

import pytest
from msgspec.structs import replace

from bridge.core.formation.formation import Formation, FormationTuning
from bridge.core.formation.founding import (
    EXPECT_MAX,
    WITHDRAWALS_MAX,
    FormationNotice,
    FormationState,
    Founders,
    Founding,
    Promise,
    founding_of,
    unpacked,
)
from bridge.core.formation.member import FarmMember
from bridge.core.formation.messages import (
    Advertise,
    Alarm,
    ConfirmRequested,
    DeadlineReached,
    Effect,
    Event,
    FormationPhase,
    FormationRefused,
    Founded,
    KnowsCluster,
    MembersChanged,
    Persist,
    Persisted,
    Started,
    WithdrawRequested,
)
from tests.effort import each_case
from tests.members import farm_member

Kind = TypeVar("Kind", bound=Effect)
A, B, C, D, E = (bytes([0] * 7 + [number]) for number in range(1, 6))
CLOCK_MS = 1_700_000_000_000
TUNING = FormationTuning(settle_ms=100, patience_ms=1_000)


def formation(
    node_id: bytes,
    expect: int,
    durable: FormationState | None = None,
    *,
    may_create: bool = True,
    of: Founding | None = None,
    founders: frozenset[bytes] | None = None,
) -> Formation:
    """Return a node's formation; its key file names the cluster of `of`."""
    return Formation(
        node_id,
        expect,
        durable or FormationState(),
        Random(node_id[7]),
        cluster_id=None if of is None else of.cluster_id,
        may_create=may_create,
        founders=founders,
        tuning=TUNING,
    )


def promise(*founders: bytes, by: int = 0) -> Promise:
    return Promise(tuple(sorted(founders)), CLOCK_MS + by, bytes([by]) * 16)


def proposer(node_id: bytes, *founders: bytes, reachable: bool = True) -> FarmMember:
    return farm_member(node_id, reachable=reachable, notice=FormationNotice(proposal=founders))


def promiser(node_id: bytes, *founders: bytes, reachable: bool = True) -> FarmMember:
    return farm_member(node_id, reachable=reachable, notice=FormationNotice(promise=promise(*founders, by=node_id[7])))


def endorser(node_id: bytes, *founders: bytes, of: Founding | None = None, reachable: bool = True) -> FarmMember:
    """Return a founder that has received all promises, or the promises of the founding `of`."""
    made = of or some_founding(*founders)
    notice = FormationNotice(promise=promise(*founders, by=node_id[7]), endorsement=made.cluster_id)
    return farm_member(node_id, reachable=reachable, notice=notice)


def founder(node_id: bytes, founding: Founding, *, reachable: bool = True) -> FarmMember:
    return farm_member(
        node_id, reachable=reachable, notice=FormationNotice(founding=founding), name=f"node-{node_id[7]}"
    )


def some_founding(*founders: bytes) -> Founding:
    return founding_of({each: promise(*founders, by=each[7]) for each in founders})


def invented_founding(*founders: bytes, real: bytes | None = None) -> Founding:
    """Return a founding that a non-founder made up, with the promise of one `real` founder."""
    promises = {each: Promise(tuple(sorted(founders)), CLOCK_MS, b"?" * 16) for each in founders}
    return founding_of(promises if real is None else {**promises, real: promise(*founders, by=real[7])})


def show(core: Formation, *members: FarmMember, now: int = 0) -> list[Effect]:
    return core.step(MembersChanged(members), now, CLOCK_MS)


def act(core: Formation, event: Event, now: int = 0) -> list[Effect]:
    return core.step(event, now, CLOCK_MS)


def only(effects: Iterable[Effect], kind: type[Kind]) -> Kind:
    (one,) = [effect for effect in effects if isinstance(effect, kind)]
    return one


def has(effects: Sequence[Effect], kind: type[Effect]) -> bool:
    return any(isinstance(effect, kind) for effect in effects)


def state_with_promise(node_id: bytes, *founders: bytes) -> FormationState:
    return FormationState(promise=promise(*founders, by=node_id[7]))


def state_with_endorsement(node_id: bytes, *founders: bytes) -> FormationState:
    return FormationState(promise=promise(*founders, by=node_id[7]), endorsed=some_founding(*founders))


def test_proposal_is_lowest_eligible_reachable_nodes() -> None:
    core = formation(B, 3)
    act(core, Started())
    unreachable, ineligible = (
        proposer(A, reachable=False),
        farm_member(C, reachable=True, notice=FormationNotice(), eligible=False),
    )
    effects = show(core, unreachable, ineligible, proposer(D), proposer(E))
    assert only(effects, Advertise).notice == FormationNotice(proposal=(B, D, E))


def test_node_outside_lowest_proposes_nothing() -> None:
    core = formation(D, 3)
    show(core, proposer(A), proposer(B), proposer(C))
    assert core.notice == FormationNotice()


def test_unanimous_proposal_promised_after_settle_time() -> None:
    core = formation(A, 3)
    assert not has(show(core, proposer(B, A, B, C), proposer(C, A, B, C), now=50), Persist)
    assert core.deadline == 150
    assert not has(act(core, DeadlineReached(), now=149), Persist)
    state = only(act(core, DeadlineReached(), now=150), Persist).state
    assert state.promise is not None
    assert state.promise.founders == (A, B, C)
    assert state.promise.clock_ms == CLOCK_MS


def test_disputed_proposal_not_promised() -> None:
    core = formation(A, 3)
    show(core, proposer(B, A, B, C), proposer(C, B, C, D))
    assert not has(act(core, DeadlineReached(), now=10_000), Persist)


def test_changed_proposal_restarts_settle_time() -> None:
    core = formation(A, 2)
    show(core, proposer(B, A, B), now=0)
    show(core, proposer(B), now=90)
    show(core, proposer(B, A, B), now=95)
    assert not has(act(core, DeadlineReached(), now=194), Persist)
    assert has(act(core, DeadlineReached(), now=195), Persist)


def test_promise_advertised_after_it_is_durable() -> None:
    core = formation(A, 2)
    show(core, proposer(B, A, B))
    effects = act(core, DeadlineReached(), now=100)
    assert core.notice.promise is None
    assert not has(effects, Advertise)
    persist = only(effects, Persist)
    assert only(act(core, Persisted(persist.number)), Advertise).notice.promise == persist.state.promise


def test_promise_made_once() -> None:
    core = formation(A, 2, state_with_promise(A, A, B))
    effects = show(core, proposer(C, A, C), proposer(D, A, D), now=10_000)
    assert not has(effects, Persist)
    assert core.notice.promise == promise(A, B, by=1)


def test_promise_including_node_backed_before_own_proposal() -> None:
    core = formation(C, 3)
    show(core, proposer(A, A, B, C), promiser(B, B, C, D), proposer(D, B, C, D))
    assert core.notice.backs == (B, C, D)


def test_founding_waits_for_promises_of_all_founders() -> None:
    core = formation(A, 3, state_with_promise(A, A, B, C))
    assert not has(show(core, promiser(B, A, B, C), proposer(C, A, B, C)), Persist)
    assert core.waiting_for == (C,)
    assert has(show(core, promiser(B, A, B, C), promiser(C, A, B, C)), Persist)


def test_raft_starts_after_founding_is_durable() -> None:
    core = formation(B, 2, state_with_endorsement(B, A, B))
    effects = show(core, endorser(A, A, B))
    assert not has(effects, Founded)
    persist = only(effects, Persist)
    effects = act(core, Persisted(persist.number))
    assert only(effects, Founded) == Founded(some_founding(A, B), raft_id=2)
    assert only(effects, Advertise).notice == FormationNotice(founding=some_founding(A, B))
    assert core.phase is FormationPhase.FOUNDED


def test_founders_derive_same_cluster_in_any_order() -> None:
    foundings = []
    for own, others in ((A, (B, C)), (B, (C, A)), (C, (A, B))):
        core = formation(own, 3, state_with_promise(own, A, B, C))
        show(core, promiser(others[0], A, B, C))
        state = only(show(core, *(promiser(each, A, B, C) for each in others)), Persist).state
        foundings.append(state.endorsed)
    assert foundings == [some_founding(A, B, C)] * 3


def test_founding_sets_raft_ids_and_median_log_time() -> None:
    founding = founding_of(
        {
            C: Promise((A, B, C), CLOCK_MS + 86_400_000, b"c" * 16),
            A: Promise((A, B, C), CLOCK_MS + 7, b"a" * 16),
            B: Promise((A, B, C), 0, b"b" * 16),
        }
    )
    assert [founding.raft_id(each) for each in (A, B, C)] == [1, 2, 3]
    assert founding.log_time_base_ms == CLOCK_MS + 7
    assert len(founding.cluster_id) == 16


def test_packed_founding_is_unambiguous() -> None:
    founding = some_founding(A, B, C)
    assert unpacked(founding.packed) == founding
    assert unpacked(founding.packed).cluster_id == founding.cluster_id
    for place in range(len(founding.packed)):
        changed = bytearray(founding.packed)
        changed[place] ^= 1
        try:
            other = unpacked(bytes(changed))
        except ValueError:
            continue
        assert other.cluster_id != founding.cluster_id


@each_case(
    "packed", [b"", b"x" * 29, b"x" * 31, b"x" * 60, b"x" * 300, some_founding(B).packed + some_founding(A).packed]
)
def test_malformed_founding_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="a founding has 1 to 9"):
        unpacked(packed)


def test_nonce_changes_cluster_id() -> None:
    one, other = Promise((A,), 1, bytes(16)), Promise((A,), 1, bytes(15) + b"1")
    assert founding_of({A: one}).cluster_id != founding_of({A: other}).cluster_id


def test_single_founder_creates_its_farm_immediately() -> None:
    core = formation(A, 1)
    persist = only(act(core, Started()), Persist)
    persist = only(act(core, Persisted(persist.number)), Persist)
    assert only(act(core, Persisted(persist.number)), Founded).raft_id == 1


def test_restarted_founder_starts_raft_from_storage() -> None:
    state = FormationState(promise=promise(A, B, by=1), founding=some_founding(A, B))
    assert only(act(formation(A, 2, state), Started()), Founded) == Founded(some_founding(A, B), raft_id=1)


def test_late_founder_adopts_founding_without_dead_founder() -> None:
    core = formation(A, 3, state_with_endorsement(A, A, B, C))
    effects = show(core, founder(B, some_founding(A, B, C)), farm_member(C, reachable=False, notice=FormationNotice()))
    persist = only(effects, Persist)
    assert persist.state.founding == some_founding(A, B, C)
    assert only(act(core, Persisted(persist.number)), Founded).raft_id == 1


def test_unendorsed_founding_not_adopted() -> None:
    for state in (state_with_promise(A, A, B, C), state_with_endorsement(A, A, B, D)):
        core = formation(A, 3, state)
        assert not has(show(core, founder(B, some_founding(A, B, C))), Persist)
        assert core.phase is FormationPhase.PROMISED


def test_promises_endorsed_before_founding() -> None:
    core = formation(A, 2, state_with_promise(A, A, B))
    persist = only(show(core, promiser(B, A, B)), Persist)
    assert persist.state == state_with_endorsement(A, A, B)
    assert core.notice.endorsement == b""
    effects = act(core, Persisted(persist.number))
    assert only(effects, Advertise).notice.endorsement == some_founding(A, B).cluster_id
    assert core.waiting_for == (B,)
    assert only(show(core, endorser(B, A, B)), Persist).state.founding == some_founding(A, B)


def test_founder_with_other_promises_stops_founding() -> None:
    core = formation(A, 3, state_with_endorsement(A, A, B, C))
    other = founding_of(
        {**{each: promise(A, B, C, by=each[7]) for each in (A, B)}, C: Promise((A, B, C), 1, bytes(16))}
    )
    members = endorser(B, A, B, C, of=other), endorser(C, A, B, C)
    assert not has(show(core, *members), Persist)
    text = only(act(core, DeadlineReached(), now=TUNING.patience_ms), Alarm).text
    assert f"{B.hex()} saw other promises" in text


def test_eligible_bystander_must_endorse_founding() -> None:
    """Without this rule, different promises of an attacker could make two nodes create two clusters in one exchange."""
    core = formation(A, 2, state_with_endorsement(A, A, B))
    assert not has(show(core, endorser(B, A, B), proposer(C)), Persist)
    assert core.waiting_for == (C,)
    text = only(act(core, DeadlineReached(), now=TUNING.patience_ms), Alarm).text
    assert f"{C.hex()} did not confirm the promises" in text
    bystander = farm_member(C, notice=FormationNotice(endorsement=some_founding(A, B).cluster_id))
    assert has(show(core, endorser(B, A, B), bystander), Persist)


def test_unreachable_bystander_need_not_endorse() -> None:
    core = formation(A, 2, state_with_endorsement(A, A, B))
    assert has(show(core, endorser(B, A, B), proposer(C, reachable=False)), Persist)


def test_endorsing_bystander_does_not_promise() -> None:
    core = formation(C, 2)
    persist = only(show(core, promiser(A, A, B), promiser(B, A, B)), Persist)
    assert persist.state == FormationState(endorsed=some_founding(A, B))
    act(core, Persisted(persist.number))
    assert core.notice == FormationNotice(endorsement=some_founding(A, B).cluster_id)
    assert not has(show(core, proposer(D, C, D), now=10_000), Persist)


def test_endorsement_made_once_and_durable() -> None:
    core = formation(C, 2, FormationState(endorsed=some_founding(A, B)))
    assert not has(show(core, promiser(D, D, E), promiser(E, D, E)), Persist)
    assert core.notice.endorsement == some_founding(A, B).cluster_id


def test_equivocating_node_is_not_founder() -> None:
    core = formation(A, 2, state_with_promise(A, A, B))
    false = replace(promiser(B, A, B), equivocates=True)
    assert not has(show(core, false), Persist)
    text = only(act(core, DeadlineReached(), now=TUNING.patience_ms), Alarm).text
    assert f"{B.hex()} showed different descriptions to different nodes" in text
    watching = formation(A, 2)
    show(watching, replace(proposer(B, A, B), equivocates=True))
    assert watching.notice == FormationNotice()


def test_founders_are_listed_nodes() -> None:
    core = formation(A, 2, founders=frozenset({A, C, D}))
    show(core, proposer(B, A, B), proposer(C, A, C))
    assert core.notice.backs == (A, C)
    unlisted = formation(B, 2, founders=frozenset({A, C}))
    show(unlisted, proposer(A, A, B), proposer(C, B, C))
    assert unlisted.notice == FormationNotice()


def test_set_with_unlisted_node_not_endorsed() -> None:
    core = formation(A, 2, state_with_promise(A, A, B), founders=frozenset({A, C}))
    assert not has(show(core, promiser(B, A, B)), Persist)


@pytest.mark.parametrize("listed", [{A}, {A, B, C, D}])
def test_founder_list_of_wrong_length_refused(listed: set[bytes]) -> None:
    with pytest.raises(ValueError, match="founders are listed"):
        formation(A, 2, founders=frozenset(listed))


def test_node_in_known_cluster_creates_no_other() -> None:
    core = formation(D, 2, of=some_founding(A, B))
    persist = only(show(core, founder(A, some_founding(A, B))), Persist)
    assert only(act(core, Persisted(persist.number)), KnowsCluster).founding == some_founding(A, B)
    restarted = formation(D, 2, persist.state)
    assert has(act(restarted, Started()), KnowsCluster)
    assert not has(show(restarted, proposer(E, D, E), now=10_000), Persist)
    assert restarted.phase is FormationPhase.OBSERVER


def test_cluster_of_dead_founder_counts_as_known() -> None:
    core = formation(A, 2)
    show(core, proposer(B, A, B))
    assert not has(show(core, proposer(B, A, B), founder(C, some_founding(C, D), reachable=False), now=200), Persist)
    persist = only(act(core, ConfirmRequested(some_founding(C, D).cluster_id)), Persist)
    assert only(act(core, Persisted(persist.number)), Persist).state.known == some_founding(C, D)


@pytest.mark.parametrize("mine", [some_founding(A, B), some_founding(C, D)])
def test_new_node_joins_cluster_of_its_key_file(mine: Founding) -> None:
    core = formation(E, 2, of=mine)
    effects = show(core, founder(A, some_founding(A, B), reachable=False), founder(C, some_founding(C, D)))
    assert only(effects, Persist).state == FormationState(known=mine)


def test_new_node_without_cluster_id_waits_for_confirmation() -> None:
    core = formation(E, 2)
    one, other = some_founding(A, B), invented_founding(C, D)
    effects = show(core, founder(A, one), founder(B, one), founder(D, other), proposer(C, C, E))
    text = only(effects, Alarm).text
    assert f"cluster {one.cluster_id.hex()} (announced by node-1, node-2)" in text
    assert f"cluster {other.cluster_id.hex()} (announced by node-4)" in text
    assert f"`garlicfarm confirm-cluster {one.cluster_id.hex()}`" in text
    assert f"`garlicfarm confirm-cluster {other.cluster_id.hex()}`" in text
    act(core, DeadlineReached(), now=10_000)
    assert core.founding is None
    assert core.notice == FormationNotice()


def test_confirmed_cluster_joined_after_restart() -> None:
    core = formation(E, 2)
    show(core, founder(A, some_founding(A, B)), founder(D, invented_founding(C, D)))
    persist = only(act(core, ConfirmRequested(some_founding(A, B).cluster_id)), Persist)
    assert persist.state == FormationState(confirmed=some_founding(A, B).cluster_id)
    assert core.founding is None
    restarted = formation(E, 2, persist.state)
    assert not has(show(restarted, founder(D, invented_founding(C, D))), Persist)
    assert only(show(restarted, founder(A, some_founding(A, B))), Persist).state.known == some_founding(A, B)


@pytest.mark.parametrize(
    ("core", "reason"),
    [
        (formation(E, 2, FormationState(known=some_founding(A, B))), "belongs to cluster"),
        (formation(E, 2, of=some_founding(A, B)), "the farm key file of this node names another cluster"),
        (formation(E, 2), "no member reports cluster"),
    ],
)
def test_confirmation_of_other_cluster_refused(core: Formation, reason: str) -> None:
    show(core, founder(D, some_founding(B, D)))
    effects = act(core, ConfirmRequested(invented_founding(C, D).cluster_id))
    assert reason in only(effects, FormationRefused).text
    assert not has(effects, Persist)


def test_founding_of_other_cluster_ignored_with_alarm() -> None:
    core = formation(E, 2, of=some_founding(A, B))
    effects = show(core, founder(C, invented_founding(C, D)))
    assert not has(effects, Persist)
    assert core.ignored == {C: invented_founding(C, D)}
    text = only(effects, Alarm).text
    assert f"ignores cluster {invented_founding(C, D).cluster_id.hex()} (announced by node-3)" in text
    assert f"its farm key file names cluster {some_founding(A, B).cluster_id.hex()}" in text


def test_node_with_cluster_id_never_creates_farm() -> None:
    core = formation(A, 2, of=some_founding(C, D))
    show(core, proposer(B, A, B))
    assert not has(act(core, DeadlineReached(), now=10_000), Persist)
    assert core.notice == FormationNotice()
    promised = formation(A, 2, state_with_endorsement(A, A, B), of=some_founding(C, D))
    assert not has(show(promised, endorser(B, A, B)), Persist)
    alone = formation(A, 1, of=some_founding(C, D))
    assert not has(act(alone, Started()), Persist)


def test_founder_needs_own_promise_in_founding() -> None:
    core = formation(A, 3, state_with_promise(A, A, B, C))
    foundings = [some_founding(B, C, D), invented_founding(A, B, C)]
    for founding in foundings:
        assert not has(show(core, founder(B, founding)), Persist)
        assert core.phase is FormationPhase.PROMISED
        assert founding.cluster_id.hex() in core.alarms[0]
    withdrawn = formation(A, 3, FormationState(withdrawn=(promise(A, B, C, by=1),)))
    assert not has(show(withdrawn, founder(B, invented_founding(A, B, C))), Persist)


def test_real_promise_in_forged_founding_not_accepted() -> None:
    """Promises are public: any holder of the farm key can put a real promise into a forged founding."""
    core = formation(A, 3, state_with_promise(A, A, B, C))
    forged = invented_founding(A, B, C, real=A)
    assert not has(show(core, founder(E, forged), promiser(B, A, B, C)), Persist)
    assert core.ignored == {E: forged}


def test_node_of_farm_adopts_no_other_founding() -> None:
    mine, promised = some_founding(A, B), promise(A, B, by=1)
    for state in (FormationState(promise=promised, founding=mine), FormationState(known=mine)):
        core = formation(A, 2, state)
        for forged in (invented_founding(A, B), invented_founding(A, B, real=A), some_founding(C, D)):
            assert not has(show(core, founder(B, forged), founder(C, forged)), Persist)
            assert core.founding == mine


def test_alarm_text_bounded_for_many_foundings() -> None:
    core = formation(E, 2)
    invented = [founding_of({bytes([9] * 7 + [n]): Promise((), n, bytes(16))}) for n in range(200)]
    show(core, *(founder(bytes([8] * 7 + [number]), each) for number, each in enumerate(invented)))
    assert len(core.alarms[0]) < 1_500
    assert "and 196 more" in core.alarms[0]


def test_founder_with_lost_storage_never_votes() -> None:
    core = formation(A, 2, of=some_founding(A, B))
    persist = only(show(core, founder(B, some_founding(A, B))), Persist)
    effects = act(core, Persisted(persist.number))
    assert not has(effects, Founded)
    assert "move the state directory away" in only(effects, Alarm).text


def test_second_cluster_raises_alarm_without_merge() -> None:
    state = FormationState(promise=promise(A, B, by=1), founding=some_founding(A, B))
    core = formation(A, 2, state)
    effects = show(core, founder(C, some_founding(C, D)))
    text = only(effects, Alarm).text
    assert some_founding(A, B).cluster_id.hex() in text
    assert some_founding(C, D).cluster_id.hex() in text
    assert "it joins with a new identity" in text
    assert not has(effects, Persist)
    assert core.founding == some_founding(A, B)


def test_alarm_raised_once_and_ends_with_cause() -> None:
    core = formation(A, 2, FormationState(promise=promise(A, B, by=1), founding=some_founding(A, B)))
    show(core, founder(C, some_founding(C, D)))
    assert not has(show(core, founder(C, some_founding(C, D))), Alarm)
    show(core)
    assert core.alarms == ()


def test_alarm_of_two_clusters_ends_with_announcing_node() -> None:
    core = formation(A, 2, FormationState(promise=promise(A, B, by=1), founding=some_founding(A, B)))
    assert has(show(core, founder(C, some_founding(C, D)), founder(D, some_founding(C, D), reachable=False)), Alarm)
    assert "announced by node-3)" in core.alarms[0]
    show(core, founder(C, some_founding(C, D), reachable=False))
    assert core.alarms == ()


def test_colliding_promises_alarm_names_nodes_to_withdraw() -> None:
    core = formation(B, 3, state_with_promise(B, B, C, D))
    show(core, promiser(A, A, B, C), promiser(C, A, B, C), promiser(D, B, C, D))
    assert core.alarms == ()
    assert core.deadline == TUNING.patience_ms
    text = only(act(core, DeadlineReached(), now=TUNING.patience_ms), Alarm).text
    assert f"Run `garlicfarm withdraw` on {B.hex()}, {D.hex()}, one at a time" in text


def test_missing_founder_named_in_alarm() -> None:
    core = formation(A, 3, state_with_promise(A, A, B, C))
    show(core, promiser(B, A, B, C))
    text = only(act(core, DeadlineReached(), now=TUNING.patience_ms), Alarm).text
    assert f"{C.hex()} cannot be reached" in text
    assert B.hex() + " cannot" not in text


def test_withdrawn_promise_hidden_after_it_is_durable() -> None:
    core = formation(A, 2, state_with_promise(A, A, B))
    persist = only(act(core, WithdrawRequested()), Persist)
    assert core.notice.promise is not None
    act(core, Persisted(persist.number))
    assert core.notice == FormationNotice()
    assert persist.state.withdrawn == (promise(A, B, by=1),)


def test_unshared_endorsement_can_be_withdrawn() -> None:
    for state in (state_with_endorsement(A, A, B), FormationState(endorsed=some_founding(B, C))):
        core = formation(A, 2, state)
        withdrawn = only(act(core, WithdrawRequested()), Persist).state
        assert withdrawn.endorsed is None
        assert withdrawn.revoked == (state.endorsed,)


def test_promise_after_withdrawal_keeps_clock_and_nonce() -> None:
    core = formation(A, 2, FormationState(withdrawn=(promise(A, C, by=1),)))
    show(core, proposer(B, A, B))
    assert only(act(core, DeadlineReached(), now=100), Persist).state.promise == promise(A, B, by=1)


def test_founder_adopts_withdrawn_set_after_its_founding() -> None:
    revoked = (some_founding(A, B, C),)
    core = formation(A, 3, FormationState(withdrawn=(promise(A, B, C, by=1),), revoked=revoked))
    assert only(show(core, founder(B, some_founding(A, B, C))), Persist).state.founding == some_founding(A, B, C)


@each_case(
    ("state", "members", "reason"),
    [
        (FormationState(), (), "not made a promise"),
        (FormationState(founding=some_founding(A, B)), (), "the farm is created"),
        (state_with_promise(A, A, B), (founder(C, some_founding(C, D)),), "the farm is created"),
        (state_with_promise(A, A, B), (promiser(B, A, B),), "writing a step"),
        (state_with_endorsement(A, A, B), (endorser(B, A, B), proposer(C)), "under way"),
        (
            FormationState(promise=promise(A, B), withdrawn=(promise(A, B),) * WITHDRAWALS_MAX),
            (),
            "new state directory",
        ),
    ],
)
def test_unsafe_withdrawal_refused(state: FormationState, members: tuple[FarmMember, ...], reason: str) -> None:
    core = formation(A, 2, state)
    show(core, *members)
    effects = act(core, WithdrawRequested())
    assert reason in only(effects, FormationRefused).text
    assert not has(effects, Persist)


def test_withdrawal_while_writing_withdrawal_is_refused() -> None:
    core = formation(A, 2, state_with_promise(A, A, B))
    assert has(act(core, WithdrawRequested()), Persist)
    refused = only(act(core, WithdrawRequested()), FormationRefused)
    assert refused.text == "Withdrawal refused: formation is writing a step. Try again in a moment."


def test_twice_expected_nodes_raise_alarm_not_promise() -> None:
    core = formation(A, 2)
    effects = show(core, proposer(B, A, B), proposer(C), proposer(D))
    assert "`expect` must exceed half" in only(effects, Alarm).text
    assert not has(act(core, DeadlineReached(), now=10_000), Persist)


def test_other_expectation_raises_alarm() -> None:
    core = formation(A, 2)
    text = only(show(core, promiser(B, A, B, C)), Alarm).text
    assert "promises 3 founders, but this node's farm key expects 2" in text


def test_node_without_permission_to_create_observes() -> None:
    core = formation(A, 2, may_create=False)
    show(core, proposer(B, A, B), promiser(B, A, B))
    assert not has(act(core, DeadlineReached(), now=10_000), Persist)
    assert core.notice == FormationNotice()


@pytest.mark.parametrize("expect", [0, -1, EXPECT_MAX + 1])
def test_expectation_out_of_range_refused(expect: int) -> None:
    with pytest.raises(ValueError, match=f"expect is {expect}"):
        formation(A, expect)


@pytest.mark.parametrize(
    "founders", [(A,), (A, B, C), (B, A), (A, A)], ids=["too few", "too many", "unsorted", "duplicate"]
)
def test_malformed_promise_not_joined(founders: Founders) -> None:
    core = formation(A, 2)
    malformed = FormationNotice(promise=Promise(founders, CLOCK_MS, bytes(16)))
    show(core, farm_member(B, reachable=True, notice=malformed))
    assert not has(act(core, DeadlineReached(), now=10_000), Persist)


def test_persisted_event_of_other_number_ignored() -> None:
    core = formation(A, 1)
    persist = only(act(core, Started()), Persist)
    assert act(core, Persisted(persist.number + 1)) == []
    assert core.phase is FormationPhase.WATCHING
