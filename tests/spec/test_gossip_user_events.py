"""User events and queries of applications: delivered once, in bounded memory; old messages never count as new."""

import pytest
from msgspec.structs import replace

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
from tests.effort import GROUP_SEEDS
from tests.simulation.gossip_network import GossipNetwork, address_of, node_id
from tests.spec.gossip_story import Story, info_of, sent


def make_event(time: int, by: int = 1, body: bytes = b"", generation: int = 1) -> UserEvent:
    return UserEvent(UserMessageId(time, node_id(by), generation), "word", body)


def make_query(time: int, by: int = 1, timeout_ms: int = 1_000) -> Query:
    return Query(UserMessageId(time, node_id(by), 1), "question", b"?", address_of(by), timeout_ms)


def receive_messages(story: Story, *user_messages: UserMessage, by: int = 1) -> list[Effect]:
    """Receive a ping of node `by` with user messages."""
    ping = story.ping(by)
    payload = Payload(capacity=8, peer_count=1, user_messages=user_messages)
    return story.receive(
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


def deliveries(effects: list[Effect]) -> list[UserMessage]:
    found: list[UserMessage] = [each.user_event for each in effects if isinstance(each, UserEventReceived)]
    return found + [each.query for each in effects if isinstance(each, QueryReceived)]


def user_messages_in(effects: list[Effect]) -> list[UserMessage]:
    """Return the user messages on the pings and replies among the effects."""
    payloads = [each.payload for _, each in sent(effects, PingRequest)]
    payloads += [each.payload for _, each in sent(effects, PingResponse)]
    return [user_message for payload in payloads for user_message in payload.user_messages]


def test_user_event_delivered_once_and_forwarded() -> None:
    story = Story().with_peers(1, 2, 3)
    effects = receive_messages(story, make_event(1))
    assert deliveries(effects) == [make_event(1)]
    assert deliveries(receive_messages(story, make_event(1)) + receive_messages(story, make_event(1), by=2)) == []
    messages = user_messages_in(effects + story.pass_time(5_000))
    assert len(messages) >= 2
    assert set(messages) == {make_event(1)}


def test_user_event_sent_lambda_log_n_times() -> None:
    story = Story().with_peers(1, 2, 3)
    story.drain_updates(1, 2, 3)
    story.step(UserEventRequested("word", b""))
    messages = user_messages_in(story.pass_time(30_000, answering=(1, 2, 3)))
    assert len(messages) == story.options.user_message_retransmit_multiplier  # ceil(log10(4 + 1)) is 1


@pytest.mark.parametrize(("peers", "sender"), [((1,), 1), ((1, 2), 2)])
def test_event_sent_by_all_peers_is_not_gossiped(peers: tuple[int, ...], sender: int) -> None:
    story = Story().with_peers(*peers)
    story.drain_updates(*peers)
    receive_messages(story, make_event(1), by=sender)
    story.pass_time(2 * story.options.probe_period_ms, answering=peers)
    pings = sent(story.pass_time(10 * story.options.probe_period_ms, answering=peers), PingRequest)
    assert len(pings) == 10


def test_user_event_beyond_byte_budget_is_delayed() -> None:
    story = Story(options=SwimOptions(payload_budget_bytes=600)).with_peers(1)
    story.drain_updates(1)
    for name in ("one", "two"):
        story.step(UserEventRequested(name, bytes(500)))
    names = set()
    for _ in range(10):
        messages = [each.payload.user_messages for _, each in sent(story.pass_time(200, answering=(1,)), PingRequest)]
        assert all(len(user_messages) <= 1 for user_messages in messages)
        names |= {user_message.name for user_messages in messages for user_message in user_messages}
    assert names == {"one", "two"}


def test_started_node_drops_events_until_join_sets_clock() -> None:
    story = Story()
    recorded = receive_messages(story, make_event(7))
    assert deliveries(recorded) == []
    assert story.dropped(DropReason.USER_MESSAGE_BEFORE_JOIN) == 1
    story.receive(1, JoinReq(info_of(1), b"t", clock=7), token_valid=True)
    assert deliveries(receive_messages(story, make_event(7))) == []
    assert deliveries(receive_messages(story, make_event(8))) == [make_event(8)]


def test_welcome_sets_clock_of_new_node() -> None:
    story = Story()
    story.swim.step(Received(address_of(1), JoinAck(info_of(1), clock=99)), 0)  # not requested
    assert deliveries(receive_messages(story, make_event(100))) == []
    story.step(SeedsGiven((address_of(1),)))
    story.pass_time(1)
    story.receive(1, JoinAck(info_of(1), clock=40))
    assert deliveries(receive_messages(story, make_event(40), make_event(41))) == [make_event(41)]


def test_own_user_event_dated_after_received_ones() -> None:
    story = Story().with_peers(1)
    receive_messages(story, make_event(500))
    story.step(UserEventRequested("mine", b""))
    messages = user_messages_in(story.pass_time(1_000))
    assert UserMessageId(501, node_id(0), 1) in {user_message.message_id for user_message in messages}
    assert (
        deliveries(receive_messages(story, *[user_message for user_message in messages if user_message.name == "mine"]))
        == []
    ), "not delivered to the node itself"


def test_events_before_join_get_new_date() -> None:
    story = Story()
    story.step(UserEventRequested("word", b"early"))
    story.step(QueryRequested(5, "question", b"?", 60_000))
    story.step(SeedsGiven((address_of(1),)))
    story.pass_time(1)
    story.receive(1, JoinAck(info_of(1), clock=40))
    early = {user_message.message_id.time: user_message for user_message in user_messages_in(story.pass_time(2_000))}
    assert [type(early[time]) for time in sorted(early)] == [UserEvent, Query], "each once"
    assert min(early) > 40, "members that joined earlier would drop a lower time as old"
    query_id = early[max(early)].message_id
    assert QueryAnswered(5, node_id(1), b"!") in story.receive(1, QueryReply(query_id, node_id(1), b"!"))


def test_message_ids_bounded_and_not_redelivered() -> None:
    story = Story(options=SwimOptions(user_messages_remembered=8, user_messages_limit=4)).with_peers(1)
    for time in range(1, 31):
        assert deliveries(receive_messages(story, make_event(time))) == [make_event(time)]
    user_messages = story.swim._user_events
    assert len(user_messages._received) == len(user_messages._received_by_age) == 8
    assert len(user_messages.queue) == 4
    assert all(deliveries(receive_messages(story, make_event(time))) == [] for time in range(1, 31))


def test_events_of_same_time_and_other_origin_differ() -> None:
    story = Story().with_peers(1, 2)
    words = [make_event(5, by=1), make_event(5, by=2), make_event(5, by=1, generation=2)]
    assert deliveries(receive_messages(story, *words)) == words


@pytest.mark.parametrize("time", [0, HEAD_START + TICKS_PER_MS, CLOCK_LIMIT, (1 << 63) - 1])
def test_clock_out_of_range_refused(time: int) -> None:
    story = Story().with_peers(1)
    assert deliveries(receive_messages(story, make_event(time))) == []
    assert story.dropped(DropReason.BAD_USER_MESSAGE) == 1
    story.receive(2, JoinReq(info_of(2), b"t", clock=time), token_valid=True)
    story.step(UserEventRequested("still", b""))
    assert story.swim._user_events.clock < HEAD_START


@pytest.mark.parametrize(("name", "body"), [("", b""), ("n" * 33, b""), ("a\nb", b""), ("n", bytes(513))])
def test_event_too_long_or_unnamed_refused(name: str, body: bytes) -> None:
    story = Story().with_peers(1)
    with pytest.raises(ValueError, match="of a user event or query has"):
        story.step(UserEventRequested(name, body))
    assert deliveries(receive_messages(story, UserEvent(UserMessageId(1, node_id(1), 1), name, body))) == []


# -- queries -----------------------------------------------------------------------------------------------------------


def test_query_reply_sent_once_within_timeout() -> None:
    story = Story().with_peers(1)
    assert deliveries(receive_messages(story, make_query(1))) == [make_query(1)]
    reply = QueryReply(make_query(1).message_id, node_id(0), b"fine")
    assert sent(story.step(AnswerGiven(make_query(1).message_id, b"fine")), QueryReply) == [(address_of(1), reply)]
    assert sent(story.step(AnswerGiven(make_query(1).message_id, b"again")), QueryReply) == []
    receive_messages(story, make_query(2))
    story.now += 1_000
    assert sent(story.step(AnswerGiven(make_query(2).message_id, b"late")), QueryReply) == []
    assert story.dropped(DropReason.ANSWER_TOO_LATE) == 2


def test_query_replies_collected_until_deadline() -> None:
    story = Story().with_peers(1, 2)
    story.step(QueryRequested(77, "uptime", b"?", 3_000))
    query_id = UserMessageId(1, node_id(0), 1)
    answers = [
        each
        for number, body in ((1, b"one"), (2, b"two"), (1, b"one again"))
        for each in story.receive(number, QueryReply(query_id, node_id(number), body))
    ]
    assert answers == [QueryAnswered(77, node_id(1), b"one"), QueryAnswered(77, node_id(2), b"two")]
    assert QueryEnded(77) not in story.pass_time(2_999)
    assert QueryEnded(77) in story.pass_time(1)
    assert story.receive(3, QueryReply(query_id, node_id(3), b"late")) == []
    assert (story.dropped(DropReason.ANSWER_REPEATED), story.dropped(DropReason.UNSOLICITED)) == (1, 1)


def test_open_queries_bounded_on_both_sides() -> None:
    story = Story(options=SwimOptions(queries_limit=2)).with_peers(1)
    effects = [each for ticket in range(3) for each in story.step(QueryRequested(ticket, "q", b"", 1_000))]
    assert [each for each in effects if isinstance(each, QueryEnded)] == [QueryEnded(2)]
    receive_messages(story, make_query(10), make_query(11), make_query(12))
    assert sent(story.step(AnswerGiven(make_query(10).message_id, b"")), QueryReply) == []
    assert len(sent(story.step(AnswerGiven(make_query(12).message_id, b"")), QueryReply)) == 1


@pytest.mark.parametrize(("requester", "burst"), [(1, REPLIES_BURST), (9, UNPROVED_BURST)], ids=["proved", "unproved"])
def test_reply_rate_depends_on_proved_address(requester: int, burst: float) -> None:
    story = Story().with_peers(1)
    effects: list[Effect] = []
    for time in range(1, 101):
        query = replace(make_query(time), name=KEYS_QUERY if time % 2 else "question", address=address_of(requester))
        effects += receive_messages(story, query)
        effects += story.step(AnswerGiven(query.message_id, b"")) if query.name == "question" else []
    assert [target for target, _ in sent(effects, QueryReply)] == [address_of(requester)] * int(burst)
    assert story.dropped(DropReason.RATE_LIMITED) == 100 - burst
    story.now += 1_000
    assert (
        len(
            sent(
                receive_messages(story, replace(make_query(101), name=KEYS_QUERY, address=address_of(requester))),
                QueryReply,
            )
        )
        == 1
    )


@pytest.mark.parametrize("timeout_ms", [0, -1, 600_001])
def test_query_timeout_out_of_range_refused(timeout_ms: int) -> None:
    with pytest.raises(ValueError, match="timeout"):
        Story().step(QueryRequested(1, "q", b"", timeout_ms))


# -- simulated groups --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("random_seed", GROUP_SEEDS)
def test_group_with_loss_delivers_broadcasts_once(random_seed: int) -> None:
    network = GossipNetwork(random_seed, SwimOptions.lan(), loss=0.1, duplication=0.1)
    nodes = network.start(20)
    assert network.run_until(network.is_full_mesh, limit_ms=60_000), f"random seed {random_seed}"
    for number in range(10):
        network.step(nodes[number], UserEventRequested(f"word-{number}", b"w" * 100))
        network.run(300)
    network.run(20_000)
    for node in nodes:
        names = sorted(each.user_event.name for each in node.received if isinstance(each, UserEventReceived))
        expected = [f"word-{number}" for number in range(10) if number != node.number]
        assert names == expected, f"random seed {random_seed}, node {node.number}"


def test_query_reaches_group_of_bounded_capacity() -> None:
    network = GossipNetwork(3, SwimOptions.lan())
    nodes = network.start(40, capacity=5)
    network.run(60_000)
    network.step(nodes[7], QueryRequested(1, "who", b"", 10_000))
    replied = set()
    for _ in range(100):
        network.run(100)
        for node in nodes:
            for each in node.received:
                if isinstance(each, QueryReceived) and node.number not in replied:
                    replied.add(node.number)
                    network.step(node, AnswerGiven(each.query.message_id, b"%d" % node.number))
    answers = {each.responder for each in nodes[7].received if isinstance(each, QueryAnswered)}
    assert answers == {node.node_id for node in nodes if node is not nodes[7]}
