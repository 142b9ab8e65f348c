"""Joining, leaving and broadcast, sentence by sentence of the RFC and of the decisions about capacity."""

from itertools import pairwise

import pytest

from gossip.core.effects import Alarm, AlarmKind, Announce, Effect, KeyOffered, OfferToken
from gossip.core.events import LeaveRequested, SeedsGiven, Unreadable
from gossip.core.member import Status
from gossip.core.messages import (
    DOMAIN,
    AliveUpdate,
    Broadcast,
    DropReason,
    JoinAck,
    JoinNak,
    JoinRedirect,
    JoinReq,
    Leave,
    PingRequest,
    RefusalCode,
    VerdictUpdate,
)
from gossip.core.options import SwimOptions
from tests.simulation.gossip_network import address_of, node_id
from tests.spec.gossip_story import Story, changes, info_of, sent, told, verdict

TOKEN_EXPECTED = JoinNak(DOMAIN, RefusalCode.TOKEN_EXPECTED, b"come-back-with-this")
NO_ROOM = JoinNak(DOMAIN, RefusalCode.AT_CAPACITY, receiver_generation=1)


# -- the receiver of a JoinReq ---------------------------------------------------------------------------------------


def test_a_request_without_credentials_is_rejected_with_a_hint_for_a_token() -> None:
    story = Story()
    effects = story.hear(1, JoinReq(info_of(1)))
    assert effects == [OfferToken(address_of(1), node_id(1), 1)]
    assert story.status(1) is None


def test_a_request_with_a_valid_token_is_accepted_with_our_description_and_a_sample() -> None:
    story = Story()
    story.befriend(1)
    effects = story.befriend(2)
    [(target, welcome)] = sent(effects, JoinAck)
    assert target == address_of(2)
    assert welcome.description == story.us
    assert info_of(1) in welcome.sample
    assert info_of(2) not in welcome.sample
    assert story.peers() == {1, 2}
    assert changes(effects) == [(node_id(2), Status.ALIVE)]


def test_a_node_that_is_leaving_ignores_join_requests() -> None:
    story = Story()
    story.befriend(1)
    story.step(LeaveRequested())
    assert story.hear(2, JoinReq(info_of(2), b"t"), token_valid=True) == []
    assert story.hear(2, JoinReq(info_of(2))) == []
    assert story.dropped(DropReason.LEAVING) == 2


def test_a_request_from_a_peer_refreshes_it_and_is_welcomed_again() -> None:
    story = Story(capacity=1)
    story.befriend(1)
    effects = story.hear(1, JoinReq(info_of(1, generation=2, metadata=b"new"), b"t"), token_valid=True)
    assert [message.description for _, message in sent(effects, JoinAck)] == [story.us]
    entry = story.entry(1)
    assert entry is not None
    assert entry.info == info_of(1, generation=2, metadata=b"new")
    assert story.peers() == {1}


def test_at_capacity_a_joiner_is_redirected_to_members_with_room() -> None:
    story = Story(capacity=2)
    story.befriend(1, 2)
    story.hear(1, story.ping(1, room=(8, 8)))
    story.hear(2, story.ping(2, room=(8, 3)))
    effects = story.hear(3, JoinReq(info_of(3), b"t"), token_valid=True)
    redirect = JoinRedirect((address_of(2),), DOMAIN, RefusalCode.AT_CAPACITY, b"", 1)
    assert sent(effects, JoinRedirect) == [(address_of(3), redirect)]
    assert story.peers() == {1, 2}
    assert story.status(3) is None, "refusing costs no memory"


