"""What a node believes, when it lets go, and how it speaks for itself: the decisions on gossip, the known traps."""

from dataclasses import replace

import pytest

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
from tests.spec.gossip_story import Story, changes, info_of, sent, told, verdict

ELSEWHERE = Address("10.9.9.9", 7_669)


# -- suspicion, death, return --------------------------------------------------------------------------------------


def test_a_suspect_that_does_not_refute_is_declared_dead_and_that_is_told() -> None:
    story = Story()
    story.befriend(1, 2)
    story.quiet(1, 2)
    story.hear_news(2, verdict(1, Status.SUSPECT, by=2))
    assert story.status(1) is Status.SUSPECT
    effects = story.pass_time(8_000, answering=[2])
    assert changes(effects) == [(node_id(1), Status.DEAD)]
    assert verdict(1, Status.DEAD, by=0) in told(effects)
    assert story.peers() == {2}


def test_a_suspicion_ends_with_the_entry_that_a_full_directory_gives_up() -> None:
    story = Story(options=SwimOptions(directory_limit=16))
    story.befriend(1)
    story.hear_of(*range(3, 17), 2)
    story.hear_news(1, verdict(2, Status.SUSPECT, by=1))
    story.now += 1
    story.hear_of(17)
    assert story.entry(2) is None
    story.hear_of(2)
    effects = story.pass_time(30_000, answering=[1, 2])
    assert (node_id(2), Status.DEAD) not in changes(effects)


def test_a_suspect_remains_a_peer_until_it_is_dead() -> None:
    story = Story()
    story.befriend(1, 2)
    story.hear_news(2, verdict(1, Status.SUSPECT, by=2))
    assert story.peers() == {1, 2}


def test_a_suspect_refutes_by_a_higher_number_and_by_nothing_less() -> None:
    story = Story()
    story.befriend(1, 2)
    story.hear_news(2, verdict(1, Status.SUSPECT, by=2))
    story.hear_news(2, AliveUpdate(info_of(1)))
    assert story.status(1) is Status.SUSPECT
    effects = story.hear_news(2, AliveUpdate(info_of(1, claim=1)))
    assert changes(effects) == [(node_id(1), Status.ALIVE)]
    story.pass_time(60_000, answering=[1, 2])
    assert story.status(1) is Status.ALIVE


def test_confirmations_by_others_shorten_a_suspicion_and_repetitions_do_not() -> None:
    times = {}
    for confirming in ((), (5, 5), (2,), (2, 2, 2), (2, 3), (2, 3, 4)):
        story = Story()
        story.befriend(1, 2, 3, 4, 5)
        story.quiet(1, 2, 3, 4, 5)
        started = story.now
        for accuser in (5, *confirming):
            story.hear_news(accuser, verdict(1, Status.SUSPECT, by=accuser))
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


def test_a_dead_member_returns_with_a_higher_number_or_generation() -> None:
    for later in (info_of(1, claim=1), info_of(1, generation=2)):
        story = Story()
        story.befriend(1, 2)
        story.hear_news(2, verdict(1, Status.DEAD, by=2))
        effects = story.hear_news(2, AliveUpdate(later))
        assert [e for e in effects if isinstance(e, MembershipChanged)] == [
            MembershipChanged(later, Status.ALIVE, Status.DEAD)
        ]


def test_two_signed_descriptions_of_one_incarnation_are_an_equivocation() -> None:
    story = Story()
    story.befriend(1, 2)
    other = replace(info_of(1), metadata=b"shown to another")
    effects = story.hear_news(2, AliveUpdate(other))
    alarms = [each for each in effects if isinstance(each, Alarm)]
    assert [each.kind for each in alarms] == [AlarmKind.EQUIVOCATION]
    assert node_id(1).hex() in alarms[0].text
    assert [each.equivocates for each in effects if isinstance(each, MembershipChanged)] == [True]
    assert not [each for each in story.hear_news(2, AliveUpdate(other)) if isinstance(each, Alarm)]


