"""Joining, leaving and broadcast, by the sentences of the RFC and the decisions about capacity."""

from itertools import pairwise
from random import Random

import pytest

from gossip.core.effects import Alarm, AlarmKind, Announce, Effect, KeyOffered, OfferToken
from gossip.core.events import KeyringChanged, LeaveRequested, SeedsGiven, Unreadable
from gossip.core.keyring import Keyring
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
from gossip.core.swim import Swim
from tests.effort import each_case
from tests.simulation.gossip_network import address_of, node_id
from tests.spec.gossip_story import Story, changes, info_of, sent, updates_in, verdict

TOKEN_EXPECTED = JoinNak(DOMAIN, RefusalCode.TOKEN_EXPECTED, b"come-back-with-this")
NO_ROOM = JoinNak(DOMAIN, RefusalCode.AT_CAPACITY, receiver_generation=1)


# -- the receiver of a JoinReq -----------------------------------------------------------------------------------------


def test_join_without_token_gets_token_offer() -> None:
    story = Story()
    effects = story.receive(1, JoinReq(info_of(1)))
    assert effects == [OfferToken(address_of(1), node_id(1), 1)]
    assert story.status(1) is None


def test_join_with_token_gets_description_and_sample() -> None:
    story = Story().with_peers(1)
    effects = story.add_peers(2)
    [(target, welcome)] = sent(effects, JoinAck)
    assert target == address_of(2)
    assert welcome.description == story.us
    assert info_of(1) in welcome.sample
    assert info_of(2) not in welcome.sample
    assert story.peers() == {1, 2}
    assert changes(effects) == [(node_id(2), Status.ALIVE)]


def test_leaving_node_ignores_joins() -> None:
    story = Story().with_peers(1)
    story.step(LeaveRequested())
    assert story.receive(2, JoinReq(info_of(2), b"t"), token_valid=True) == []
    assert story.receive(2, JoinReq(info_of(2))) == []
    assert story.dropped(DropReason.LEAVING) == 2


def test_join_of_peer_refreshes_its_description() -> None:
    story = Story(capacity=1).with_peers(1)
    effects = story.receive(1, JoinReq(info_of(1, generation=2, metadata=b"new"), b"t"), token_valid=True)
    assert [message.description for _, message in sent(effects, JoinAck)] == [story.us]
    entry = story.entry(1)
    assert entry is not None
    assert entry.info == info_of(1, generation=2, metadata=b"new")
    assert story.peers() == {1}


def test_full_node_redirects_to_members_with_room() -> None:
    story = Story(capacity=2).with_peers(1, 2)
    story.receive(1, story.ping(1, room=(8, 8)))
    story.receive(2, story.ping(2, room=(8, 3)))
    effects = story.receive(3, JoinReq(info_of(3), b"t"), token_valid=True)
    redirect = JoinRedirect((address_of(2),), DOMAIN, RefusalCode.AT_CAPACITY, b"", 1)
    assert sent(effects, JoinRedirect) == [(address_of(3), redirect)]
    assert story.peers() == {1, 2}
    assert story.status(3) is None, "a refusal does not use memory"


def test_edge_split_when_all_members_are_full() -> None:
    story = Story(capacity=2).with_peers(1, 2, capacity=2)
    for number in (1, 2):
        story.receive(number, story.ping(number, room=(2, 2)))
    effects = story.receive(3, JoinReq(info_of(3, capacity=2), b"t"), token_valid=True)
    [(dropped, redirect)] = sent(effects, JoinRedirect)
    [(welcomed, welcome)] = sent(effects, JoinAck)
    assert welcomed == address_of(3)
    assert redirect == JoinRedirect((address_of(3),), DOMAIN, RefusalCode.EDGE_SPLIT, b"t", 1)
    assert dropped in {address_of(1), address_of(2)}
    assert welcome.sample[0].address == dropped, "the joiner receives its second peer"
    assert story.peers() == {3} | {n for n in (1, 2) if address_of(n) != dropped}


