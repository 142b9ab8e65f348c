"""Broadcasts and queries of applications: told once, in bounded memory, and nothing old for new."""

from dataclasses import replace

import pytest

from gossip.core.effects import Effect, QueryAnswered, QueryEnded, QueryReceived, UserEventReceived
from gossip.core.events import AnswerGiven, QueryRequested, Received, SeedsGiven, UserEventRequested
from gossip.core.keyring import CLOCK_LIMIT, HEAD_START, TICKS_PER_MS
from gossip.core.keyring_exchange import KEYS_QUERY
from gossip.core.messages import (
    DropReason,
    JoinAck,
    JoinReq,
    Payload,
    PingRequest,
    PingResponse,
    Query,
    QueryReply,
    UserEvent,
    UserMessage,
    UserMessageId,
)
from gossip.core.options import SwimOptions
from gossip.core.queries import REPLIES_BURST, UNPROVED_BURST
from gossip.simulation.network import GossipNetwork, address_of, node_id
from tests.spec.gossip_story import Story, info_of, sent


def word(time: int, by: int = 1, body: bytes = b"", generation: int = 1) -> UserEvent:
    """Something that node `by` says."""
    return UserEvent(UserMessageId(time, node_id(by), generation), "word", body)


def question(time: int, by: int = 1, timeout_ms: int = 1_000) -> Query:
    """Something that node `by` asks."""
    return Query(UserMessageId(time, node_id(by), 1), "question", b"?", address_of(by), timeout_ms)


def tell(story: Story, *user_messages: UserMessage, by: int = 1) -> list[Effect]:
    """Node `by` pings us with user messages on the ping."""
    ping = story.ping(by)
    payload = Payload(capacity=8, peer_count=1, user_messages=user_messages)
    return story.hear(
        by,
        PingRequest(
            ping.source_id,
            ping.source_incarnation,
            ping.target_id,
            ping.target_incarnation,
            ping.seq,
            0,
            payload=payload,
        ),
    )


def heard(effects: list[Effect]) -> list[UserMessage]:
    """What reached our application."""
    found: list[UserMessage] = [each.user_event for each in effects if isinstance(each, UserEventReceived)]
    return found + [each.query for each in effects if isinstance(each, QueryReceived)]


def user_messages_in(effects: list[Effect]) -> list[UserMessage]:
    """The user messages on the pings and answers among the effects."""
    payloads = [each.payload for _, each in sent(effects, PingRequest)]
    payloads += [each.payload for _, each in sent(effects, PingResponse)]
    return [user_message for payload in payloads for user_message in payload.user_messages]


def test_a_user_event_is_delivered_once_however_often_it_comes_and_is_gossiped_further() -> None:
    story = Story()
    story.befriend(1, 2, 3)
    effects = tell(story, word(1))
    assert heard(effects) == [word(1)]
    assert heard(tell(story, word(1)) + tell(story, word(1), by=2)) == []
    told = user_messages_in(effects + story.pass_time(5_000))
    assert len(told) >= 2
    assert set(told) == {word(1)}


def test_a_user_event_is_sent_lambda_log_n_times_and_then_no_more() -> None:
    story = Story()
    story.befriend(1, 2, 3)
    story.quiet(1, 2, 3)
    story.step(UserEventRequested("word", b""))
    told = user_messages_in(story.pass_time(30_000, answering=(1, 2, 3)))
    assert len(told) == story.options.user_message_retransmit_multiplier  # ceil(log10(4 + 1)) is 1


def test_membership_comes_first_and_a_user_event_that_does_not_fit_waits() -> None:
    story = Story(options=SwimOptions(payload_budget_bytes=600))
    story.befriend(1)
    story.quiet(1)
    for name in ("one", "two"):
        story.step(UserEventRequested(name, bytes(500)))
    names = set()
    for _ in range(10):
        told = [each.payload.user_messages for _, each in sent(story.pass_time(200, answering=(1,)), PingRequest)]
        assert all(len(user_messages) <= 1 for user_messages in told)
        names |= {user_message.name for user_messages in told for user_message in user_messages}
    assert names == {"one", "two"}


def test_a_node_that_has_just_started_takes_no_user_event_before_a_join_told_it_the_clock() -> None:
    story = Story()
    recorded = tell(story, word(7))
    assert heard(recorded) == []
    assert story.dropped(DropReason.USER_MESSAGE_BEFORE_JOIN) == 1
    story.hear(1, JoinReq(info_of(1), b"t", clock=7), token_valid=True)
    assert heard(tell(story, word(7))) == []
    assert heard(tell(story, word(8))) == [word(8)]