def test_equivocation_at_a_later_generation_is_over() -> None:
    story = Story()
    story.befriend(1, 2)
    story.hear_news(2, AliveUpdate(replace(info_of(1), metadata=b"shown to another")))
    same = story.hear_news(2, AliveUpdate(info_of(1, claim=1)))
    assert [each.equivocates for each in same if isinstance(each, MembershipChanged)] == [True]
    effects = story.hear_news(2, AliveUpdate(info_of(1, generation=2)))
    assert [each.equivocates for each in effects if isinstance(each, MembershipChanged)] == [False]
    assert [(each.kind, each.over) for each in effects if isinstance(each, Alarm)] == [(AlarmKind.EQUIVOCATION, True)]
    again = story.hear_news(2, AliveUpdate(replace(info_of(1, generation=2), metadata=b"shown to another")))
    assert [each.over for each in again if isinstance(each, Alarm)] == [False], "a second time is found as well"


def test_equivocation_of_another_member_stays_an_alarm() -> None:
    story = Story()
    story.befriend(1, 2)
    for number in (1, 2):
        story.hear_news(2, AliveUpdate(replace(info_of(number), metadata=b"shown to another")))
    [alarm] = [each for each in story.hear_news(2, AliveUpdate(info_of(1, generation=2))) if isinstance(each, Alarm)]
    assert not alarm.over
    assert node_id(2).hex() in alarm.text
    assert node_id(1).hex() not in alarm.text


def test_one_description_signed_twice_is_no_equivocation() -> None:
    story = Story()
    story.befriend(1, 2)
    assert changes(story.hear_news(2, AliveUpdate(replace(info_of(1), credential=b"another signature")))) == []


def test_a_replayed_alive_does_not_revive() -> None:
    story = Story()
    story.befriend(1, 2)
    story.hear_news(2, AliveUpdate(info_of(1, claim=4)))
    story.hear_news(2, verdict(1, Status.DEAD, by=2, claim=4))
    for claim in range(5):
        story.hear_news(2, AliveUpdate(info_of(1, claim=claim)))
    assert story.status(1) is Status.DEAD


@pytest.mark.parametrize("status", [Status.SUSPECT, Status.DEAD, Status.LEFT])
def test_a_verdict_about_an_unknown_member_does_not_create_it(status: Status) -> None:
    story = Story()
    story.befriend(1)
    story.hear_news(1, verdict(9, status, by=9))
    assert story.status(9) is None
    assert story.dropped(DropReason.UNKNOWN_SUBJECT) == 1


def test_alive_is_no_verdict() -> None:
    story = Story()
    story.befriend(1)
    story.hear_news(1, verdict(1, Status.ALIVE, by=1, claim=7))
    assert story.dropped(DropReason.BAD_VERDICT) == 1
    entry = story.entry(1)
    assert entry is not None
    assert entry.incarnation == Incarnation(1, 0)


def test_an_incarnation_at_the_end_of_the_scale_is_refused_because_no_node_could_refute_it() -> None:
    story = Story()
    story.befriend(1, 2)
    story.hear_news(2, verdict(1, Status.DEAD, by=2, claim=INCARNATION_LIMIT))
    story.hear_news(2, AliveUpdate(info_of(3, generation=INCARNATION_LIMIT)))
    assert story.status(1) is Status.ALIVE
    assert story.status(3) is None


def test_a_tombstone_is_kept_for_its_time_and_then_forgotten() -> None:
    story = Story(options=SwimOptions(tombstone_ms=60_000))
    story.befriend(1, 2)
    story.hear_news(2, verdict(1, Status.DEAD, by=2))
    story.pass_time(59_000, answering=[2])
    assert story.status(1) is Status.DEAD
    story.pass_time(2_500, answering=[2])
    assert story.status(1) is None


def test_the_directory_is_bounded_and_peers_are_never_pushed_out_of_it() -> None:
    story = Story(options=SwimOptions(directory_limit=50))
    story.befriend(1, 2, 3)
    for number in range(10, 500):
        story.hear_news(1, AliveUpdate(info_of(number)))
    assert len(story.swim.describe().members) == 50
    assert story.peers() == {1, 2, 3}


