"""Updates in gossip: accepted claims, expiry of members, claims about the node itself, and known traps."""

import pytest
from msgspec.structs import replace

from gossip.core.effects import AdoptGeneration, Alarm, AlarmKind, MembershipChanged
from gossip.core.events import DeadlineReached, LeaveRequested, MetadataChanged
from gossip.core.member import (
    GENERATION_STEP_LIMIT,
    INCARNATION_LIMIT,
    METADATA_LIMIT_BYTES,
    NUMBER_STEP_LIMIT,
    Address,
    Incarnation,
    Status,
)
from gossip.core.messages import AliveUpdate, DropReason, JoinAck, JoinReq, PingRequest, PingResponse
from gossip.core.options import SwimOptions
from gossip.core.swim import Swim
from tests.simulation.gossip_network import address_of, node_id
from tests.spec.gossip_story import Story, changes, info_of, sent, updates_in, verdict

ELSEWHERE = Address("10.9.9.9", 7_669)


# -- suspicion, death, return ------------------------------------------------------------------------------------------


def test_unrefuted_suspect_declared_dead() -> None:
    story = Story().with_peers(1, 2)
    story.drain_updates(1, 2)
    story.receive_updates(2, verdict(1, Status.SUSPECT, by=2))
    assert story.status(1) is Status.SUSPECT
    effects = story.pass_time(8_000, answering=[2])
    assert changes(effects) == [(node_id(1), Status.DEAD)]
    assert verdict(1, Status.DEAD, by=0) in updates_in(effects)
    assert story.peers() == {2}


def test_suspicion_ends_when_full_directory_drops_entry() -> None:
    story = Story(options=SwimOptions(directory_limit=16)).with_peers(1)
    story.discover(*range(3, 17), 2)
    story.receive_updates(1, verdict(2, Status.SUSPECT, by=1))
    story.now += 1
    story.discover(17)
    assert story.entry(2) is None
    story.discover(2)
    effects = story.pass_time(30_000, answering=[1, 2])
    assert (node_id(2), Status.DEAD) not in changes(effects)


def test_suspect_stays_peer_until_dead() -> None:
    story = Story().with_peers(1, 2)
    story.receive_updates(2, verdict(1, Status.SUSPECT, by=2))
    assert story.peers() == {1, 2}


def test_suspicion_refuted_only_by_higher_number() -> None:
    story = Story().with_peers(1, 2)
    story.receive_updates(2, verdict(1, Status.SUSPECT, by=2))
    story.receive_updates(2, AliveUpdate(info_of(1)))
    assert story.status(1) is Status.SUSPECT
    effects = story.receive_updates(2, AliveUpdate(info_of(1, claim=1)))
    assert changes(effects) == [(node_id(1), Status.ALIVE)]
    story.pass_time(60_000, answering=[1, 2])
    assert story.status(1) is Status.ALIVE


def test_suspicion_shortened_only_by_other_accusers() -> None:
    times = {}
    for confirming in ((), (5, 5), (2,), (2, 2, 2), (2, 3), (2, 3, 4)):
        story = Story().with_peers(1, 2, 3, 4, 5)
        story.drain_updates(1, 2, 3, 4, 5)
        started = story.now
        for accuser in (5, *confirming):
            story.receive_updates(accuser, verdict(1, Status.SUSPECT, by=accuser))
        while story.status(1) is Status.SUSPECT and story.swim.deadline is not None:
            claims = story.swim._updates
            assert claims.deadline is not None
            story.now = claims.deadline
            story.swim._context.now = story.now
            claims.expire()
        times[confirming] = story.now - started
    assert times[()] == times[5, 5] == 24_000
    assert times[2,] == times[2, 2, 2] < 24_000
    assert times[2, 3] == times[2, 3, 4] == 4_000


