"""Pings and their relaying, by the sentences of the RFC and the decision about TTL."""

from random import Random

import pytest
from msgspec.structs import replace

from gossip.core.effects import Send
from gossip.core.events import DeadlineReached, SeedsGiven
from gossip.core.member import Incarnation, Status
from gossip.core.messages import AliveUpdate, DropReason, JoinNak, Payload, PingRequest, PingResponse
from gossip.core.swim import Swim
from tests.effort import each_case
from tests.simulation.gossip_network import address_of, node_id
from tests.spec.gossip_story import Story, info_of, sent, updates_in, verdict


def test_ping_reply_repeats_ids_and_number() -> None:
    story = Story().with_peers(1)
    effects = story.receive(1, story.ping(1, seq=6253))
    [(target, response)] = sent(effects, PingResponse)
    assert target == address_of(1)
    assert (response.source_id, response.target_id) == (node_id(1), node_id(0))
    assert (response.seq, response.nack) == (6253, False)
    assert response.target_incarnation == story.us.incarnation


@pytest.mark.parametrize("ttl", [0, 1, 2, 255])
def test_ping_reply_repeats_ttl(ttl: int) -> None:
    """The requester calculates the number of hops from the TTL in the reply."""
    story = Story().with_peers(1)
    [(_, response)] = sent(story.receive(1, story.ping(1, ttl=ttl)), PingResponse)
    assert response.ttl == ttl


def test_ping_reply_has_capacity_peer_count_and_sample() -> None:
    story = Story(capacity=5).with_peers(1, 2)
    story.discover(3)
    story.drain_updates(1, 2)
    [(_, response)] = sent(story.receive(1, story.ping(1)), PingResponse)
    assert (response.payload.capacity, response.payload.peer_count) == (5, 2)
    assert info_of(2) in response.payload.sample
    assert info_of(1) not in response.payload.sample, "the sample leaves out its receiver"


def test_error_about_ping_does_not_limit_later_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()
    monkeypatch.delattr(Swim, "_receive_ping")
    with pytest.raises(AttributeError):
        story.receive(1, story.ping(1))
    story.step(SeedsGiven((address_of(1),)))
    request, *_ = [each for each in story.pass_time(1_000) if isinstance(each, Send)]
    assert (request.target, request.is_limited) == (address_of(1), False)


def test_direct_ping_for_other_id_dropped() -> None:
    story = Story().with_peers(1, 2)
    assert story.receive(1, story.ping(1, target=2, ttl=0)) == []
    assert story.receive(1, story.ping(1, target=9, ttl=0)) == []
    assert story.dropped(DropReason.NOT_THE_TARGET) == 2


def test_ttl_1_request_relayed_to_known_target() -> None:
    story = Story().with_peers(1, 2)
    request = story.ping(1, target=2, ttl=1)
    effects = story.receive(1, request)
    assert sent(effects, PingRequest) == [(address_of(2), replace(request, ttl=0, requester=address_of(1)))]


def test_ttl_1_request_for_unknown_target_dropped() -> None:
    story = Story().with_peers(1, 2)
    assert story.receive(1, story.ping(1, target=9, ttl=1)) == []


def test_ttl_2_request_for_unknown_target_relayed_to_peer() -> None:
    story = Story().with_peers(1, 2, 3)
    request = story.ping(1, target=9, ttl=2)
    effects = story.receive(1, request)
    [(target, forwarded)] = sent(effects, PingRequest)
    assert target in {address_of(2), address_of(3)}
    assert forwarded == replace(request, ttl=1, requester=address_of(1))


@each_case(("ttl", "forwarded"), [(1, 0), (2, 1), (3, 2), (5, 4), (8, 7), (9, 7), (255, 7)])
def test_relayed_ttl_decremented_and_capped(ttl: int, forwarded: int) -> None:
    story = Story().with_peers(1, 2)
    effects = story.receive(1, story.ping(1, target=2, ttl=ttl))
    assert [request.ttl for _, request in sent(effects, PingRequest)] == [forwarded]