def test_a_member_that_is_not_mentioned_for_long_ages_out_of_the_directory() -> None:
    story = Story(capacity=1, options=SwimOptions(directory_age_ms=30_000, scrub_every_rounds=1_000))
    story.befriend(1)
    story.hear_of(2)
    story.pass_time(32_000, answering=[1])
    assert story.status(2) is None


# -- speaking for oneself ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [Status.SUSPECT, Status.DEAD, Status.LEFT])
def test_a_verdict_about_ourselves_is_refuted_by_raising_our_number(status: Status) -> None:
    story = Story()
    story.befriend(1)
    accuser = 0 if status is Status.LEFT else 1
    effects = story.hear_news(1, verdict(0, status, by=accuser))
    assert story.swim.describe().self_info == info_of(0, claim=1)
    assert AliveUpdate(info_of(0, claim=1)) in told(effects), "the refutation rides on the answer to the very ping"


def test_an_old_verdict_about_ourselves_needs_no_answer() -> None:
    story = Story()
    story.befriend(1)
    story.hear_news(1, verdict(0, Status.DEAD, by=1, claim=3))
    story.hear_news(1, verdict(0, Status.DEAD, by=1, claim=2))
    assert story.swim.describe().self_info.incarnation == Incarnation(1, 4)


def test_a_flood_of_you_are_dead_is_refuted_at_a_bounded_rate() -> None:
    story = Story()
    story.befriend(1)
    for claim in range(1_000):
        story.hear_news(1, verdict(0, Status.DEAD, by=1, claim=claim))
    assert story.swim.describe().self_info.incarnation.number <= 2 * story.options.refutations_per_second
    assert story.dropped(DropReason.RATE_LIMITED) > 900


def test_having_to_refute_is_a_sign_of_ill_health() -> None:
    story = Story()
    story.befriend(1)
    story.hear_news(1, verdict(0, Status.SUSPECT, by=1))
    assert story.swim.describe().health_score == 1


def test_a_higher_generation_of_ourselves_is_adopted_plus_one_before_anything_else_is_sent() -> None:
    story = Story()
    story.befriend(1)
    effects = story.hear_news(1, AliveUpdate(info_of(0, generation=6)))
    assert effects[0] == AdoptGeneration(7)
    assert story.swim.describe().self_info.incarnation == Incarnation(7, 0)
    assert AliveUpdate(info_of(0, generation=7)) in told(effects)


def test_own_words_of_a_later_run_are_an_alarm_and_news_about_one_is_not() -> None:
    story = Story()
    story.befriend(1)
    effects = story.hear_news(1, AliveUpdate(info_of(0, generation=6)))
    [alarm] = [each for each in effects if isinstance(each, Alarm)]
    assert alarm.kind is AlarmKind.ROLLED_BACK
    assert "with generation 6 from this address, and this is generation 1" in alarm.text
    effects = story.hear_news(1, verdict(0, Status.DEAD, by=1, generation=9))
    assert not [each for each in effects if isinstance(each, Alarm)], "any node can say that"


def test_a_later_run_elsewhere_is_an_identity_conflict_and_no_memory_lost() -> None:
    story = Story()
    story.befriend(1)
    elsewhere = replace(info_of(0, generation=6), address=Address("127.0.0.1", 9))
    effects = story.hear_news(1, AliveUpdate(elsewhere))
    assert not [each for each in effects if isinstance(each, Alarm)]


def test_an_unsigned_claim_of_a_generation_beyond_belief_is_neither_taken_nor_adopted() -> None:
    story = Story()
    story.befriend(1, 2)
    for generation in (INCARNATION_LIMIT - 2, INCARNATION_LIMIT - 1, GENERATION_STEP_LIMIT + 2):
        lies = [verdict(number, Status.DEAD, by=1, generation=generation) for number in (0, 2)]
        effects = story.hear_news(1, *lies)
        assert not [each for each in effects if isinstance(each, AdoptGeneration)], "it would be kept for good"
        assert story.status(2) is Status.ALIVE, "2 could never refute it"
    assert story.swim.describe().self_info.incarnation == Incarnation(1, 0)
    assert story.dropped(DropReason.BAD_VERDICT) == 6