@pytest.mark.parametrize(("capacity", "peer_count"), [(1, 0), (2, 1), (5, 4), (5, 5)])
def test_edge_not_split_for_joiner_without_room_for_two(capacity: int, peer_count: int) -> None:
    story = Story(capacity=2).with_peers(1, 2, capacity=2)
    for number in (1, 2):
        story.receive(number, story.ping(number, room=(2, 2)))
    request = JoinReq(info_of(3, capacity=capacity), b"t", peer_count=peer_count)
    effects = story.receive(3, request, token_valid=True)
    assert sent(effects, JoinNak) == [(address_of(3), NO_ROOM)]
    assert story.peers() == {1, 2}


def test_peer_of_split_edge_joins_new_node() -> None:
    story = Story().with_peers(1)
    effects = story.receive(1, JoinRedirect((address_of(3),), DOMAIN, RefusalCode.EDGE_SPLIT, story.last_ping_of(1)))
    assert story.peers() == set()
    assert [target for target, _ in sent(effects, JoinReq)] == [address_of(3)]


def test_split_from_non_peer_ignored() -> None:
    story = Story().with_peers(1)
    assert story.receive(2, JoinRedirect((address_of(3),), DOMAIN, RefusalCode.EDGE_SPLIT)) == []
    assert story.peers() == {1}


def test_dead_member_receives_verdict_before_joining() -> None:
    story = Story().with_peers(1, 2)
    story.receive_updates(1, verdict(2, Status.DEAD, by=1))
    effects = story.receive(2, JoinReq(info_of(2), b"t"), token_valid=True)
    [(target, ping)] = sent(effects, PingRequest)
    assert target == address_of(2)
    assert ping.payload.updates[0] == verdict(2, Status.DEAD, by=0)
    assert sent(effects, JoinAck) == []
    effects = story.receive(2, JoinReq(info_of(2, claim=1), b"t"), token_valid=True)
    assert len(sent(effects, JoinAck)) == 1
    assert story.peers() == {1, 2}


def test_flood_of_joins_is_limited() -> None:
    options = SwimOptions.lan()
    story = Story(capacity=4, options=options)
    offered = sum(len(story.receive(n, JoinReq(info_of(n)))) for n in range(1, 1_000))
    assert offered == options.join_burst
    assert story.dropped(DropReason.RATE_LIMITED) == 999 - options.join_burst


# -- the joiner --------------------------------------------------------------------------------------------------------


def test_new_node_retries_join_with_offered_token() -> None:
    story = Story()
    story.step(SeedsGiven((address_of(1),)))
    assert [m.token for t, m in sent(story.pass_time(10), JoinReq) if t == address_of(1)] == [b""]
    effects = story.receive(1, TOKEN_EXPECTED)
    assert sent(effects, JoinReq) == [(address_of(1), JoinReq(story.us, b"come-back-with-this"))]
    effects = story.receive(1, JoinAck(info_of(1), (info_of(2),)))
    assert story.peers() == {1}
    assert changes(effects) == [(node_id(1), Status.ALIVE), (node_id(2), Status.ALIVE)]


def test_token_offers_per_join_are_bounded() -> None:
    story = Story()
    story.step(SeedsGiven((address_of(1),)))
    story.pass_time(10)
    answers = [len(sent(story.receive(1, TOKEN_EXPECTED), JoinReq)) for _ in range(10)]
    assert sum(answers) == 3


def test_redirect_address_tried_once_per_join() -> None:
    story = Story()
    story.step(SeedsGiven((address_of(1),)))
    story.pass_time(10)
    effects = story.receive(1, JoinRedirect((address_of(2), address_of(1)), DOMAIN, RefusalCode.AT_CAPACITY))
    assert [target for target, _ in sent(effects, JoinReq)] == [address_of(2)]
    effects = story.receive(2, JoinRedirect((address_of(1),), DOMAIN, RefusalCode.AT_CAPACITY))
    assert sent(effects, JoinReq) == []