def test_second_helper_keeps_requester_address() -> None:
    story = Story().with_peers(1, 2)
    effects = story.receive(1, story.ping(7, target=2, ttl=1, requester=address_of(7)))
    [(_, forwarded)] = sent(effects, PingRequest)
    assert forwarded.requester == address_of(7)


def test_relayed_target_replies_directly_and_by_relay() -> None:
    story = Story().with_peers(1)
    effects = story.receive(1, story.ping(7, requester=address_of(7)))
    answers = sent(effects, PingResponse)
    assert [target for target, _ in answers] == [address_of(1), address_of(7)]
    assert answers[0][1] == answers[1][1]


def test_helper_relays_reply_once() -> None:
    story = Story().with_peers(1, 2)
    request = story.ping(1, target=2, ttl=1)
    story.receive(1, request)
    answer = PingResponse(node_id(1), node_id(2), Incarnation(1, 0), request.seq, 0)
    assert sent(story.receive(2, answer), PingResponse) == [(address_of(1), answer)]
    assert story.receive(2, answer) == []


def test_helper_drops_relay_after_one_period() -> None:
    story = Story().with_peers(1, 2)
    request = story.ping(1, target=2, ttl=1)
    story.receive(1, request)
    story.pass_time(story.options.probe_period_ms, answering=[1, 2])
    answer = PingResponse(node_id(1), node_id(2), Incarnation(1, 0), request.seq, 0)
    assert story.receive(2, answer) == []


def test_helper_nacks_unresponsive_target() -> None:
    story = Story().with_peers(1, 2)
    story.receive(1, story.ping(1, target=2, ttl=1, seq=42))
    effects = story.pass_time(story.options.probe_timeout_ms, answering=[1])
    nacks = [(target, m.seq) for target, m in sent(effects, PingResponse) if m.nack]
    assert nacks == [(address_of(1), 42)]


def test_helper_with_reply_sends_no_nack() -> None:
    story = Story().with_peers(1, 2)
    request = story.ping(1, target=2, ttl=1)
    story.receive(1, request)
    story.receive(2, PingResponse(node_id(1), node_id(2), Incarnation(1, 0), request.seq, 0))
    effects = story.pass_time(story.options.probe_period_ms, answering=[1, 2])
    assert not any(m.nack for _, m in sent(effects, PingResponse))


def test_relays_bounded_and_not_repeated() -> None:
    story = Story().with_peers(1, 2)
    passed = sum(len(story.receive(1, story.ping(1, target=2, ttl=1, seq=n))) for n in range(1_000))
    assert passed == story.options.relays_limit
    assert story.receive(1, story.ping(1, target=2, ttl=1, seq=5)) == []
    assert story.dropped(DropReason.RELAY_REPEATED) == 1


# -- probe rounds ------------------------------------------------------------------------------------------------------


def test_peers_probed_once_per_pass() -> None:
    story = Story().with_peers(1, 2, 3, 4)
    peers = range(1, 5)
    story.drain_updates(*peers)
    effects = story.pass_time(8 * story.options.probe_period_ms, answering=peers)
    pinged = [request.target_id for _, request in sent(effects, PingRequest)]
    assert all(request.ttl == 0 for _, request in sent(effects, PingRequest))
    assert sorted(pinged) == sorted([node_id(n) for n in peers] * 2)


def test_helpers_requested_after_probe_timeout() -> None:
    story = Story().with_peers(1, 2, 3, 4, 5)
    story.drain_updates(1, 2, 3, 4, 5)
    target = _wait_for_round(story)
    early = story.pass_time(story.options.probe_timeout_ms - 1, answering=set(range(1, 6)) - {target})
    assert not any(request.ttl for _, request in sent(early, PingRequest))
    late = story.pass_time(1, answering=set(range(1, 6)) - {target})
    ttl = [(helper, r) for helper, r in sent(late, PingRequest) if r.ttl > 0]
    assert len(ttl) == story.options.helpers
    assert {r.target_id for _, r in ttl} == {node_id(target)}
    assert {r.ttl for _, r in ttl} == {story.options.relay_ttl}
    assert address_of(target) not in {helper for helper, _ in ttl}