def test_dead_member_returns_with_higher_incarnation() -> None:
    for later in (info_of(1, claim=1), info_of(1, generation=2)):
        story = Story().with_peers(1, 2)
        story.receive_updates(2, verdict(1, Status.DEAD, by=2))
        effects = story.receive_updates(2, AliveUpdate(later))
        assert [e for e in effects if isinstance(e, MembershipChanged)] == [
            MembershipChanged(later, Status.ALIVE, Status.DEAD)
        ]


def test_descriptions_of_same_incarnation_are_equivocation() -> None:
    story = Story().with_peers(1, 2)
    other = replace(info_of(1), metadata=b"shown to another")
    effects = story.receive_updates(2, AliveUpdate(other))
    alarms = [each for each in effects if isinstance(each, Alarm)]
    assert [each.kind for each in alarms] == [AlarmKind.EQUIVOCATION]
    assert node_id(1).hex() in alarms[0].text
    assert [each.equivocates for each in effects if isinstance(each, MembershipChanged)] == [True]
    assert not [each for each in story.receive_updates(2, AliveUpdate(other)) if isinstance(each, Alarm)]


def test_equivocation_ends_at_later_generation() -> None:
    story = Story().with_peers(1, 2)
    story.receive_updates(2, AliveUpdate(replace(info_of(1), metadata=b"shown to another")))
    same = story.receive_updates(2, AliveUpdate(info_of(1, claim=1)))
    assert [each.equivocates for each in same if isinstance(each, MembershipChanged)] == [True]
    effects = story.receive_updates(2, AliveUpdate(info_of(1, generation=2)))
    assert [each.equivocates for each in effects if isinstance(each, MembershipChanged)] == [False]
    assert [(each.kind, each.over) for each in effects if isinstance(each, Alarm)] == [(AlarmKind.EQUIVOCATION, True)]
    again = story.receive_updates(2, AliveUpdate(replace(info_of(1, generation=2), metadata=b"shown to another")))
    assert [each.over for each in again if isinstance(each, Alarm)] == [False], "a second equivocation is also detected"


def test_equivocation_of_another_member_stays_alarm() -> None:
    story = Story().with_peers(1, 2)
    for number in (1, 2):
        story.receive_updates(2, AliveUpdate(replace(info_of(number), metadata=b"shown to another")))
    [alarm] = [
        each for each in story.receive_updates(2, AliveUpdate(info_of(1, generation=2))) if isinstance(each, Alarm)
    ]
    assert not alarm.over
    assert node_id(2).hex() in alarm.text
    assert node_id(1).hex() not in alarm.text


def test_second_signature_is_not_equivocation() -> None:
    story = Story().with_peers(1, 2)
    assert changes(story.receive_updates(2, AliveUpdate(replace(info_of(1), credential=b"another signature")))) == []


@pytest.mark.parametrize("status", [Status.SUSPECT, Status.DEAD, Status.LEFT])
def test_verdict_about_unknown_member_dropped(status: Status) -> None:
    story = Story().with_peers(1)
    story.receive_updates(1, verdict(9, status, by=9))
    assert story.status(9) is None
    assert story.dropped(DropReason.UNKNOWN_SUBJECT) == 1


def test_alive_verdict_dropped() -> None:
    story = Story().with_peers(1)
    story.receive_updates(1, verdict(1, Status.ALIVE, by=1, claim=7))
    assert story.dropped(DropReason.BAD_VERDICT) == 1
    entry = story.entry(1)
    assert entry is not None
    assert entry.incarnation == Incarnation(1, 0)


def test_incarnation_at_limit_refused() -> None:
    """No node could refute a claim of the highest incarnation."""
    story = Story().with_peers(1, 2)
    story.receive_updates(2, verdict(1, Status.DEAD, by=2, claim=INCARNATION_LIMIT))
    story.receive_updates(2, AliveUpdate(info_of(3, generation=INCARNATION_LIMIT)))
    assert story.status(1) is Status.ALIVE
    assert story.status(3) is None