def test_redirects_per_join_are_bounded() -> None:
    story = Story()
    story.step(SeedsGiven((address_of(1),)))
    story.pass_time(10)
    requests = 0
    for number in range(1, 50):
        effects = story.receive(number, JoinRedirect((address_of(number + 1),), DOMAIN, RefusalCode.AT_CAPACITY))
        requests += len(sent(effects, JoinReq))
    assert requests == story.options.redirects_per_join


def test_seeds_retried_with_bounded_backoff() -> None:
    story = Story()
    story.step(SeedsGiven((address_of(1),)))
    times = []
    for _ in range(600):
        effects = story.pass_time(1_000)
        if sent(effects, JoinReq):
            times.append(story.now)
            story.receive(1, NO_ROOM)
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert max(pauses) <= story.options.join_backoff_max_ms * 1.25 + 1_000
    assert min(pauses[8:]) >= story.options.join_backoff_max_ms * 0.75 - 1_000
    assert times[-1] > 540_000


def test_requests_to_unresponsive_seed_are_bounded() -> None:
    story = Story()
    story.step(SeedsGiven((address_of(1),)))
    requests = sent(story.pass_time(60_000), JoinReq)
    assert 3 * 3 <= len(requests) <= 3 * 10


def test_unresponsive_seeds_raise_one_alarm() -> None:
    story = Story()
    story.step(SeedsGiven((address_of(1), address_of(2))))
    alarms = [e for e in story.pass_time(300_000) if isinstance(e, Alarm)]
    assert [alarm.kind for alarm in alarms] == [AlarmKind.ISOLATED]
    assert "10.0.0.2:7669" in alarms[0].text


def test_node_without_seeds_and_peers_raises_one_alarm() -> None:
    story = Story().with_peers(1, 2)
    assert not [e for e in story.pass_time(60_000, answering=[1, 2]) if isinstance(e, Alarm)]
    alarms = [e for e in story.pass_time(300_000) if isinstance(e, Alarm)]
    assert [alarm.kind for alarm in alarms] == [AlarmKind.ISOLATED]
    assert "2 members that it knew" in alarms[0].text
    assert "10.0.0.2:7669" in alarms[0].text


def test_alarm_of_isolation_ends_with_first_peer() -> None:
    story = Story().with_peers(1, 2)
    story.pass_time(300_000)
    effects = story.add_peers(3)
    ends = [each for each in effects if isinstance(each, Alarm)]
    assert [(each.kind, each.over) for each in ends] == [(AlarmKind.ISOLATED, True)]


def test_node_without_any_peer_or_seed_is_not_isolated() -> None:
    assert not [e for e in Story().pass_time(300_000) if isinstance(e, Alarm)]


def test_welcome_without_request_dropped() -> None:
    story = Story()
    assert story.receive(1, JoinAck(info_of(1))) == []
    assert story.status(1) is None
    assert story.dropped(DropReason.UNSOLICITED) == 1


def test_node_below_peer_target_joins_known_members() -> None:
    story = Story().with_peers(1)
    story.discover(2, 3)
    effects = story.pass_time(1_000, answering=[1])
    assert {target for target, _ in sent(effects, JoinReq)} == {address_of(2), address_of(3)}


def test_node_with_all_members_as_peers_joins_none() -> None:
    story = Story().with_peers(1, 2)
    assert sent(story.pass_time(30_000, answering=[1, 2]), JoinReq) == []


def test_probe_of_non_peer_gets_link_rejected() -> None:
    """Links are symmetrical, so the sender must not keep a link that its target does not have."""
    story = Story(capacity=1).with_peers(1)
    ping = story.ping(2)
    rejected = JoinNak(DOMAIN, RefusalCode.LINK_REJECTED, ping.seq.to_bytes(8), 1)
    assert sent(story.receive(2, ping), JoinNak) == [(address_of(2), rejected)]