def test_unresponsive_target_suspected_at_end_of_period() -> None:
    story = Story().with_peers(1, 2, 3)
    story.drain_updates(1, 2, 3)
    target = _wait_for_round(story)
    others = {1, 2, 3} - {target}
    story.pass_time(story.options.probe_period_ms - 1, answering=others)
    assert story.status(target) is Status.ALIVE
    effects = story.pass_time(story.options.gossip_period_ms + 1, answering=others)
    assert story.status(target) is Status.SUSPECT
    assert verdict(target, Status.SUSPECT, by=0) in updates_in(effects)


def test_relayed_reply_counts() -> None:
    story = Story().with_peers(1, 2)
    story.drain_updates(1, 2)
    target = _wait_for_round(story)
    other = 3 - target
    late = story.pass_time(story.options.probe_timeout_ms, answering=[other])
    [relayed] = [r for _, r in sent(late, PingRequest) if r.ttl > 0]
    story.receive(other, story.reply_to(relayed))
    story.pass_time(story.options.probe_period_ms, answering=[other])
    assert story.status(target) is Status.ALIVE


@pytest.mark.parametrize("wrong", ["number", "target", "requester"])
def test_reply_with_wrong_field_does_not_count(wrong: str) -> None:
    story = Story().with_peers(1, 2, 3)
    story.drain_updates(1, 2, 3)
    effects = story.pass_time(1)
    while not sent(effects, PingRequest):
        effects = story.pass_time(1)
    [(_, request)] = sent(effects, PingRequest)
    answer = story.reply_to(request)
    match wrong:
        case "number":
            answer = replace(answer, seq=answer.seq + 1)
        case "target":
            answer = replace(answer, target_id=node_id(9))
        case _:
            answer = replace(answer, source_id=node_id(9))
    target = int.from_bytes(request.target_id, "big")
    story.receive(target, answer)
    story.pass_time(story.options.probe_period_ms, answering={1, 2, 3} - {target})
    assert story.status(target) is Status.SUSPECT
    assert story.dropped(DropReason.UNMATCHED_RESPONSE) == 1


def test_round_trip_time_of_direct_reply_recorded() -> None:
    story = Story().with_peers(1)
    story.drain_updates(1)
    effects = story.pass_time(1)
    while not sent(effects, PingRequest):
        effects = story.pass_time(1)
    [(_, request)] = sent(effects, PingRequest)
    sent_at = story.now
    story.now += 37
    story.receive(1, story.reply_to(request))
    [member] = story.swim.describe().members
    assert member.round_trip_ms == story.now - sent_at


def test_directory_members_probed_occasionally() -> None:
    """Without these probes, a dead member outside the peers would stay alive in the directory."""
    story = Story(capacity=1).with_peers(1)
    story.discover(2)
    story.drain_updates(1, 2)
    story.pass_time(30_000, answering=[1])
    assert story.status(2) is Status.DEAD


# -- local health ------------------------------------------------------------------------------------------------------


def test_missing_nacks_lower_own_health() -> None:
    scores = {}
    for nacking in (True, False):
        story = Story().with_peers(1, 2, 3, 4)
        story.drain_updates(1, 2, 3, 4)
        target = _wait_for_round(story)
        late = story.pass_time(story.options.probe_timeout_ms)
        if nacking:
            for helper, request in [(h, r) for h, r in sent(late, PingRequest) if r.ttl > 0]:
                nack = story.reply_to(request, nack=True)
                story.receive(0, nack, source=helper)
        story.pass_time(story.options.probe_period_ms - story.options.probe_timeout_ms)
        assert story.status(target) is Status.SUSPECT
        scores[nacking] = story.swim.describe().health_score
    assert scores == {True: 0, False: 3}


def test_unhealthy_node_probes_less_often() -> None:
    story = Story().with_peers(1)
    story.drain_updates(1)
    story.swim._local.awareness.adjust(3)
    _wait_for_round(story)
    assert story.swim._prober._next_round_at - story.now >= 4 * story.options.probe_period_ms - 1


