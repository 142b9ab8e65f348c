"""Pings and their relaying, sentence by sentence of the RFC and of the decision about TTL."""

from dataclasses import replace

import pytest

from gossip.core.member import Incarnation, Status
from gossip.core.messages import AliveUpdate, DropReason, JoinNak, Payload, PingRequest, PingResponse
from tests.simulation.gossip_network import address_of, node_id
from tests.spec.gossip_story import Story, info_of, sent, told, verdict


def test_the_target_of_a_ping_answers_with_the_requesters_id_its_own_and_the_same_number() -> None:
    story = Story()
    story.befriend(1)
    effects = story.hear(1, story.ping(1, seq=6253))
    [(target, response)] = sent(effects, PingResponse)
    assert target == address_of(1)
    assert (response.source_id, response.target_id) == (node_id(1), node_id(0))
    assert (response.seq, response.nack) == (6253, False)
    assert response.target_incarnation == story.us.incarnation


@pytest.mark.parametrize("ttl", [0, 1, 2, 255])
def test_the_answer_repeats_the_ttl_so_that_the_requester_can_count_hops(ttl: int) -> None:
    story = Story()
    story.befriend(1)
    [(_, response)] = sent(story.hear(1, story.ping(1, ttl=ttl)), PingResponse)
    assert response.ttl == ttl


def test_an_answer_carries_capacity_peer_count_and_a_sample() -> None:
    story = Story(capacity=5)
    story.befriend(1, 2)
    story.hear_of(3)
    story.quiet(1, 2)
    [(_, response)] = sent(story.hear(1, story.ping(1)), PingResponse)
    assert (response.payload.capacity, response.payload.peer_count) == (5, 2)
    assert info_of(2) in response.payload.sample
    assert info_of(1) not in response.payload.sample, "a node needs no word about itself"


def test_a_direct_ping_for_another_id_is_answered_by_silence() -> None:
    story = Story()
    story.befriend(1, 2)
    assert story.hear(1, story.ping(1, target=2, ttl=0)) == []
    assert story.hear(1, story.ping(1, target=9, ttl=0)) == []
    assert story.dropped(DropReason.NOT_THE_TARGET) == 2


def test_a_request_with_ttl_1_goes_to_a_known_target_with_one_less() -> None:
    story = Story()
    story.befriend(1, 2)
    request = story.ping(1, target=2, ttl=1)
    effects = story.hear(1, request)
    assert sent(effects, PingRequest) == [(address_of(2), replace(request, ttl=0, requester=address_of(1)))]


def test_a_request_with_ttl_1_is_not_forwarded_to_an_unknown_target() -> None:
    story = Story()
    story.befriend(1, 2)
    assert story.hear(1, story.ping(1, target=9, ttl=1)) == []


def test_at_ttl_2_a_helper_that_does_not_know_the_target_forwards_to_one_other_peer() -> None:
    story = Story()
    story.befriend(1, 2, 3)
    request = story.ping(1, target=9, ttl=2)
    effects = story.hear(1, request)
    [(target, forwarded)] = sent(effects, PingRequest)
    assert target in {address_of(2), address_of(3)}
    assert forwarded == replace(request, ttl=1, requester=address_of(1))


@pytest.mark.parametrize(("asked", "forwarded"), [(1, 0), (2, 1), (3, 2), (5, 4), (8, 7), (9, 7), (255, 7)])
def test_a_helper_forwards_with_one_less_and_takes_more_than_eight_for_eight(asked: int, forwarded: int) -> None:
    story = Story()
    story.befriend(1, 2)
    effects = story.hear(1, story.ping(1, target=2, ttl=asked))
    assert [request.ttl for _, request in sent(effects, PingRequest)] == [forwarded]


def test_a_second_helper_keeps_the_requesters_address() -> None:
    story = Story()
    story.befriend(1, 2)
    effects = story.hear(1, story.ping(7, target=2, ttl=1, requester=address_of(7)))
    [(_, forwarded)] = sent(effects, PingRequest)
    assert forwarded.requester == address_of(7)