def test_a_ping_that_asks_for_a_higher_generation_of_ours_has_the_same_effect() -> None:
    story = Story()
    story.befriend(1)
    request = story.ping(1)
    later = PingRequest(
        request.source_id, request.source_incarnation, request.target_id, Incarnation(4, 2), request.seq, 0
    )
    assert story.hear(1, later)[0] == AdoptGeneration(5)


def test_a_running_second_instance_is_an_alarm_and_this_node_stops() -> None:
    story = Story()
    story.befriend(1)
    story.hear_news(1, AliveUpdate(info_of(0, generation=2, address=ELSEWHERE)))
    effects = story.pass_time(2_000, answering=[1])
    [ping] = [request for target, request in sent(effects, PingRequest) if target == ELSEWHERE]
    effects = story.hear(0, story.answer_to(ping), source=ELSEWHERE)
    [alarm] = [e for e in effects if isinstance(e, Alarm)]
    assert alarm.kind is AlarmKind.IDENTITY_CONFLICT
    assert "10.9.9.9:7669" in alarm.text
    assert story.swim.deadline is None
    assert story.hear(1, story.ping(1)) == []
    assert story.step(DeadlineReached()) == []
    assert story.swim.describe().halted


def test_a_join_in_our_own_name_from_elsewhere_is_checked_for_a_conflict() -> None:
    story = Story()
    story.hear(0, JoinReq(info_of(0, address=ELSEWHERE), b"t"), token_valid=True, source=ELSEWHERE)
    effects = story.pass_time(2_000)
    assert [r.target_id for t, r in sent(effects, PingRequest) if t == ELSEWHERE] == [node_id(0)]


def test_other_words_under_our_very_incarnation_are_refuted() -> None:
    story = Story()
    story.befriend(1)
    effects = story.hear_news(1, AliveUpdate(info_of(0, metadata=b"of a lost life")))
    assert AliveUpdate(info_of(0, claim=1)) in told(effects)


def test_a_number_near_the_end_of_the_scale_is_refuted_by_a_new_life() -> None:
    story = Story()
    story.befriend(1)
    effects = story.hear_news(1, AliveUpdate(info_of(0, claim=INCARNATION_LIMIT - 2)))
    assert effects[0] == AdoptGeneration(2)


def test_a_claim_far_ahead_of_what_the_member_signed_is_false() -> None:
    story = Story()
    story.befriend(1, 2)
    story.hear_news(1, verdict(0, Status.DEAD, by=1, claim=NUMBER_STEP_LIMIT + 1))
    story.hear_news(1, verdict(2, Status.DEAD, by=1, claim=NUMBER_STEP_LIMIT + 1))
    story.hear_news(1, verdict(2, Status.DEAD, by=1, generation=2, claim=NUMBER_STEP_LIMIT + 1))
    assert story.dropped(DropReason.BAD_VERDICT) == 3
    assert story.swim.info.incarnation == Incarnation(1, 0)
    assert story.status(2) is Status.ALIVE


def test_one_that_joins_from_elsewhere_under_a_known_incarnation_is_told_what_we_hold() -> None:
    story = Story()
    story.befriend(1)
    request = JoinReq(info_of(1, address=ELSEWHERE), b"t")
    effects = story.hear(1, request, token_valid=True, source=ELSEWHERE)
    [ping] = [request for target, request in sent(effects, PingRequest) if target == ELSEWHERE]
    assert ping.payload.updates[0] == AliveUpdate(info_of(1))
    assert not sent(effects, JoinAck), "no welcome"


def test_an_earlier_run_of_ours_at_another_address_is_no_conflict() -> None:
    story = Story()
    story.swim = Swim(info_of(0, generation=5), story.options, story.swim._random, 0)
    story.befriend(1)
    story.hear_news(1, AliveUpdate(info_of(0, generation=4, address=ELSEWHERE)))
    effects = story.pass_time(5_000, answering=[1])
    assert ELSEWHERE not in {target for target, _ in sent(effects, PingRequest)}
    assert not story.swim.describe().halted