def test_when_no_node_has_room_an_edge_is_split_so_that_the_joiner_is_placed() -> None:
    story = Story(capacity=2)
    story.befriend(1, 2, capacity=2)
    for number in (1, 2):
        story.hear(number, story.ping(number, room=(2, 2)))
    effects = story.hear(3, JoinReq(info_of(3, capacity=2), b"t"), token_valid=True)
    [(given_up, redirect)] = sent(effects, JoinRedirect)
    [(welcomed, welcome)] = sent(effects, JoinAck)
    assert welcomed == address_of(3)
    assert redirect == JoinRedirect((address_of(3),), DOMAIN, RefusalCode.EDGE_SPLIT, b"t", 1)
    assert given_up in {address_of(1), address_of(2)}
    assert welcome.sample[0].address == given_up, "the joiner learns of its second neighbor"
    assert story.peers() == {3} | {n for n in (1, 2) if address_of(n) != given_up}


@pytest.mark.parametrize(("capacity", "peer_count"), [(1, 0), (2, 1), (5, 4), (5, 5)])
def test_an_edge_is_not_split_for_a_joiner_that_could_not_take_both_ends(capacity: int, peer_count: int) -> None:
    story = Story(capacity=2)
    story.befriend(1, 2, capacity=2)
    for number in (1, 2):
        story.hear(number, story.ping(number, room=(2, 2)))
    request = JoinReq(info_of(3, capacity=capacity), b"t", peer_count=peer_count)
    effects = story.hear(3, request, token_valid=True)
    assert sent(effects, JoinNak) == [(address_of(3), NO_ROOM)]
    assert story.peers() == {1, 2}


def test_a_peer_told_of_a_split_goes_to_the_newcomer() -> None:
    story = Story()
    story.befriend(1)
    effects = story.hear(1, JoinRedirect((address_of(3),), DOMAIN, RefusalCode.EDGE_SPLIT, story.pinged(1)))
    assert story.peers() == set()
    assert [target for target, _ in sent(effects, JoinReq)] == [address_of(3)]


def test_a_split_told_by_a_node_that_is_no_peer_changes_nothing() -> None:
    story = Story()
    story.befriend(1)
    assert story.hear(2, JoinRedirect((address_of(3),), DOMAIN, RefusalCode.EDGE_SPLIT)) == []
    assert story.peers() == {1}


def test_a_member_held_for_dead_is_told_so_before_it_may_join() -> None:
    story = Story()
    story.befriend(1, 2)
    story.hear_news(1, verdict(2, Status.DEAD, by=1))
    effects = story.hear(2, JoinReq(info_of(2), b"t"), token_valid=True)
    [(target, ping)] = sent(effects, PingRequest)
    assert target == address_of(2)
    assert ping.payload.updates[0] == verdict(2, Status.DEAD, by=0)
    assert sent(effects, JoinAck) == []
    effects = story.hear(2, JoinReq(info_of(2, claim=1), b"t"), token_valid=True)
    assert len(sent(effects, JoinAck)) == 1
    assert story.peers() == {1, 2}


def test_a_flood_of_joins_is_limited() -> None:
    options = SwimOptions.lan()
    story = Story(capacity=4, options=options)
    offered = sum(len(story.hear(n, JoinReq(info_of(n)))) for n in range(1, 1_000))
    assert offered == options.join_burst
    assert story.dropped(DropReason.RATE_LIMITED) == 999 - options.join_burst


# -- the joiner --------------------------------------------------------------------------------------------------------


def test_a_new_node_asks_a_seed_and_comes_back_with_the_token_of_the_refusal() -> None:
    story = Story()
    story.step(SeedsGiven((address_of(1),)))
    assert [m.token for t, m in sent(story.pass_time(10), JoinReq) if t == address_of(1)] == [b""]
    effects = story.hear(1, TOKEN_EXPECTED)
    assert sent(effects, JoinReq) == [(address_of(1), JoinReq(story.us, b"come-back-with-this"))]
    effects = story.hear(1, JoinAck(info_of(1), (info_of(2),)))
    assert story.peers() == {1}
    assert changes(effects) == [(node_id(1), Status.ALIVE), (node_id(2), Status.ALIVE)]