def test_link_rejected_by_peer_is_dropped() -> None:
    story = Story().with_peers(1)
    story.receive(1, JoinNak(DOMAIN, RefusalCode.LINK_REJECTED, story.last_ping_of(1)))
    assert story.peers() == set()
    assert story.status(1) is Status.ALIVE


@each_case("code", [RefusalCode.LINK_REJECTED, RefusalCode.EDGE_SPLIT])
@each_case("kind", ["none", "guessed", "of another peer"])
def test_link_end_without_number_of_ping_is_ignored(kind: str, code: RefusalCode) -> None:
    story = Story().with_peers(1, 2)
    of_another = story.last_ping_of(1, 2)
    number = {"none": b"", "guessed": bytes(8), "of another peer": of_another}[kind]
    is_split = code is RefusalCode.EDGE_SPLIT
    forged = JoinRedirect((address_of(9),), DOMAIN, code, number) if is_split else JoinNak(DOMAIN, code, number)
    assert story.receive(1, forged) == []
    assert story.peers() == {1, 2}


@pytest.mark.parametrize("code", [RefusalCode.LINK_REJECTED, RefusalCode.EDGE_SPLIT])
def test_link_end_with_end_of_join_token_is_accepted(code: RefusalCode) -> None:
    story = Story()
    story.receive(1, JoinReq(info_of(1), b"a token of 12"), token_valid=True)
    proof = b"ken of 12"[-8:]
    is_split = code is RefusalCode.EDGE_SPLIT
    story.receive(1, JoinRedirect((address_of(9),), DOMAIN, code, proof) if is_split else JoinNak(DOMAIN, code, proof))
    assert story.peers() == set()


def test_join_from_other_address_keeps_link_secret() -> None:
    story = Story()
    story.receive(1, JoinReq(info_of(1), b"the first token"), token_valid=True)
    story.receive(1, JoinReq(info_of(1), b"token of another"), token_valid=True, source=address_of(9))
    story.receive(1, JoinNak(DOMAIN, RefusalCode.LINK_REJECTED, b"token of another"[-8:]))
    assert story.peers() == {1}


def test_ping_numbers_are_not_consecutive() -> None:
    story = Story().with_peers(1)
    numbers = [ping.seq for _, ping in sent(story.pass_time(5_000, answering=[1]), PingRequest)]
    assert all(abs(one - other) > 1 for one, other in pairwise(numbers))


# -- leaving -----------------------------------------------------------------------------------------------------------


def test_departure_sent_to_peers_and_disseminated() -> None:
    story = Story().with_peers(1, 2)
    story.drain_updates(1, 2)
    effects = story.step(LeaveRequested())
    assert {target for target, _ in sent(effects, Leave)} == {address_of(1), address_of(2)}
    assert VerdictUpdate(node_id(0), story.us.incarnation, Status.LEFT, node_id(0)) in updates_in(effects)


def test_left_member_is_never_marked_dead() -> None:
    story = Story().with_peers(1, 2)
    effects = story.receive(1, Leave(info_of(1)))
    assert changes(effects) == [(node_id(1), Status.LEFT)]
    assert story.peers() == {2}
    story.receive_updates(2, verdict(1, Status.DEAD, by=2))
    assert story.status(1) is Status.LEFT


def test_left_status_accepted_only_from_its_member() -> None:
    story = Story().with_peers(1, 2)
    story.receive_updates(2, verdict(1, Status.LEFT, by=2))
    assert story.status(1) is Status.ALIVE
    story.receive_updates(2, verdict(1, Status.LEFT, by=1))
    assert story.status(1) is Status.LEFT


def test_left_member_returns_in_later_generation() -> None:
    story = Story().with_peers(1)
    story.receive(1, Leave(info_of(1)))
    effects = story.receive(1, JoinReq(info_of(1, generation=2), b"t"), token_valid=True)
    assert changes(effects) == [(node_id(1), Status.ALIVE)]
    assert story.peers() == {1}