def test_tombstone_dropped_after_its_time() -> None:
    story = Story(options=SwimOptions(tombstone_ms=60_000)).with_peers(1, 2)
    story.receive_updates(2, verdict(1, Status.DEAD, by=2))
    story.pass_time(59_000, answering=[2])
    assert story.status(1) is Status.DEAD
    story.pass_time(2_500, answering=[2])
    assert story.status(1) is None


def test_full_directory_keeps_peers() -> None:
    story = Story(options=SwimOptions(directory_limit=50)).with_peers(1, 2, 3)
    for number in range(10, 500):
        story.receive_updates(1, AliveUpdate(info_of(number)))
    assert len(story.swim.describe().members) == 50
    assert story.peers() == {1, 2, 3}


def test_unmentioned_member_expires_from_directory() -> None:
    story = Story(capacity=1, options=SwimOptions(directory_age_ms=30_000, scrub_every_rounds=1_000)).with_peers(1)
    story.discover(2)
    story.pass_time(32_000, answering=[1])
    assert story.status(2) is None


# -- claims about the node itself --------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [Status.SUSPECT, Status.DEAD, Status.LEFT])
def test_verdict_about_self_refuted_by_higher_number(status: Status) -> None:
    story = Story().with_peers(1)
    accuser = 0 if status is Status.LEFT else 1
    effects = story.receive_updates(1, verdict(0, status, by=accuser))
    assert story.swim.describe().self_info == info_of(0, claim=1)
    assert AliveUpdate(info_of(0, claim=1)) in updates_in(effects), "the reply to the same ping has the refutation"


def test_refutations_are_rate_limited() -> None:
    story = Story().with_peers(1)
    for claim in range(1_000):
        story.receive_updates(1, verdict(0, Status.DEAD, by=1, claim=claim))
    assert story.swim.describe().self_info.incarnation.number <= 2 * story.options.refutations_per_second
    assert story.dropped(DropReason.RATE_LIMITED) > 900


def test_refutation_lowers_own_health() -> None:
    story = Story().with_peers(1)
    story.receive_updates(1, verdict(0, Status.SUSPECT, by=1))
    assert story.swim.describe().health_score == 1


def test_higher_own_generation_adopted_plus_one() -> None:
    story = Story().with_peers(1)
    effects = story.receive_updates(1, AliveUpdate(info_of(0, generation=6)))
    assert effects[0] == AdoptGeneration(7)
    assert story.swim.describe().self_info.incarnation == Incarnation(7, 0)
    assert AliveUpdate(info_of(0, generation=7)) in updates_in(effects)


def test_later_own_description_raises_alarm_verdict_does_not() -> None:
    story = Story().with_peers(1)
    effects = story.receive_updates(1, AliveUpdate(info_of(0, generation=6)))
    [alarm] = [each for each in effects if isinstance(each, Alarm)]
    assert alarm.kind is AlarmKind.ROLLED_BACK
    assert "and generation 6, but this process has generation 1" in alarm.text
    effects = story.receive_updates(1, verdict(0, Status.DEAD, by=1, generation=9))
    assert not [each for each in effects if isinstance(each, Alarm)], "any node can claim that"


def test_later_own_description_elsewhere_is_not_rollback() -> None:
    story = Story().with_peers(1)
    elsewhere = replace(info_of(0, generation=6), address=Address("127.0.0.1", 9))
    effects = story.receive_updates(1, AliveUpdate(elsewhere))
    assert not [each for each in effects if isinstance(each, Alarm)]


def test_unsigned_generation_far_ahead_dropped() -> None:
    story = Story().with_peers(1, 2)
    for generation in (INCARNATION_LIMIT - 2, INCARNATION_LIMIT - 1, GENERATION_STEP_LIMIT + 2):
        forged = [verdict(number, Status.DEAD, by=1, generation=generation) for number in (0, 2)]
        effects = story.receive_updates(1, *forged)
        assert not [each for each in effects if isinstance(each, AdoptGeneration)], "it would be stored permanently"
        assert story.status(2) is Status.ALIVE, "2 could never refute it"
    assert story.swim.describe().self_info.incarnation == Incarnation(1, 0)
    assert story.dropped(DropReason.BAD_VERDICT) == 6