def test_successful_probes_restore_health() -> None:
    story = Story().with_peers(1)
    story.swim._local.awareness.adjust(3)
    story.pass_time(30_000, answering=[1])
    assert story.swim.describe().health_score == 0


# -- piggybacked updates -----------------------------------------------------------------------------------------------


def test_ping_to_suspect_has_suspicion_first() -> None:
    story = Story().with_peers(1, 2, 3)
    story.receive_updates(2, verdict(1, Status.SUSPECT, by=2))
    effects = story.pass_time(6_000, answering=[2, 3])
    pings = [r for t, r in sent(effects, PingRequest) if t == address_of(1)]
    assert pings
    assert all(r.payload.updates[0] == verdict(1, Status.SUSPECT, by=0) for r in pings if story.status(1) is not None)


def test_ping_of_dead_member_gets_its_verdict() -> None:
    story = Story().with_peers(1, 2)
    story.receive_updates(1, verdict(2, Status.DEAD, by=1))
    [(_, response)] = sent(story.receive(2, story.ping(2)), PingResponse)
    assert response.payload.updates[0] == verdict(2, Status.DEAD, by=0)


def test_ping_to_older_incarnation_gets_current_one() -> None:
    story = Story().with_peers(1)
    story.receive_updates(1, verdict(0, Status.SUSPECT, by=1))
    story.drain_updates(1)
    [(_, response)] = sent(story.receive(1, story.ping(1)), PingResponse)
    assert AliveUpdate(info_of(0, claim=1)) in response.payload.updates


def test_dead_members_pinged_occasionally() -> None:
    story = Story().with_peers(1, 2)
    story.receive_updates(1, verdict(2, Status.DEAD, by=1))
    story.drain_updates(1)
    effects = story.pass_time(3 * story.options.reconnect_period_ms, answering=[1])
    calls = [r for t, r in sent(effects, PingRequest) if t == address_of(2)]
    assert calls
    story.receive(2, story.reply_to(calls[-1], updates=(AliveUpdate(info_of(2, claim=1)),)))
    assert story.status(2) is Status.ALIVE


def test_known_death_sent_as_suspicion() -> None:
    """A live member can refute the suspicion."""
    story = Story().with_peers(1, 2)
    story.receive_updates(1, verdict(2, Status.DEAD, by=1))
    story.drain_updates(1)
    [(_, response)] = sent(story.receive(1, story.ping(1)), PingResponse)
    assert verdict(2, Status.SUSPECT, by=0) in response.payload.updates


def test_peer_count_of_ping_recorded() -> None:
    story = Story().with_peers(1)
    story.receive(1, story.ping(1, room=(8, 5)))
    entry = story.entry(1)
    assert entry is not None
    assert entry.peer_count == 5
    story.receive(1, replace(story.ping(1), payload=Payload()))
    assert entry.peer_count == 5, "a relayed ping does not report a peer count"


def test_ping_of_unknown_node_answered_without_link() -> None:
    story = Story()
    effects = story.receive(1, story.ping(1))
    assert len(sent(effects, PingResponse)) == 1
    assert len(sent(effects, JoinNak)) == 1
    assert story.status(1) is None


def _wait_for_round(story: Story) -> int:
    """Pass time until a round begins; return the number of its target, which has not replied yet."""
    while True:
        requests = sent(story.pass_time(1), PingRequest)
        if requests:
            return int.from_bytes(requests[0][1].target_id, "big")


@pytest.mark.parametrize(("late_ms", "next_round_at"), [(0, 1_300), (1, 1_300), (250, 1_300), (251, 2_300)])
def test_round_after_late_round_keeps_phase(late_ms: int, next_round_at: int) -> None:
    """Otherwise each late wake-up would shift all later rounds, away from the other timers of the process."""
    story = Story().with_peers(1)
    story.swim = swim = Swim(story.us, story.options, Random(1), 0, first_round_at=300)
    swim.step(DeadlineReached(), 300 + late_ms)
    assert swim._prober.round_deadline == next_round_at