# -- broadcast ---------------------------------------------------------------------------------------------------------


def test_presence_announced_at_start_and_periodically() -> None:
    story = Story()
    effects = story.pass_time(0)
    assert Announce(Broadcast(story.us)) in effects
    count = sum(isinstance(e, Announce) for e in story.pass_time(60_000))
    assert 10 <= count <= 30


def test_broadcast_source_contacted_but_not_admitted() -> None:
    story = Story()
    effects = story.receive(1, Broadcast(info_of(1)))
    effects += story.pass_time(10)
    assert [target for target, _ in sent(effects, JoinReq)] == [address_of(1)]
    assert story.status(1) is None


def test_broadcast_of_known_member_sends_no_join() -> None:
    story = Story().with_peers(1)
    story.receive(1, Broadcast(info_of(1)))
    story.receive(0, Broadcast(story.us))
    assert sent(story.pass_time(100), JoinReq) == []


def test_broadcasts_bounded_and_keep_given_seeds() -> None:
    story = Story()
    story.step(SeedsGiven((address_of(5_000),)))
    for number in range(1, 2_000):
        story.receive(number, Broadcast(info_of(number)))
    assert story.swim.describe().seed_count == story.options.seeds_limit
    story.step(SeedsGiven((address_of(5_001),)))
    assert address_of(5_000) in story.swim._joiner._seeds
    assert address_of(5_001) in story.swim._joiner._seeds
    assert story.swim.describe().joins_in_flight <= story.options.joins_in_flight


def test_update_about_member_adds_it_to_directory() -> None:
    story = Story().with_peers(1)
    story.receive_updates(1, AliveUpdate(info_of(2)))
    assert story.status(2) is Status.ALIVE
    assert story.peers() == {1}


def test_join_reply_of_former_generation_dropped() -> None:
    story = Story(generation=2).with_peers(3)
    story.step(SeedsGiven((address_of(1),)))
    story.pass_time(200, answering=(3,))
    for recorded in (
        JoinAck(info_of(1), clock=40, receiver_generation=1),
        JoinNak(DOMAIN, RefusalCode.TOKEN_EXPECTED, b"an old token", receiver_generation=1),
        JoinRedirect((address_of(5),), DOMAIN, RefusalCode.AT_CAPACITY, receiver_generation=1),
    ):
        assert story.receive(1, recorded) == []
    story.receive(3, JoinNak(DOMAIN, RefusalCode.LINK_REJECTED, receiver_generation=1))
    story.receive(3, JoinRedirect((address_of(5),), DOMAIN, RefusalCode.EDGE_SPLIT, receiver_generation=1))
    assert story.dropped(DropReason.FORMER_LIFE) == 5
    assert story.peers() == {3}
    assert story.receive(1, JoinAck(info_of(1), receiver_generation=2))
    assert story.peers() == {1, 3}


# -- unreadable gossip -------------------------------------------------------------------------------------------------


def key_alarms(effects: list[Effect]) -> list[Alarm]:
    return [each for each in effects if isinstance(each, Alarm) and each.kind is AlarmKind.KEY_RETIRED]


def test_node_without_peers_joins_via_unreadable_gossip() -> None:
    """The node has received gossip of this farm under an unknown key.

    The reply to its join shows whether its own key is retired.
    """
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


def test_node_with_peer_ignores_unreadable_gossip() -> None:
    story = Story().with_peers(1)
    effects = [each for _ in range(9) for each in story.step(Unreadable(address_of(2)))]
    assert key_alarms(effects) == []
    assert sent([*effects, *story.pass_time(1_000)], JoinReq) == []


def refused(story: Story, number: int) -> list[Alarm]:
    """Refuse the key of node 0 in reply to its next JoinReq to this member; return the alarms."""
    effects = story.step(SeedsGiven((address_of(number),)))
    for _ in range(100):
        if address_of(number) in {target for target, _ in sent(effects, JoinReq)}:
            return key_alarms(story.receive(number, JoinNak(DOMAIN, RefusalCode.KEY_RETIRED, receiver_generation=1)))
        effects = story.pass_time(1_000, answering=tuple(story.peers()))
    raise AssertionError("no JoinReq within 100 s")