def test_a_relayed_target_answers_straight_to_the_requester_and_along_the_relayed_path() -> None:
    story = Story()
    story.befriend(1)
    effects = story.hear(1, story.ping(7, requester=address_of(7)))
    answers = sent(effects, PingResponse)
    assert [target for target, _ in answers] == [address_of(1), address_of(7)]
    assert answers[0][1] == answers[1][1]


def test_a_helper_passes_the_answer_back_one_hop_whatever_its_ttl_and_only_once() -> None:
    story = Story()
    story.befriend(1, 2)
    request = story.ping(1, target=2, ttl=1)
    story.hear(1, request)
    answer = PingResponse(node_id(1), node_id(2), Incarnation(1, 0), request.seq, 0)
    assert sent(story.hear(2, answer), PingResponse) == [(address_of(1), answer)]
    assert story.hear(2, answer) == []


def test_a_helper_forgets_a_relay_after_one_period() -> None:
    story = Story()
    story.befriend(1, 2)
    request = story.ping(1, target=2, ttl=1)
    story.hear(1, request)
    story.pass_time(story.options.probe_period_ms, answering=[1, 2])
    answer = PingResponse(node_id(1), node_id(2), Incarnation(1, 0), request.seq, 0)
    assert story.hear(2, answer) == []


def test_a_helper_that_hears_nothing_from_the_target_says_so_with_a_nack() -> None:
    story = Story()
    story.befriend(1, 2)
    story.hear(1, story.ping(1, target=2, ttl=1, seq=42))
    effects = story.pass_time(story.options.probe_timeout_ms, answering=[1])
    nacks = [(target, m.seq) for target, m in sent(effects, PingResponse) if m.nack]
    assert nacks == [(address_of(1), 42)]


def test_a_helper_whose_target_answered_sends_no_nack() -> None:
    story = Story()
    story.befriend(1, 2)
    request = story.ping(1, target=2, ttl=1)
    story.hear(1, request)
    story.hear(2, PingResponse(node_id(1), node_id(2), Incarnation(1, 0), request.seq, 0))
    effects = story.pass_time(story.options.probe_period_ms, answering=[1, 2])
    assert not any(m.nack for _, m in sent(effects, PingResponse))


def test_relays_are_bounded_and_a_repeated_request_is_not_passed_on_again() -> None:
    story = Story()
    story.befriend(1, 2)
    passed = sum(len(story.hear(1, story.ping(1, target=2, ttl=1, seq=n))) for n in range(1_000))
    assert passed == story.options.relays_limit
    assert story.hear(1, story.ping(1, target=2, ttl=1, seq=5)) == []
    assert story.dropped(DropReason.RELAY_REPEATED) == 1


# -- one probe round -----------------------------------------------------------------------------------------------


def test_each_period_one_peer_is_pinged_directly_and_each_peer_once_per_pass() -> None:
    story = Story()
    story.befriend(1, 2, 3, 4)
    peers = range(1, 5)
    story.quiet(*peers)
    effects = story.pass_time(8 * story.options.probe_period_ms, answering=peers)
    pinged = [request.target_id for _, request in sent(effects, PingRequest)]
    assert all(request.ttl == 0 for _, request in sent(effects, PingRequest))
    assert sorted(pinged) == sorted([node_id(n) for n in peers] * 2)


def test_without_an_answer_helpers_are_asked_after_the_timeout_and_not_before() -> None:
    story = Story()
    story.befriend(1, 2, 3, 4, 5)
    story.quiet(1, 2, 3, 4, 5)
    target = _wait_for_round(story)
    early = story.pass_time(story.options.probe_timeout_ms - 1, answering=set(range(1, 6)) - {target})
    assert not any(request.ttl for _, request in sent(early, PingRequest))
    late = story.pass_time(1, answering=set(range(1, 6)) - {target})
    asked = [(helper, r) for helper, r in sent(late, PingRequest) if r.ttl > 0]
    assert len(asked) == story.options.helpers
    assert {r.target_id for _, r in asked} == {node_id(target)}
    assert {r.ttl for _, r in asked} == {story.options.relay_ttl}
    assert address_of(target) not in {helper for helper, _ in asked}