def test_tokens_are_not_followed_for_ever() -> None:
    story = Story()
    story.step(SeedsGiven((address_of(1),)))
    story.pass_time(10)
    answers = [len(sent(story.hear(1, TOKEN_EXPECTED), JoinReq)) for _ in range(10)]
    assert sum(answers) == 3


def test_a_redirect_is_followed_and_an_address_is_not_tried_twice_in_one_join() -> None:
    story = Story()
    story.step(SeedsGiven((address_of(1),)))
    story.pass_time(10)
    effects = story.hear(1, JoinRedirect((address_of(2), address_of(1)), DOMAIN, RefusalCode.AT_CAPACITY))
    assert [target for target, _ in sent(effects, JoinReq)] == [address_of(2)]
    effects = story.hear(2, JoinRedirect((address_of(1),), DOMAIN, RefusalCode.AT_CAPACITY))
    assert sent(effects, JoinReq) == []


def test_redirects_per_join_are_bounded() -> None:
    story = Story()
    story.step(SeedsGiven((address_of(1),)))
    story.pass_time(10)
    asked = 0
    for number in range(1, 50):
        effects = story.hear(number, JoinRedirect((address_of(number + 1),), DOMAIN, RefusalCode.AT_CAPACITY))
        asked += len(sent(effects, JoinReq))
    assert asked == story.options.redirects_per_join


def test_other_refusals_lead_to_the_next_try_later_and_seeds_are_retried_for_ever() -> None:
    story = Story()
    story.step(SeedsGiven((address_of(1),)))
    times = []
    for _ in range(600):
        effects = story.pass_time(1_000)
        if sent(effects, JoinReq):
            times.append(story.now)
            story.hear(1, NO_ROOM)
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert max(pauses) <= story.options.join_backoff_max_ms * 1.25 + 1_000
    assert min(pauses[8:]) >= story.options.join_backoff_max_ms * 0.75 - 1_000
    assert times[-1] > 540_000


def test_a_silent_seed_is_asked_a_bounded_number_of_times_per_join() -> None:
    story = Story()
    story.step(SeedsGiven((address_of(1),)))
    requests = sent(story.pass_time(60_000), JoinReq)
    assert 3 * 3 <= len(requests) <= 3 * 10


def test_when_all_seeds_are_silent_one_alarm_says_so() -> None:
    story = Story()
    story.step(SeedsGiven((address_of(1), address_of(2))))
    alarms = [e for e in story.pass_time(300_000) if isinstance(e, Alarm)]
    assert [alarm.kind for alarm in alarms] == [AlarmKind.ISOLATED]
    assert "10.0.0.2:7669" in alarms[0].text


def test_node_without_seeds_that_loses_all_peers_raises_one_alarm() -> None:
    story = Story()
    story.befriend(1, 2)
    assert not [e for e in story.pass_time(60_000, answering=[1, 2]) if isinstance(e, Alarm)]
    alarms = [e for e in story.pass_time(300_000) if isinstance(e, Alarm)]
    assert [alarm.kind for alarm in alarms] == [AlarmKind.ISOLATED]
    assert "2 members that it knew" in alarms[0].text
    assert "10.0.0.2:7669" in alarms[0].text


def test_node_that_never_had_a_peer_or_seed_is_not_isolated() -> None:
    assert not [e for e in Story().pass_time(300_000) if isinstance(e, Alarm)]


def test_a_welcome_without_a_request_changes_nothing() -> None:
    story = Story()
    assert story.hear(1, JoinAck(info_of(1))) == []
    assert story.status(1) is None
    assert story.dropped(DropReason.UNSOLICITED) == 1


def test_a_node_short_of_peers_joins_members_of_its_directory() -> None:
    story = Story()
    story.befriend(1)
    story.hear_of(2, 3)
    effects = story.pass_time(1_000, answering=[1])
    assert {target for target, _ in sent(effects, JoinReq)} == {address_of(2), address_of(3)}