def test_refused_key_is_reported_despite_peer_with_it() -> None:
    """The peer may have the same old key, so it does not prove that the key is valid."""
    story = Story()
    [alarm] = refused(story, 1)
    assert not alarm.over
    story.with_peers(2)
    assert [each for _ in range(3) for each in refused(story, 1)] == []
    assert key_alarms(story.pass_time(119_000, answering=(2,))) == []
    [over] = key_alarms(story.pass_time(2_000, answering=(2,)))
    assert over.over


def test_member_with_peer_reports_third_refusal_of_key() -> None:
    story = Story().with_peers(2)
    assert [len(refused(story, 1)) for _ in range(4)] == [0, 0, 1, 0]


def test_new_key_ends_alarm_of_refused_key() -> None:
    """A member may send the present keys to this node."""
    story, keys = Story(), Keyring.of(bytes(32))
    story.swim = Swim(story.us, story.options, Random(1), 0, keys=keys)
    assert [each.over for each in refused(story, 1)] == [False]
    changed = KeyringChanged(keys.install(bytes([1]) * 32))
    assert [each.over for each in key_alarms(story.step(changed))] == [True]
    assert [each.over for each in refused(story, 1)] == [False]


def test_gossip_under_retired_key_ignored() -> None:
    story = Story()
    effects = [each for _ in range(9) for each in story.step(Unreadable(address_of(1), is_retired=True))]
    assert key_alarms(effects) == []


def test_forged_unreadable_gossip_causes_four_joins_at_most() -> None:
    story = Story()
    for number in range(1, 40):
        for _ in range(4):
            story.step(Unreadable(address_of(number)))
    requests = sent(story.pass_time(10_000), JoinReq)
    assert len({target for target, _ in requests}) <= 4


def unreadable(story: Story, number: int, count: int = 3) -> list[Effect]:
    """Receive datagrams of one sender, ten seconds apart; return all effects."""
    effects: list[Effect] = []
    for _ in range(count):
        effects += story.step(Unreadable(address_of(number)))
        effects += story.pass_time(10_000)
    return effects


def test_unreadable_datagram_causes_one_join_at_most() -> None:
    story = Story()
    for count in (3, 1, 1):
        assert len(sent(unreadable(story, 1, count), JoinReq)) == 1
    assert sent(story.pass_time(600_000), JoinReq) == []


def test_unreadable_sender_after_forged_ones_gets_join() -> None:
    story = Story()
    for number in range(1, 5):
        unreadable(story, number)
    requests = sent(unreadable(story, 5), JoinReq)
    assert {target for target, _ in requests} == {address_of(5)}
    effects = story.step(Unreadable(address_of(5)))
    effects += story.pass_time(100)
    refusal = JoinNak(DOMAIN, RefusalCode.KEY_RETIRED, b"the new key", receiver_generation=1)
    assert [each for each in story.receive(5, refusal) if isinstance(each, KeyOffered)]


def test_unreadable_sender_replaces_expired_ones() -> None:
    story = Story()
    for number in range(1, 5):
        story.step(Unreadable(address_of(number)))
    story.pass_time(120_000)
    assert sent(unreadable(story, 5), JoinReq)


def test_unreadable_senders_leave_room_for_seeds() -> None:
    story = Story()
    story.step(SeedsGiven((address_of(9),)))
    targets = {target for target, _ in sent([*forged_from_many(story), *story.pass_time(2_000)], JoinReq)}
    assert address_of(9) in targets


def forged_from_many(story: Story) -> list[Effect]:
    return [
        effect for number in range(20, 60) for _ in range(3) for effect in story.step(Unreadable(address_of(number)))
    ]
