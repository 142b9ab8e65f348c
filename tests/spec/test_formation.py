"""Formation, sentence by sentence: promises of exactly `expect`, durable and once, and one founding of them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

import pytest

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
    """A node; its key file names the cluster of `of`."""
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


def proposing(node_id: bytes, *founders: bytes, reachable: bool = True) -> FarmMember:
    return farm_member(node_id, reachable=reachable, notice=FormationNotice(proposal=founders))


def promising(node_id: bytes, *founders: bytes, reachable: bool = True) -> FarmMember:
    return farm_member(node_id, reachable=reachable, notice=FormationNotice(promise=promise(*founders, by=node_id[7])))


def endorsing(node_id: bytes, *founders: bytes, of: Founding | None = None, reachable: bool = True) -> FarmMember:
    """A founder that has seen all promises, or those that make the founding `of`."""
    made = of or some_founding(*founders)
    notice = FormationNotice(promise=promise(*founders, by=node_id[7]), endorsement=made.cluster_id)
    return farm_member(node_id, reachable=reachable, notice=notice)


def founded(node_id: bytes, founding: Founding, *, reachable: bool = True) -> FarmMember:
    return farm_member(
        node_id, reachable=reachable, notice=FormationNotice(founding=founding), name=f"node-{node_id[7]}"
    )


def some_founding(*founders: bytes) -> Founding:
    return founding_of({each: promise(*founders, by=each[7]) for each in founders})


def invented_founding(*founders: bytes, real: bytes | None = None) -> Founding:
    """What a stranger makes up that is no founder; it has heard the promise of the one `real` founder."""
    promises = {each: Promise(tuple(sorted(founders)), CLOCK_MS, b"?" * 16) for each in founders}
    return founding_of(promises if real is None else {**promises, real: promise(*founders, by=real[7])})


def see(core: Formation, *members: FarmMember, now: int = 0) -> list[Effect]:
    return core.step(MembersChanged(members), now, CLOCK_MS)


def act(core: Formation, event: Event, now: int = 0) -> list[Effect]:
    return core.step(event, now, CLOCK_MS)


def the(effects: Iterable[Effect], kind: type[Kind]) -> Kind:
    (one,) = [effect for effect in effects if isinstance(effect, kind)]
    return one


def has(effects: Sequence[Effect], kind: type[Effect]) -> bool:
    return any(isinstance(effect, kind) for effect in effects)


def promised_with(node_id: bytes, *founders: bytes) -> FormationState:
    return FormationState(promise=promise(*founders, by=node_id[7]))


def endorsed_with(node_id: bytes, *founders: bytes) -> FormationState:
    return FormationState(promise=promise(*founders, by=node_id[7]), endorsed=some_founding(*founders))


def test_a_node_proposes_the_lowest_eligible_nodes_that_it_reaches() -> None:
    core = formation(B, 3)
    act(core, Started())
    unreachable, ineligible = (
        proposing(A, reachable=False),
        farm_member(C, reachable=True, notice=FormationNotice(), eligible=False),
    )
    effects = see(core, unreachable, ineligible, proposing(D), proposing(E))
    assert the(effects, Advertise).notice == FormationNotice(proposal=(B, D, E))


def test_a_node_that_is_not_among_the_lowest_proposes_nothing() -> None:
    core = formation(D, 3)
    see(core, proposing(A), proposing(B), proposing(C))
    assert core.notice == FormationNotice()


def test_a_unanimous_proposal_is_promised_only_after_the_settle_time() -> None:
    core = formation(A, 3)
    assert not has(see(core, proposing(B, A, B, C), proposing(C, A, B, C), now=50), Persist)
    assert core.deadline == 150
    assert not has(act(core, DeadlineReached(), now=149), Persist)
    state = the(act(core, DeadlineReached(), now=150), Persist).state
    assert state.promise is not None
    assert state.promise.founders == (A, B, C)
    assert state.promise.clock_ms == CLOCK_MS


def test_a_proposal_that_one_member_does_not_share_is_not_promised() -> None:
    core = formation(A, 3)
    see(core, proposing(B, A, B, C), proposing(C, B, C, D))
    assert not has(act(core, DeadlineReached(), now=10_000), Persist)


def test_a_change_of_mind_of_one_member_starts_the_settle_time_again() -> None:
    core = formation(A, 2)
    see(core, proposing(B, A, B), now=0)
    see(core, proposing(B), now=90)
    see(core, proposing(B, A, B), now=95)
    assert not has(act(core, DeadlineReached(), now=194), Persist)
    assert has(act(core, DeadlineReached(), now=195), Persist)


def test_a_promise_is_advertised_only_after_it_is_durable() -> None:
    core = formation(A, 2)
    see(core, proposing(B, A, B))
    effects = act(core, DeadlineReached(), now=100)
    assert core.notice.promise is None
    assert not has(effects, Advertise)
    persist = the(effects, Persist)
    assert the(act(core, Persisted(persist.number)), Advertise).notice.promise == persist.state.promise


def test_a_promise_is_made_once() -> None:
    core = formation(A, 2, promised_with(A, A, B))
    effects = see(core, proposing(C, A, C), proposing(D, A, D), now=10_000)
    assert not has(effects, Persist)
    assert core.notice.promise == promise(A, B, by=1)


def test_a_node_joins_the_promise_of_others_that_includes_it_before_it_proposes_its_own() -> None:
    core = formation(C, 3)
    see(core, proposing(A, A, B, C), promising(B, B, C, D), proposing(D, B, C, D))
    assert core.notice.backs == (B, C, D)


def test_the_founding_waits_for_the_promise_of_every_founder() -> None:
    core = formation(A, 3, promised_with(A, A, B, C))
    assert not has(see(core, promising(B, A, B, C), proposing(C, A, B, C)), Persist)
    assert core.waiting_for == (C,)
    assert has(see(core, promising(B, A, B, C), promising(C, A, B, C)), Persist)


def test_raft_starts_only_after_the_founding_is_durable() -> None:
    core = formation(B, 2, endorsed_with(B, A, B))
    effects = see(core, endorsing(A, A, B))
    assert not has(effects, Founded)
    persist = the(effects, Persist)
    effects = act(core, Persisted(persist.number))
    assert the(effects, Founded) == Founded(some_founding(A, B), raft_id=2)
    assert the(effects, Advertise).notice == FormationNotice(founding=some_founding(A, B))
    assert core.phase is FormationPhase.FOUNDED


def test_every_founder_derives_the_same_cluster_whatever_it_heard_first() -> None:
    foundings = []
    for own, others in ((A, (B, C)), (B, (C, A)), (C, (A, B))):
        core = formation(own, 3, promised_with(own, A, B, C))
        see(core, promising(others[0], A, B, C))
        state = the(see(core, *(promising(each, A, B, C) for each in others)), Persist).state
        foundings.append(state.endorsed)
    assert foundings == [some_founding(A, B, C)] * 3


def test_raft_ids_follow_the_order_of_node_ids_and_log_time_begins_at_the_median_clock() -> None:
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


def test_a_founding_is_what_its_promises_make_and_nothing_else_can_be_expressed() -> None:
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


@pytest.mark.parametrize(
    "packed", [b"", b"x" * 29, b"x" * 31, b"x" * 60, b"x" * 300, some_founding(B).packed + some_founding(A).packed]
)
def test_bytes_that_make_no_founding_are_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="a founding has 1 to 9"):
        unpacked(packed)


def test_another_nonce_makes_another_cluster() -> None:
    one, other = Promise((A,), 1, bytes(16)), Promise((A,), 1, bytes(15) + b"1")
    assert founding_of({A: one}).cluster_id != founding_of({A: other}).cluster_id


def test_single_founder_creates_its_farm_immediately() -> None:
    core = formation(A, 1)
    persist = the(act(core, Started()), Persist)
    persist = the(act(core, Persisted(persist.number)), Persist)
    assert the(act(core, Persisted(persist.number)), Founded).raft_id == 1


def test_a_restarted_founder_starts_raft_again_from_what_is_durable() -> None:
    state = FormationState(promise=promise(A, B, by=1), founding=some_founding(A, B))
    assert the(act(formation(A, 2, state), Started()), Founded) == Founded(some_founding(A, B), raft_id=1)


def test_a_late_founder_adopts_the_founding_of_its_set_though_a_co_founder_is_dead() -> None:
    core = formation(A, 3, endorsed_with(A, A, B, C))
    effects = see(core, founded(B, some_founding(A, B, C)), farm_member(C, reachable=False, notice=FormationNotice()))
    persist = the(effects, Persist)
    assert persist.state.founding == some_founding(A, B, C)
    assert the(act(core, Persisted(persist.number)), Founded).raft_id == 1


def test_a_founding_that_was_not_endorsed_is_not_adopted() -> None:
    for state in (promised_with(A, A, B, C), endorsed_with(A, A, B, D)):
        core = formation(A, 3, state)
        assert not has(see(core, founded(B, some_founding(A, B, C))), Persist)
        assert core.phase is FormationPhase.PROMISED


def test_all_promises_are_endorsed_before_the_founding() -> None:
    core = formation(A, 2, promised_with(A, A, B))
    persist = the(see(core, promising(B, A, B)), Persist)
    assert persist.state == endorsed_with(A, A, B)
    assert core.notice.endorsement == b""
    effects = act(core, Persisted(persist.number))
    assert the(effects, Advertise).notice.endorsement == some_founding(A, B).cluster_id
    assert core.waiting_for == (B,)
    assert the(see(core, endorsing(B, A, B)), Persist).state.founding == some_founding(A, B)


def test_a_founder_that_sees_other_promises_stops_the_founding() -> None:
    core = formation(A, 3, endorsed_with(A, A, B, C))
    other = founding_of(
        {**{each: promise(A, B, C, by=each[7]) for each in (A, B)}, C: Promise((A, B, C), 1, bytes(16))}
    )
    members = endorsing(B, A, B, C, of=other), endorsing(C, A, B, C)
    assert not has(see(core, *members), Persist)
    text = the(act(core, DeadlineReached(), now=TUNING.patience_ms), Alarm).text
    assert f"{B.hex()} has seen other promises" in text


def test_an_eligible_node_outside_the_set_has_to_endorse_it_too() -> None:
    """Without it, two nodes that a stranger shows different promises create two clusters within one exchange."""
    core = formation(A, 2, endorsed_with(A, A, B))
    assert not has(see(core, endorsing(B, A, B), proposing(C)), Persist)
    assert core.waiting_for == (C,)
    text = the(act(core, DeadlineReached(), now=TUNING.patience_ms), Alarm).text
    assert f"{C.hex()} does not confirm the promises" in text
    bystander = farm_member(C, notice=FormationNotice(endorsement=some_founding(A, B).cluster_id))
    assert has(see(core, endorsing(B, A, B), bystander), Persist)


def test_an_unreachable_node_outside_the_set_need_not_endorse_it() -> None:
    core = formation(A, 2, endorsed_with(A, A, B))
    assert has(see(core, endorsing(B, A, B), proposing(C, reachable=False)), Persist)


def test_a_node_outside_the_set_endorses_it_and_then_promises_nothing() -> None:
    core = formation(C, 2)
    persist = the(see(core, promising(A, A, B), promising(B, A, B)), Persist)
    assert persist.state == FormationState(endorsed=some_founding(A, B))
    act(core, Persisted(persist.number))
    assert core.notice == FormationNotice(endorsement=some_founding(A, B).cluster_id)
    assert not has(see(core, proposing(D, C, D), now=10_000), Persist)


def test_an_endorsement_is_given_once_and_survives_a_restart() -> None:
    core = formation(C, 2, FormationState(endorsed=some_founding(A, B)))
    assert not has(see(core, promising(D, D, E), promising(E, D, E)), Persist)
    assert core.notice.endorsement == some_founding(A, B).cluster_id


def test_a_node_that_signed_two_descriptions_is_no_founder() -> None:
    core = formation(A, 2, promised_with(A, A, B))
    false = replace(promising(B, A, B), equivocates=True)
    assert not has(see(core, false), Persist)
    text = the(act(core, DeadlineReached(), now=TUNING.patience_ms), Alarm).text
    assert f"{B.hex()} shows different nodes different descriptions" in text
    watching = formation(A, 2)
    see(watching, replace(proposing(B, A, B), equivocates=True))
    assert watching.notice == FormationNotice()


def test_only_listed_nodes_found() -> None:
    core = formation(A, 2, founders=frozenset({A, C, D}))
    see(core, proposing(B, A, B), proposing(C, A, C))
    assert core.notice.backs == (A, C)
    unlisted = formation(B, 2, founders=frozenset({A, C}))
    see(unlisted, proposing(A, A, B), proposing(C, B, C))
    assert unlisted.notice == FormationNotice()


def test_a_set_with_an_unlisted_node_is_not_endorsed() -> None:
    core = formation(A, 2, promised_with(A, A, B), founders=frozenset({A, C}))
    assert not has(see(core, promising(B, A, B)), Persist)


@pytest.mark.parametrize("listed", [{A}, {A, B, C, D}])
def test_a_list_of_founders_of_the_wrong_length_is_refused(listed: set[bytes]) -> None:
    with pytest.raises(ValueError, match="founders are listed"):
        formation(A, 2, founders=frozenset(listed))


def test_node_that_sees_a_cluster_never_creates_another() -> None:
    core = formation(D, 2, of=some_founding(A, B))
    persist = the(see(core, founded(A, some_founding(A, B))), Persist)
    assert the(act(core, Persisted(persist.number)), KnowsCluster).founding == some_founding(A, B)
    restarted = formation(D, 2, persist.state)
    assert has(act(restarted, Started()), KnowsCluster)
    assert not has(see(restarted, proposing(E, D, E), now=10_000), Persist)
    assert restarted.phase is FormationPhase.OBSERVER


def test_the_cluster_of_a_dead_founder_counts_as_known() -> None:
    core = formation(A, 2)
    see(core, proposing(B, A, B))
    assert not has(see(core, proposing(B, A, B), founded(C, some_founding(C, D), reachable=False), now=200), Persist)
    persist = the(act(core, ConfirmRequested(some_founding(C, D).cluster_id)), Persist)
    assert the(act(core, Persisted(persist.number)), Persist).state.known == some_founding(C, D)


@pytest.mark.parametrize("mine", [some_founding(A, B), some_founding(C, D)])
def test_of_two_clusters_a_newcomer_joins_the_one_that_its_key_file_names(mine: Founding) -> None:
    core = formation(E, 2, of=mine)
    effects = see(core, founded(A, some_founding(A, B), reachable=False), founded(C, some_founding(C, D)))
    assert the(effects, Persist).state == FormationState(known=mine)


def test_a_newcomer_without_a_cluster_id_waits_and_names_the_farms_announced_and_the_command_to_confirm_one() -> None:
    core = formation(E, 2)
    one, other = some_founding(A, B), invented_founding(C, D)
    effects = see(core, founded(A, one), founded(B, one), founded(D, other), proposing(C, C, E))
    text = the(effects, Alarm).text
    assert f"cluster {one.cluster_id.hex()} (announced by node-1, node-2)" in text
    assert f"cluster {other.cluster_id.hex()} (announced by node-4)" in text
    assert f"`garlicfarm confirm-cluster {one.cluster_id.hex()}`" in text
    assert f"`garlicfarm confirm-cluster {other.cluster_id.hex()}`" in text
    act(core, DeadlineReached(), now=10_000)
    assert core.founding is None
    assert core.notice == FormationNotice()


def test_a_newcomer_joins_the_cluster_that_its_operator_confirmed_and_a_restart_does_not_forget_it() -> None:
    core = formation(E, 2)
    see(core, founded(A, some_founding(A, B)), founded(D, invented_founding(C, D)))
    persist = the(act(core, ConfirmRequested(some_founding(A, B).cluster_id)), Persist)
    assert persist.state == FormationState(confirmed=some_founding(A, B).cluster_id)
    assert core.founding is None
    restarted = formation(E, 2, persist.state)
    assert not has(see(restarted, founded(D, invented_founding(C, D))), Persist)
    assert the(see(restarted, founded(A, some_founding(A, B))), Persist).state.known == some_founding(A, B)


@pytest.mark.parametrize(
    ("core", "reason"),
    [
        (formation(E, 2, FormationState(known=some_founding(A, B))), "belongs to cluster"),
        (formation(E, 2, of=some_founding(A, B)), "the farm key file of this node names another cluster"),
        (formation(E, 2), "no member reports cluster"),
    ],
)
def test_a_confirmation_is_refused_when_it_could_not_be_meant(core: Formation, reason: str) -> None:
    see(core, founded(D, some_founding(B, D)))
    effects = act(core, ConfirmRequested(invented_founding(C, D).cluster_id))
    assert reason in the(effects, FormationRefused).text
    assert not has(effects, Persist)


def test_a_founding_of_others_is_ignored_and_told_by_a_newcomer_whose_key_file_names_its_cluster() -> None:
    core = formation(E, 2, of=some_founding(A, B))
    effects = see(core, founded(C, invented_founding(C, D)))
    assert not has(effects, Persist)
    assert core.ignored == {C: invented_founding(C, D)}
    text = the(effects, Alarm).text
    assert f"ignores cluster {invented_founding(C, D).cluster_id.hex()} (announced by node-3)" in text
    assert f"its farm key file names cluster {some_founding(A, B).cluster_id.hex()}" in text


def test_node_with_cluster_id_in_key_file_never_creates_a_farm() -> None:
    core = formation(A, 2, of=some_founding(C, D))
    see(core, proposing(B, A, B))
    assert not has(act(core, DeadlineReached(), now=10_000), Persist)
    assert core.notice == FormationNotice()
    promised = formation(A, 2, endorsed_with(A, A, B), of=some_founding(C, D))
    assert not has(see(promised, endorsing(B, A, B)), Persist)
    alone = formation(A, 1, of=some_founding(C, D))
    assert not has(act(alone, Started()), Persist)


def test_a_founder_believes_a_founding_of_others_only_if_its_own_promise_is_inside() -> None:
    core = formation(A, 3, promised_with(A, A, B, C))
    told = [some_founding(B, C, D), invented_founding(A, B, C)]
    for founding in told:
        assert not has(see(core, founded(B, founding)), Persist)
        assert core.phase is FormationPhase.PROMISED
        assert founding.cluster_id.hex() in core.alarms[0]
    withdrawn = formation(A, 3, FormationState(withdrawn=(promise(A, B, C, by=1),)))
    assert not has(see(withdrawn, founded(B, invented_founding(A, B, C))), Persist)


def test_a_founders_promise_beside_invented_ones_is_not_believed_from_a_stranger() -> None:
    """Promises are public: a holder of the farm key can put a real one into a founding of its own making."""
    core = formation(A, 3, promised_with(A, A, B, C))
    forged = invented_founding(A, B, C, real=A)
    assert not has(see(core, founded(E, forged), promising(B, A, B, C)), Persist)
    assert core.ignored == {E: forged}


def test_a_node_that_belongs_to_a_farm_adopts_no_other_founding_from_any_sender() -> None:
    mine, promised = some_founding(A, B), promise(A, B, by=1)
    for state in (FormationState(promise=promised, founding=mine), FormationState(known=mine)):
        core = formation(A, 2, state)
        for forged in (invented_founding(A, B), invented_founding(A, B, real=A), some_founding(C, D)):
            assert not has(see(core, founded(B, forged), founded(C, forged)), Persist)
            assert core.founding == mine


def test_an_alarm_stays_short_however_many_foundings_a_stranger_invents() -> None:
    core = formation(E, 2)
    invented = [founding_of({bytes([9] * 7 + [n]): Promise((), n, bytes(16))}) for n in range(200)]
    see(core, *(founded(bytes([8] * 7 + [number]), each) for number, each in enumerate(invented)))
    assert len(core.alarms[0]) < 1_500
    assert "and 196 more" in core.alarms[0]


def test_a_founder_whose_storage_is_older_than_the_farm_never_votes_and_says_why() -> None:
    core = formation(A, 2, of=some_founding(A, B))
    persist = the(see(core, founded(B, some_founding(A, B))), Persist)
    effects = act(core, Persisted(persist.number))
    assert not has(effects, Founded)
    assert "move the state directory away" in the(effects, Alarm).text


def test_two_clusters_under_one_farm_raise_an_alarm_and_are_not_merged() -> None:
    state = FormationState(promise=promise(A, B, by=1), founding=some_founding(A, B))
    core = formation(A, 2, state)
    effects = see(core, founded(C, some_founding(C, D)))
    text = the(effects, Alarm).text
    assert some_founding(A, B).cluster_id.hex() in text
    assert some_founding(C, D).cluster_id.hex() in text
    assert "it joins with a new identity" in text
    assert not has(effects, Persist)
    assert core.founding == some_founding(A, B)


def test_an_alarm_is_raised_once_and_ends_with_its_cause() -> None:
    core = formation(A, 2, FormationState(promise=promise(A, B, by=1), founding=some_founding(A, B)))
    see(core, founded(C, some_founding(C, D)))
    assert not has(see(core, founded(C, some_founding(C, D))), Alarm)
    see(core)
    assert core.alarms == ()


def test_colliding_promises_raise_an_alarm_that_names_the_nodes_to_withdraw_on() -> None:
    core = formation(B, 3, promised_with(B, B, C, D))
    see(core, promising(A, A, B, C), promising(C, A, B, C), promising(D, B, C, D))
    assert core.alarms == ()
    assert core.deadline == TUNING.patience_ms
    text = the(act(core, DeadlineReached(), now=TUNING.patience_ms), Alarm).text
    assert f"Run `garlicfarm withdraw` on {B.hex()}, {D.hex()}, one at a time" in text


def test_a_founder_that_does_not_come_raises_an_alarm_that_names_it() -> None:
    core = formation(A, 3, promised_with(A, A, B, C))
    see(core, promising(B, A, B, C))
    text = the(act(core, DeadlineReached(), now=TUNING.patience_ms), Alarm).text
    assert f"{C.hex()} cannot be reached" in text
    assert B.hex() + " cannot" not in text


def test_a_withdrawn_promise_disappears_from_the_notice_once_that_is_durable() -> None:
    core = formation(A, 2, promised_with(A, A, B))
    persist = the(act(core, WithdrawRequested()), Persist)
    assert core.notice.promise is not None
    act(core, Persisted(persist.number))
    assert core.notice == FormationNotice()
    assert persist.state.withdrawn == (promise(A, B, by=1),)


def test_an_endorsement_that_a_founder_does_not_share_can_be_withdrawn() -> None:
    for state in (endorsed_with(A, A, B), FormationState(endorsed=some_founding(B, C))):
        core = formation(A, 2, state)
        wanted = the(act(core, WithdrawRequested()), Persist).state
        assert wanted.endorsed is None
        assert wanted.revoked == (state.endorsed,)


def test_a_promise_after_a_withdrawal_keeps_clock_and_nonce() -> None:
    core = formation(A, 2, FormationState(withdrawn=(promise(A, C, by=1),)))
    see(core, proposing(B, A, B))
    assert the(act(core, DeadlineReached(), now=100), Persist).state.promise == promise(A, B, by=1)


def test_node_belongs_to_a_withdrawn_set_that_completed() -> None:
    revoked = (some_founding(A, B, C),)
    core = formation(A, 3, FormationState(withdrawn=(promise(A, B, C, by=1),), revoked=revoked))
    assert the(see(core, founded(B, some_founding(A, B, C))), Persist).state.founding == some_founding(A, B, C)


@pytest.mark.parametrize(
    ("state", "members", "reason"),
    [
        (FormationState(), (), "not made a promise"),
        (FormationState(founding=some_founding(A, B)), (), "the farm is created"),
        (promised_with(A, A, B), (founded(C, some_founding(C, D)),), "the farm is created"),
        (promised_with(A, A, B), (promising(B, A, B),), "under way"),
        (endorsed_with(A, A, B), (endorsing(B, A, B), proposing(C)), "under way"),
        (
            FormationState(promise=promise(A, B), withdrawn=(promise(A, B),) * WITHDRAWALS_MAX),
            (),
            "new state directory",
        ),
    ],
)
def test_a_withdrawal_is_refused_when_it_could_not_be_safe(
    state: FormationState, members: tuple[FarmMember, ...], reason: str
) -> None:
    core = formation(A, 2, state)
    see(core, *members)
    effects = act(core, WithdrawRequested())
    assert reason in the(effects, FormationRefused).text
    assert not has(effects, Persist)


def test_twice_the_expected_nodes_do_not_promise_and_alarm() -> None:
    core = formation(A, 2)
    effects = see(core, proposing(B, A, B), proposing(C), proposing(D))
    assert "`expect` must exceed half" in the(effects, Alarm).text
    assert not has(act(core, DeadlineReached(), now=10_000), Persist)


def test_a_node_with_another_expectation_raises_an_alarm() -> None:
    core = formation(A, 2)
    text = the(see(core, promising(B, A, B, C)), Alarm).text
    assert "promises 3 founders, but this node's farm key expects 2" in text


def test_a_node_that_may_not_found_only_observes() -> None:
    core = formation(A, 2, may_create=False)
    see(core, proposing(B, A, B), promising(B, A, B))
    assert not has(act(core, DeadlineReached(), now=10_000), Persist)
    assert core.notice == FormationNotice()


@pytest.mark.parametrize("expect", [0, -1, EXPECT_MAX + 1])
def test_an_impossible_expectation_is_refused(expect: int) -> None:
    with pytest.raises(ValueError, match=f"expect is {expect}"):
        formation(A, expect)


@pytest.mark.parametrize(
    "founders", [(A,), (A, B, C), (B, A), (A, A)], ids=["too few", "too many", "not in order", "one twice"]
)
def test_a_promise_of_a_malformed_set_is_never_joined(founders: Founders) -> None:
    core = formation(A, 2)
    malformed = FormationNotice(promise=Promise(founders, CLOCK_MS, bytes(16)))
    see(core, farm_member(B, reachable=True, notice=malformed))
    assert not has(act(core, DeadlineReached(), now=10_000), Persist)


def test_a_persist_of_an_earlier_number_is_ignored() -> None:
    core = formation(A, 1)
    persist = the(act(core, Started()), Persist)
    assert act(core, Persisted(persist.number + 1)) == []
    assert core.phase is FormationPhase.WATCHING