def test_a_node_with_as_many_peers_as_members_asks_no_node() -> None:
    story = Story()
    story.befriend(1, 2)
    assert sent(story.pass_time(30_000, answering=[1, 2]), JoinReq) == []


def test_a_node_that_probes_us_as_its_peer_and_is_none_is_told_so_because_links_are_symmetrical() -> None:
    story = Story(capacity=1)
    story.befriend(1)
    ping = story.ping(2)
    rejected = JoinNak(DOMAIN, RefusalCode.LINK_REJECTED, ping.seq.to_bytes(8), 1)
    assert sent(story.hear(2, ping), JoinNak) == [(address_of(2), rejected)]


def test_told_that_a_peer_does_not_know_the_link_a_node_gives_it_up() -> None:
    story = Story()
    story.befriend(1)
    story.hear(1, JoinNak(DOMAIN, RefusalCode.LINK_REJECTED, story.pinged(1)))
    assert story.peers() == set()
    assert story.status(1) is Status.ALIVE


@pytest.mark.parametrize("code", [RefusalCode.LINK_REJECTED, RefusalCode.EDGE_SPLIT])
@pytest.mark.parametrize("kind", ["none", "guessed", "of another peer"])
def test_end_of_a_link_without_a_ping_of_it_is_forged(kind: str, code: RefusalCode) -> None:
    story = Story()
    story.befriend(1, 2)
    of_another = story.pinged(1, 2)
    number = {"none": b"", "guessed": bytes(8), "of another peer": of_another}[kind]
    is_split = code is RefusalCode.EDGE_SPLIT
    forged = JoinRedirect((address_of(9),), DOMAIN, code, number) if is_split else JoinNak(DOMAIN, code, number)
    assert story.hear(1, forged) == []
    assert story.peers() == {1, 2}


@pytest.mark.parametrize("code", [RefusalCode.LINK_REJECTED, RefusalCode.EDGE_SPLIT])
def test_end_of_a_link_is_proved_by_the_token_that_began_it(code: RefusalCode) -> None:
    story = Story()
    story.hear(1, JoinReq(info_of(1), b"a token of 12"), token_valid=True)
    proof = b"ken of 12"[-8:]
    is_split = code is RefusalCode.EDGE_SPLIT
    story.hear(1, JoinRedirect((address_of(9),), DOMAIN, code, proof) if is_split else JoinNak(DOMAIN, code, proof))
    assert story.peers() == set()


def test_join_from_another_address_does_not_change_the_secret_of_a_link() -> None:
    story = Story()
    story.hear(1, JoinReq(info_of(1), b"the first token"), token_valid=True)
    story.hear(1, JoinReq(info_of(1), b"token of another"), token_valid=True, source=address_of(9))
    story.hear(1, JoinNak(DOMAIN, RefusalCode.LINK_REJECTED, b"token of another"[-8:]))
    assert story.peers() == {1}


def test_numbers_of_pings_do_not_follow_one_another() -> None:
    story = Story()
    story.befriend(1)
    numbers = [ping.seq for _, ping in sent(story.pass_time(5_000, answering=[1]), PingRequest)]
    assert all(abs(one - other) > 1 for one, other in pairwise(numbers))


# -- leaving -----------------------------------------------------------------------------------------------------------


def test_leaving_is_told_to_all_peers_at_once_and_disseminated() -> None:
    story = Story()
    story.befriend(1, 2)
    story.quiet(1, 2)
    effects = story.step(LeaveRequested())
    assert {target for target, _ in sent(effects, Leave)} == {address_of(1), address_of(2)}
    assert VerdictUpdate(node_id(0), story.us.incarnation, Status.LEFT, node_id(0)) in told(effects)


def test_one_that_leaves_is_gone_at_once_and_is_never_called_dead() -> None:
    story = Story()
    story.befriend(1, 2)
    effects = story.hear(1, Leave(info_of(1)))
    assert changes(effects) == [(node_id(1), Status.LEFT)]
    assert story.peers() == {2}
    story.hear_news(2, verdict(1, Status.DEAD, by=2))
    assert story.status(1) is Status.LEFT