def test_ping_to_higher_own_generation_adopts_it() -> None:
    story = Story().with_peers(1)
    request = story.ping(1)
    later = PingRequest(
        request.source_id, request.source_incarnation, request.target_id, Incarnation(4, 2), request.seq, 0
    )
    assert story.receive(1, later)[0] == AdoptGeneration(5)


def test_running_second_instance_halts_node() -> None:
    story = Story().with_peers(1)
    story.receive_updates(1, AliveUpdate(info_of(0, generation=2, address=ELSEWHERE)))
    effects = story.pass_time(2_000, answering=[1])
    [ping] = [request for target, request in sent(effects, PingRequest) if target == ELSEWHERE]
    effects = story.receive(0, story.reply_to(ping), source=ELSEWHERE)
    [alarm] = [e for e in effects if isinstance(e, Alarm)]
    assert alarm.kind is AlarmKind.IDENTITY_CONFLICT
    assert "10.9.9.9:7669" in alarm.text
    assert story.swim.deadline is None
    assert story.receive(1, story.ping(1)) == []
    assert story.step(DeadlineReached()) == []
    assert story.swim.describe().halted


def test_join_in_own_name_from_elsewhere_is_checked() -> None:
    story = Story()
    story.receive(0, JoinReq(info_of(0, address=ELSEWHERE), b"t"), token_valid=True, source=ELSEWHERE)
    effects = story.pass_time(2_000)
    assert [r.target_id for t, r in sent(effects, PingRequest) if t == ELSEWHERE] == [node_id(0)]


def test_other_metadata_of_own_incarnation_refuted() -> None:
    story = Story().with_peers(1)
    effects = story.receive_updates(1, AliveUpdate(info_of(0, metadata=b"of a lost run")))
    assert AliveUpdate(info_of(0, claim=1)) in updates_in(effects)


def test_number_near_limit_refuted_by_new_generation() -> None:
    story = Story().with_peers(1)
    effects = story.receive_updates(1, AliveUpdate(info_of(0, claim=INCARNATION_LIMIT - 2)))
    assert effects[0] == AdoptGeneration(2)


def test_claim_far_ahead_of_signed_one_dropped() -> None:
    story = Story().with_peers(1, 2)
    story.receive_updates(1, verdict(0, Status.DEAD, by=1, claim=NUMBER_STEP_LIMIT + 1))
    story.receive_updates(1, verdict(2, Status.DEAD, by=1, claim=NUMBER_STEP_LIMIT + 1))
    story.receive_updates(1, verdict(2, Status.DEAD, by=1, generation=2, claim=NUMBER_STEP_LIMIT + 1))
    assert story.dropped(DropReason.BAD_VERDICT) == 3
    assert story.swim.info.incarnation == Incarnation(1, 0)
    assert story.status(2) is Status.ALIVE


def test_join_from_elsewhere_gets_known_description() -> None:
    story = Story().with_peers(1)
    request = JoinReq(info_of(1, address=ELSEWHERE), b"t")
    effects = story.receive(1, request, token_valid=True, source=ELSEWHERE)
    [ping] = [request for target, request in sent(effects, PingRequest) if target == ELSEWHERE]
    assert ping.payload.updates[0] == AliveUpdate(info_of(1))
    assert not sent(effects, JoinAck), "no welcome"


def test_earlier_own_run_elsewhere_is_not_conflict() -> None:
    story = Story()
    story.swim = Swim(info_of(0, generation=5), story.options, story.swim._random, 0)
    story.add_peers(1)
    story.receive_updates(1, AliveUpdate(info_of(0, generation=4, address=ELSEWHERE)))
    effects = story.pass_time(5_000, answering=[1])
    assert ELSEWHERE not in {target for target, _ in sent(effects, PingRequest)}
    assert not story.swim.describe().halted