def test_a_joiner_learns_the_clock_from_its_welcome_and_hears_what_is_said_later() -> None:
    story = Story()
    story.swim.step(Received(address_of(1), JoinAck(info_of(1), clock=99)), 0)  # not asked for
    assert heard(tell(story, word(100))) == []
    story.step(SeedsGiven((address_of(1),)))
    story.pass_time(1)
    story.hear(1, JoinAck(info_of(1), clock=40))
    assert heard(tell(story, word(40), word(41))) == [word(41)]


def test_our_own_user_events_come_after_all_that_we_received() -> None:
    story = Story()
    story.befriend(1)
    tell(story, word(500))
    story.step(UserEventRequested("mine", b""))
    told = user_messages_in(story.pass_time(1_000))
    assert UserMessageId(501, node_id(0), 1) in {user_message.message_id for user_message in told}
    assert heard(tell(story, *[user_message for user_message in told if user_message.name == "mine"])) == [], (
        "not told to ourselves"
    )


def test_what_we_said_before_we_knew_the_clock_is_dated_anew_when_a_join_tells_it() -> None:
    story = Story()
    story.step(UserEventRequested("word", b"at once"))
    story.step(QueryRequested(5, "question", b"?", 60_000))
    story.step(SeedsGiven((address_of(1),)))
    story.pass_time(1)
    story.hear(1, JoinAck(info_of(1), clock=40))
    early = {user_message.message_id.time: user_message for user_message in user_messages_in(story.pass_time(2_000))}
    assert [type(early[time]) for time in sorted(early)] == [UserEvent, Query], "each once"
    assert min(early) > 40, "below, members that joined before us would take it for old"
    asked = early[max(early)].message_id
    assert QueryAnswered(5, node_id(1), b"!") in story.hear(1, QueryReply(asked, node_id(1), b"!"))


def test_memory_is_bounded_and_what_was_forgotten_is_not_heard_again() -> None:
    story = Story(options=SwimOptions(user_messages_remembered=8, user_messages_limit=4))
    story.befriend(1)
    for time in range(1, 31):
        assert heard(tell(story, word(time))) == [word(time)]
    user_messages = story.swim._user_events
    assert len(user_messages._received) == len(user_messages._received_by_age) == 8
    assert len(user_messages.queue) == 4
    assert all(heard(tell(story, word(time))) == [] for time in range(1, 31))


def test_words_of_one_time_by_different_origins_or_lives_are_different_words() -> None:
    story = Story()
    story.befriend(1, 2)
    words = [word(5, by=1), word(5, by=2), word(5, by=1, generation=2)]
    assert heard(tell(story, *words)) == words


@pytest.mark.parametrize("time", [0, HEAD_START + TICKS_PER_MS, CLOCK_LIMIT, (1 << 63) - 1])
def test_a_clock_beyond_belief_is_refused(time: int) -> None:
    story = Story()
    story.befriend(1)
    assert heard(tell(story, word(time))) == []
    assert story.dropped(DropReason.BAD_USER_MESSAGE) == 1
    story.hear(2, JoinReq(info_of(2), b"t", clock=time), token_valid=True)
    story.step(UserEventRequested("still", b""))
    assert story.swim._user_events.clock < HEAD_START


@pytest.mark.parametrize(("name", "body"), [("", b""), ("n" * 33, b""), ("a\nb", b""), ("n", bytes(513))])
def test_what_is_too_long_or_nameless_is_refused_on_both_sides(name: str, body: bytes) -> None:
    story = Story()
    story.befriend(1)
    with pytest.raises(ValueError, match="of a user event or query has"):
        story.step(UserEventRequested(name, body))
    assert heard(tell(story, UserEvent(UserMessageId(1, node_id(1), 1), name, body))) == []


# -- queries -----------------------------------------------------------------------------------------------------------


def test_a_query_is_answered_straight_to_the_asker_once_and_in_time() -> None:
    story = Story()
    story.befriend(1)
    assert heard(tell(story, question(1))) == [question(1)]
    reply = QueryReply(question(1).message_id, node_id(0), b"fine")
    assert sent(story.step(AnswerGiven(question(1).message_id, b"fine")), QueryReply) == [(address_of(1), reply)]
    assert sent(story.step(AnswerGiven(question(1).message_id, b"again")), QueryReply) == []
    tell(story, question(2))
    story.now += 1_000
    assert sent(story.step(AnswerGiven(question(2).message_id, b"late")), QueryReply) == []
    assert story.dropped(DropReason.ANSWER_TOO_LATE) == 2