def test_a_target_that_answers_no_probe_is_suspected_at_the_end_of_the_period() -> None:
    story = Story()
    story.befriend(1, 2, 3)
    story.quiet(1, 2, 3)
    target = _wait_for_round(story)
    others = {1, 2, 3} - {target}
    story.pass_time(story.options.probe_period_ms - 1, answering=others)
    assert story.status(target) is Status.ALIVE
    effects = story.pass_time(story.options.gossip_period_ms + 1, answering=others)
    assert story.status(target) is Status.SUSPECT
    assert verdict(target, Status.SUSPECT, by=0) in told(effects)


def test_an_answer_that_came_through_a_helper_counts() -> None:
    story = Story()
    story.befriend(1, 2)
    story.quiet(1, 2)
    target = _wait_for_round(story)
    other = 3 - target
    late = story.pass_time(story.options.probe_timeout_ms, answering=[other])
    [relayed] = [r for _, r in sent(late, PingRequest) if r.ttl > 0]
    story.hear(other, story.answer_to(relayed))
    story.pass_time(story.options.probe_period_ms, answering=[other])
    assert story.status(target) is Status.ALIVE


@pytest.mark.parametrize("wrong", ["number", "target", "requester"])
def test_an_answer_counts_only_for_our_ping_of_that_id_under_that_number(wrong: str) -> None:
    story = Story()
    story.befriend(1, 2, 3)
    story.quiet(1, 2, 3)
    effects = story.pass_time(1)
    while not sent(effects, PingRequest):
        effects = story.pass_time(1)
    [(_, request)] = sent(effects, PingRequest)
    answer = story.answer_to(request)
    match wrong:
        case "number":
            answer = replace(answer, seq=answer.seq + 1)
        case "target":
            answer = replace(answer, target_id=node_id(9))
        case _:
            answer = replace(answer, source_id=node_id(9))
    target = int.from_bytes(request.target_id, "big")
    story.hear(target, answer)
    story.pass_time(story.options.probe_period_ms, answering={1, 2, 3} - {target})
    assert story.status(target) is Status.SUSPECT
    assert story.dropped(DropReason.UNMATCHED_RESPONSE) == 1


def test_the_round_trip_time_of_a_direct_answer_is_kept() -> None:
    story = Story()
    story.befriend(1)
    story.quiet(1)
    effects = story.pass_time(1)
    while not sent(effects, PingRequest):
        effects = story.pass_time(1)
    [(_, request)] = sent(effects, PingRequest)
    asked_at = story.now
    story.now += 37
    story.hear(1, story.answer_to(request))
    [member] = story.swim.describe().members
    assert member.round_trip_ms == story.now - asked_at


def test_some_rounds_probe_the_directory_so_that_no_member_is_thought_alive_for_ever() -> None:
    story = Story(capacity=1)
    story.befriend(1)
    story.hear_of(2)
    story.quiet(1, 2)
    story.pass_time(30_000, answering=[1])
    assert story.status(2) is Status.DEAD


# -- local health ------------------------------------------------------------------------------------------------------


def test_nacks_that_came_clear_our_own_link_and_missing_ones_count_against_us() -> None:
    scores = {}
    for nacking in (True, False):
        story = Story()
        story.befriend(1, 2, 3, 4)
        story.quiet(1, 2, 3, 4)
        target = _wait_for_round(story)
        late = story.pass_time(story.options.probe_timeout_ms)
        if nacking:
            for helper, request in [(h, r) for h, r in sent(late, PingRequest) if r.ttl > 0]:
                nack = story.answer_to(request, nack=True)
                story.hear(0, nack, source=helper)
        story.pass_time(story.options.probe_period_ms - story.options.probe_timeout_ms)
        assert story.status(target) is Status.SUSPECT
        scores[nacking] = story.swim.describe().health_score
    assert scores == {True: 0, False: 3}