def test_own_ping_from_other_address_is_not_conflict() -> None:
    story = Story().with_peers(1)
    story.receive_updates(1, AliveUpdate(info_of(0, generation=2, address=ELSEWHERE)))
    effects = story.pass_time(2_000, answering=[1])
    [ping] = [request for target, request in sent(effects, PingRequest) if target == ELSEWHERE]
    assert story.receive(0, ping) == []
    assert not story.swim.describe().halted


def test_ping_of_second_instance_gets_reply() -> None:
    """With the reply, the second instance also detects the conflict."""
    story = Story()
    effects = story.receive(0, story.ping(0), source=ELSEWHERE)
    assert [target for target, _ in sent(effects, PingResponse)] == [ELSEWHERE]


def test_changed_metadata_sent_with_higher_number() -> None:
    story = Story().with_peers(1)
    story.drain_updates(1)
    story.step(MetadataChanged(b"role=voter"))
    effects = story.pass_time(1_000, answering=[1])
    assert AliveUpdate(info_of(0, claim=1, metadata=b"role=voter")) in updates_in(effects)


def test_unchanged_metadata_keeps_number() -> None:
    story = Story()
    story.step(MetadataChanged(b""))
    assert story.swim.describe().self_info == story.us


def test_metadata_over_limit_raises_error() -> None:
    story = Story()
    with pytest.raises(ValueError, match="513 bytes is over the limit of 512"):
        story.step(MetadataChanged(bytes(METADATA_LIMIT_BYTES + 1)))
    assert story.swim.describe().self_info == story.us


def test_leaving_node_does_not_refute_departure() -> None:
    story = Story().with_peers(1)
    story.step(LeaveRequested())
    story.receive_updates(1, verdict(0, Status.LEFT, by=0))
    story.receive_updates(1, verdict(0, Status.SUSPECT, by=1))
    assert story.swim.describe().self_info == story.us


def test_member_probed_at_changed_address() -> None:
    story = Story().with_peers(1)
    story.receive_updates(1, AliveUpdate(info_of(1, generation=2, address=ELSEWHERE)))
    effects = story.pass_time(5_000)
    targets = {t for t, r in sent(effects, PingRequest) if r.target_id == node_id(1)}
    assert targets == {ELSEWHERE}


def test_clock_step_back_is_ignored() -> None:
    story = Story().with_peers(1)
    story.pass_time(10_000, answering=[1])
    later = story.swim.deadline
    story.now = 3
    story.step(DeadlineReached())
    assert story.swim.deadline == later


def test_invalid_description_refused_at_start() -> None:
    with pytest.raises(ValueError, match="capacity 0 must be at least 1"):
        Story(capacity=0)


def test_live_members_are_neither_dead_nor_left() -> None:
    story = Story().with_peers(1, 2, 3, 4)
    story.receive_updates(
        1, verdict(2, Status.SUSPECT, by=1), verdict(3, Status.DEAD, by=1), verdict(4, Status.LEFT, by=4)
    )
    members = story.swim.membership
    assert [entry.info for entry in members.entries() if entry.is_live] == [info_of(1), info_of(2)]
    assert members.live_count == 2
    assert address_of(2) == info_of(2).address


def test_paused_node_reads_updates_before_declaring_dead() -> None:
    story = Story().with_peers(1, 2)
    story.drain_updates(1, 2)
    story.receive_updates(2, verdict(1, Status.SUSPECT, by=2))
    story.now += 3_600_000
    effects = story.step(DeadlineReached())
    assert story.status(1) is Status.SUSPECT
    assert changes(effects) == []
    assert story.swim.describe().health_score == 1
    story.receive_updates(2, AliveUpdate(info_of(1, claim=1)))
    story.pass_time(10_000, answering=[1, 2])
    assert story.status(1) is Status.ALIVE