def test_left_is_believed_only_in_the_members_own_name() -> None:
    story = Story()
    story.befriend(1, 2)
    story.hear_news(2, verdict(1, Status.LEFT, by=2))
    assert story.status(1) is Status.ALIVE
    story.hear_news(2, verdict(1, Status.LEFT, by=1))
    assert story.status(1) is Status.LEFT


def test_one_that_left_comes_back_in_a_later_life() -> None:
    story = Story()
    story.befriend(1)
    story.hear(1, Leave(info_of(1)))
    effects = story.hear(1, JoinReq(info_of(1, generation=2), b"t"), token_valid=True)
    assert changes(effects) == [(node_id(1), Status.ALIVE)]
    assert story.peers() == {1}


# -- broadcast ---------------------------------------------------------------------------------------------------------


def test_presence_is_announced_at_the_start_and_then_slowly() -> None:
    story = Story()
    effects = story.pass_time(0)
    assert Announce(Broadcast(story.us)) in effects
    count = sum(isinstance(e, Announce) for e in story.pass_time(60_000))
    assert 10 <= count <= 30


def test_a_broadcast_is_only_presence_its_source_is_contacted_directly_and_not_admitted() -> None:
    story = Story()
    effects = story.hear(1, Broadcast(info_of(1)))
    effects += story.pass_time(10)
    assert [target for target, _ in sent(effects, JoinReq)] == [address_of(1)]
    assert story.status(1) is None


def test_a_broadcast_of_a_known_member_or_of_ourselves_asks_for_nothing() -> None:
    story = Story()
    story.befriend(1)
    story.hear(1, Broadcast(info_of(1)))
    story.hear(0, Broadcast(story.us))
    assert sent(story.pass_time(100), JoinReq) == []


def test_broadcasts_cannot_fill_memory_nor_displace_given_seeds() -> None:
    story = Story()
    story.step(SeedsGiven((address_of(5_000),)))
    for number in range(1, 2_000):
        story.hear(number, Broadcast(info_of(number)))
    assert story.swim.describe().seed_count == story.options.seeds_limit
    story.step(SeedsGiven((address_of(5_001),)))
    assert address_of(5_000) in story.swim._joiner._seeds
    assert address_of(5_001) in story.swim._joiner._seeds
    assert story.swim.describe().joins_in_flight <= story.options.joins_in_flight


def test_hearing_of_a_member_by_news_puts_it_into_the_directory_and_not_among_the_peers() -> None:
    story = Story()
    story.befriend(1)
    story.hear_news(1, AliveUpdate(info_of(2)))
    assert story.status(2) is Status.ALIVE
    assert story.peers() == {1}


def test_what_answered_a_join_of_a_former_life_changes_nothing_in_this_one() -> None:
    story = Story(generation=2)
    story.befriend(3)
    story.step(SeedsGiven((address_of(1),)))
    story.pass_time(200, answering=(3,))
    for recorded in (
        JoinAck(info_of(1), clock=40, receiver_generation=1),
        JoinNak(DOMAIN, RefusalCode.TOKEN_EXPECTED, b"an old token", receiver_generation=1),
        JoinRedirect((address_of(5),), DOMAIN, RefusalCode.AT_CAPACITY, receiver_generation=1),
    ):
        assert story.hear(1, recorded) == []
    story.hear(3, JoinNak(DOMAIN, RefusalCode.LINK_REJECTED, receiver_generation=1))
    story.hear(3, JoinRedirect((address_of(5),), DOMAIN, RefusalCode.EDGE_SPLIT, receiver_generation=1))
    assert story.dropped(DropReason.FORMER_LIFE) == 5
    assert story.peers() == {3}
    assert story.hear(1, JoinAck(info_of(1), receiver_generation=2))
    assert story.peers() == {1, 3}