def test_an_unhealthy_node_waits_longer() -> None:
    story = Story()
    story.befriend(1)
    story.quiet(1)
    story.swim._local.awareness.adjust(3)
    _wait_for_round(story)
    assert story.swim._prober._next_round_at - story.now >= 4 * story.options.probe_period_ms - 1


def test_answered_probes_restore_health() -> None:
    story = Story()
    story.befriend(1)
    story.swim._local.awareness.adjust(3)
    story.pass_time(30_000, answering=[1])
    assert story.swim.describe().health_score == 0


# -- what rides on pings -----------------------------------------------------------------------------------------------


def test_a_ping_to_a_suspect_carries_the_suspicion_first() -> None:
    story = Story()
    story.befriend(1, 2, 3)
    story.hear_news(2, verdict(1, Status.SUSPECT, by=2))
    effects = story.pass_time(6_000, answering=[2, 3])
    pings = [r for t, r in sent(effects, PingRequest) if t == address_of(1)]
    assert pings
    assert all(r.payload.updates[0] == verdict(1, Status.SUSPECT, by=0) for r in pings if story.status(1) is not None)


def test_one_held_for_dead_that_pings_us_is_told_so() -> None:
    story = Story()
    story.befriend(1, 2)
    story.hear_news(1, verdict(2, Status.DEAD, by=1))
    [(_, response)] = sent(story.hear(2, story.ping(2)), PingResponse)
    assert response.payload.updates[0] == verdict(2, Status.DEAD, by=0)


def test_one_that_asks_for_an_older_incarnation_of_ours_gets_the_present_one() -> None:
    story = Story()
    story.befriend(1)
    story.hear_news(1, verdict(0, Status.SUSPECT, by=1))
    story.quiet(1)
    [(_, response)] = sent(story.hear(1, story.ping(1)), PingResponse)
    assert AliveUpdate(info_of(0, claim=1)) in response.payload.updates


def test_the_dead_are_called_on_now_and_then_and_found_when_they_return() -> None:
    story = Story()
    story.befriend(1, 2)
    story.hear_news(1, verdict(2, Status.DEAD, by=1))
    story.quiet(1)
    effects = story.pass_time(3 * story.options.reconnect_period_ms, answering=[1])
    calls = [r for t, r in sent(effects, PingRequest) if t == address_of(2)]
    assert calls
    story.hear(2, story.answer_to(calls[-1], updates=(AliveUpdate(info_of(2, claim=1)),)))
    assert story.status(2) is Status.ALIVE


def test_a_remembered_death_is_told_as_a_suspicion_so_that_a_living_one_can_refute() -> None:
    story = Story()
    story.befriend(1, 2)
    story.hear_news(1, verdict(2, Status.DEAD, by=1))
    story.quiet(1)
    [(_, response)] = sent(story.hear(1, story.ping(1)), PingResponse)
    assert verdict(2, Status.SUSPECT, by=0) in response.payload.updates


def test_the_room_that_a_peer_reports_is_kept() -> None:
    story = Story()
    story.befriend(1)
    story.hear(1, story.ping(1, room=(8, 5)))
    entry = story.entry(1)
    assert entry is not None
    assert entry.peer_count == 5
    story.hear(1, replace(story.ping(1), payload=Payload()))
    assert entry.peer_count == 5, "a relayed ping says nothing about room"


def test_a_ping_from_a_stranger_is_answered_and_makes_no_link() -> None:
    story = Story()
    effects = story.hear(1, story.ping(1))
    assert len(sent(effects, PingResponse)) == 1
    assert len(sent(effects, JoinNak)) == 1
    assert story.status(1) is None


def _wait_for_round(story: Story) -> int:
    """Pass time until a round begins; the number of its target, which has not answered yet."""
    while True:
        requests = sent(story.pass_time(1), PingRequest)
        if requests:
            return int.from_bytes(requests[0][1].target_id, "big")