def test_our_own_ping_that_comes_back_by_another_address_is_no_conflict() -> None:
    story = Story()
    story.befriend(1)
    story.hear_news(1, AliveUpdate(info_of(0, generation=2, address=ELSEWHERE)))
    effects = story.pass_time(2_000, answering=[1])
    [ping] = [request for target, request in sent(effects, PingRequest) if target == ELSEWHERE]
    assert story.hear(0, ping) == []
    assert not story.swim.describe().halted


def test_a_second_instance_that_pings_us_gets_an_answer_so_that_it_finds_out_too() -> None:
    story = Story()
    effects = story.hear(0, story.ping(0), source=ELSEWHERE)
    assert [target for target, _ in sent(effects, PingResponse)] == [ELSEWHERE]


def test_changed_metadata_raises_the_number_and_is_told() -> None:
    story = Story()
    story.befriend(1)
    story.quiet(1)
    story.step(MetadataChanged(b"role=voter"))
    effects = story.pass_time(1_000, answering=[1])
    assert AliveUpdate(info_of(0, claim=1, metadata=b"role=voter")) in told(effects)


def test_the_same_metadata_again_is_no_change() -> None:
    story = Story()
    story.step(MetadataChanged(b""))
    assert story.swim.describe().self_info == story.us


def test_metadata_over_the_limit_is_a_clear_error_and_changes_nothing() -> None:
    story = Story()
    with pytest.raises(ValueError, match="513 bytes is over the limit of 512"):
        story.step(MetadataChanged(bytes(METADATA_LIMIT_BYTES + 1)))
    assert story.swim.describe().self_info == story.us


def test_a_leaving_node_does_not_refute_its_own_departure() -> None:
    story = Story()
    story.befriend(1)
    story.step(LeaveRequested())
    story.hear_news(1, verdict(0, Status.LEFT, by=0))
    story.hear_news(1, verdict(0, Status.SUSPECT, by=1))
    assert story.swim.describe().self_info == story.us


def test_a_member_that_changed_its_address_is_found_at_the_new_one() -> None:
    story = Story()
    story.befriend(1)
    story.hear_news(1, AliveUpdate(info_of(1, generation=2, address=ELSEWHERE)))
    effects = story.pass_time(5_000)
    targets = {t for t, r in sent(effects, PingRequest) if r.target_id == node_id(1)}
    assert targets == {ELSEWHERE}


def test_a_clock_that_steps_back_is_taken_as_standing_still() -> None:
    story = Story()
    story.befriend(1)
    story.pass_time(10_000, answering=[1])
    later = story.swim.deadline
    story.now = 3
    story.step(DeadlineReached())
    assert story.swim.deadline == later


def test_a_description_that_cannot_work_is_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="capacity 0 must be at least 1"):
        Story(capacity=0)


def test_live_members_are_those_not_known_to_be_dead_or_gone() -> None:
    story = Story()
    story.befriend(1, 2, 3, 4)
    story.hear_news(1, verdict(2, Status.SUSPECT, by=1), verdict(3, Status.DEAD, by=1), verdict(4, Status.LEFT, by=4))
    members = story.swim.membership
    assert [entry.info for entry in members.entries() if entry.is_live] == [info_of(1), info_of(2)]
    assert members.live_count == 2
    assert address_of(2) == info_of(2).address


def test_a_node_that_stood_still_reads_what_waited_before_it_declares_a_member_dead() -> None:
    story = Story()
    story.befriend(1, 2)
    story.quiet(1, 2)
    story.hear_news(2, verdict(1, Status.SUSPECT, by=2))
    story.now += 3_600_000
    effects = story.step(DeadlineReached())
    assert story.status(1) is Status.SUSPECT
    assert changes(effects) == []
    assert story.swim.describe().health_score == 1
    story.hear_news(2, AliveUpdate(info_of(1, claim=1)))
    story.pass_time(10_000, answering=[1, 2])
    assert story.status(1) is Status.ALIVE