# -- a key that is not the farm's --------------------------------------------------------------------------------------


def key_alarms(effects: list[Effect]) -> list[Alarm]:
    return [each for each in effects if isinstance(each, Alarm) and each.kind is AlarmKind.KEY_RETIRED]


def test_a_node_without_peers_asks_the_sender_of_unreadable_gossip() -> None:
    """Given gossip of this farm under an unknown key, then its sender is asked to join, which tells a retired key."""
    story = Story()
    for _ in range(3):
        story.step(Unreadable(address_of(1)))
    requests = sent(story.pass_time(1_000), JoinReq)
    assert {target for target, _ in requests} == {address_of(1)}


def test_unreadable_gossip_raises_one_alarm_until_it_ends() -> None:
    story = Story()
    effects = [each for _ in range(9) for each in story.step(Unreadable(address_of(1)))]
    [alarm] = key_alarms(effects)
    assert f"{address_of(1).host}:{address_of(1).port}" in alarm.text
    [over] = key_alarms(story.pass_time(300_000))
    assert over.over


def test_a_node_with_a_peer_takes_unreadable_gossip_for_the_senders_fault() -> None:
    story = Story()
    story.befriend(1)
    effects = [each for _ in range(9) for each in story.step(Unreadable(address_of(2)))]
    assert key_alarms(effects) == []
    assert sent([*effects, *story.pass_time(1_000)], JoinReq) == []


def test_gossip_under_a_retired_key_is_the_senders_fault() -> None:
    story = Story()
    effects = [each for _ in range(9) for each in story.step(Unreadable(address_of(1), is_retired=True))]
    assert key_alarms(effects) == []


def test_forged_unreadable_gossip_fills_four_places() -> None:
    story = Story()
    for number in range(1, 40):
        for _ in range(4):
            story.step(Unreadable(address_of(number)))
    requests = sent(story.pass_time(10_000), JoinReq)
    assert len({target for target, _ in requests}) <= 4


def unreadable(story: Story, number: int, count: int = 3) -> list[Effect]:
    """Receive datagrams of one sender, ten seconds apart; everything that follows."""
    effects: list[Effect] = []
    for _ in range(count):
        effects += story.step(Unreadable(address_of(number)))
        effects += story.pass_time(10_000)
    return effects


def test_unreadable_datagram_causes_one_joinreq_at_most() -> None:
    story = Story()
    for count in (3, 1, 1):
        assert len(sent(unreadable(story, 1, count), JoinReq)) == 1
    assert sent(story.pass_time(600_000), JoinReq) == []


def test_unreadable_sender_after_four_forged_ones_is_asked() -> None:
    story = Story()
    for number in range(1, 5):
        unreadable(story, number)
    requests = sent(unreadable(story, 5), JoinReq)
    assert {target for target, _ in requests} == {address_of(5)}
    effects = story.step(Unreadable(address_of(5)))
    effects += story.pass_time(100)
    refusal = JoinNak(DOMAIN, RefusalCode.KEY_RETIRED, b"the new key", receiver_generation=1)
    assert [each for each in story.hear(5, refusal) if isinstance(each, KeyOffered)]


def test_unreadable_sender_replaces_those_of_long_ago() -> None:
    story = Story()
    for number in range(1, 5):
        story.step(Unreadable(address_of(number)))
    story.pass_time(120_000)
    assert sent(unreadable(story, 5), JoinReq)


def test_unreadable_senders_leave_room_for_the_seeds() -> None:
    story = Story()
    story.step(SeedsGiven((address_of(9),)))
    targets = {target for target, _ in sent([*forged_from_many(story), *story.pass_time(2_000)], JoinReq)}
    assert address_of(9) in targets


def forged_from_many(story: Story) -> list[Effect]:
    return [
        effect for number in range(20, 60) for _ in range(3) for effect in story.step(Unreadable(address_of(number)))
    ]