def test_answers_are_collected_until_the_deadline_one_of_each_member() -> None:
    story = Story()
    story.befriend(1, 2)
    story.step(QueryRequested(77, "uptime", b"?", 3_000))
    asked = UserMessageId(1, node_id(0), 1)
    answers = [
        each
        for number, body in ((1, b"one"), (2, b"two"), (1, b"one again"))
        for each in story.hear(number, QueryReply(asked, node_id(number), body))
    ]
    assert answers == [QueryAnswered(77, node_id(1), b"one"), QueryAnswered(77, node_id(2), b"two")]
    assert QueryEnded(77) not in story.pass_time(2_999)
    assert QueryEnded(77) in story.pass_time(1)
    assert story.hear(3, QueryReply(asked, node_id(3), b"late")) == []
    assert (story.dropped(DropReason.ANSWER_REPEATED), story.dropped(DropReason.UNSOLICITED)) == (1, 1)


def test_open_queries_are_bounded_on_both_sides() -> None:
    story = Story(options=SwimOptions(queries_limit=2))
    story.befriend(1)
    effects = [each for ticket in range(3) for each in story.step(QueryRequested(ticket, "q", b"", 1_000))]
    assert [each for each in effects if isinstance(each, QueryEnded)] == [QueryEnded(2)]
    tell(story, question(10), question(11), question(12))
    assert sent(story.step(AnswerGiven(question(10).message_id, b"")), QueryReply) == []
    assert len(sent(story.step(AnswerGiven(question(12).message_id, b"")), QueryReply)) == 1


@pytest.mark.parametrize(("asker", "burst"), [(1, REPLIES_BURST), (9, UNPROVED_BURST)], ids=["proved", "unproved"])
def test_replies_have_a_rate_that_depends_on_the_address(asker: int, burst: float) -> None:
    story = Story()
    story.befriend(1)
    effects: list[Effect] = []
    for time in range(1, 101):
        query = replace(question(time), name=KEYS_QUERY if time % 2 else "question", address=address_of(asker))
        effects += tell(story, query)
        effects += story.step(AnswerGiven(query.message_id, b"")) if query.name == "question" else []
    assert [target for target, _ in sent(effects, QueryReply)] == [address_of(asker)] * int(burst)
    assert story.dropped(DropReason.RATE_LIMITED) == 100 - burst
    story.now += 1_000
    assert len(sent(tell(story, replace(question(101), name=KEYS_QUERY, address=address_of(asker))), QueryReply)) == 1


@pytest.mark.parametrize("timeout_ms", [0, -1, 600_001])
def test_a_query_has_a_timeout_within_reason(timeout_ms: int) -> None:
    with pytest.raises(ValueError, match="timeout"):
        Story().step(QueryRequested(1, "q", b"", timeout_ms))


# -- in a group --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("random_seed", range(5))
def test_in_a_group_with_loss_every_member_hears_every_broadcast_exactly_once(random_seed: int) -> None:
    network = GossipNetwork(random_seed, SwimOptions.lan(), loss=0.1, duplication=0.1)
    nodes = network.start(20)
    assert network.run_until(network.is_full_mesh, limit_ms=60_000), f"random seed {random_seed}"
    for number in range(10):
        network.step(nodes[number], UserEventRequested(f"word-{number}", b"w" * 100))
        network.run(300)
    network.run(20_000)
    for node in nodes:
        names = sorted(each.user_event.name for each in node.received if isinstance(each, UserEventReceived))
        wanted = [f"word-{number}" for number in range(10) if number != node.number]
        assert names == wanted, f"random seed {random_seed}, node {node.number}"


def test_a_query_reaches_a_group_of_bounded_capacity() -> None:
    network = GossipNetwork(3, SwimOptions.lan())
    nodes = network.start(40, capacity=5)
    network.run(60_000)
    network.step(nodes[7], QueryRequested(1, "who", b"", 10_000))
    asked = set()
    for _ in range(100):
        network.run(100)
        for node in nodes:
            for each in node.received:
                if isinstance(each, QueryReceived) and node.number not in asked:
                    asked.add(node.number)
                    network.step(node, AnswerGiven(each.query.message_id, b"%d" % node.number))
    answers = {each.responder for each in nodes[7].received if isinstance(each, QueryAnswered)}
    assert answers == {node.node_id for node in nodes if node is not nodes[7]}
