"""The client of ØMQ Raft over a network in memory: its search for the leader, and the outcomes of its requests."""

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from consensus.protocols import zmq_raft
from consensus.protocols.zmq_raft.client.client import (
    ConfigRefusedError,
    NoAnswerError,
    RequestExpiredError,
    ZmqRaftClient,
    open_client,
)
from consensus.protocols.zmq_raft.client.links import ZmqClientOptions
from consensus.protocols.zmq_raft.counters import ClientEvent
from consensus.protocols.zmq_raft.sockets import zmq_context
from consensus.protocols.zmq_raft.wire.messages import (
    ChangeAccepted,
    ChangeBusy,
    ChangeCommitted,
    ChangeExpired,
    ChangeRedirect,
    ChangeRefused,
    ChangeRequest,
    ConfigReply,
    ConfigRequest,
    LogInfoReply,
    LogInfoRequest,
    Peer,
    Reply,
    Request,
    UpdateAccepted,
    UpdateCommitted,
    UpdateExpired,
    UpdateRedirect,
    UpdateRequest,
)
from consensus.protocols.zmq_raft.wire.request_ids import request_seconds
from tests.node.zmq_network import IDENT, LoopbackPeer, MemoryNetwork, Respond, Script, ScriptedPeer, url_of

NOW_S = 1_800_000_000.0


@asynccontextmanager
async def client_of(
    network: MemoryNetwork, *seeds: int, options: ZmqClientOptions | None = None
) -> AsyncIterator[ZmqRaftClient]:
    urls = [url_of(seed) for seed in seeds or (1, 2, 3)]
    async with open_client(network, urls, IDENT, options or ZmqClientOptions(), lambda: NOW_S) as client:
        yield client


def cluster(leader: int | None = 1) -> tuple[MemoryNetwork, list[ScriptedPeer]]:
    """Return three peers, which all report `leader` as leader."""
    network = MemoryNetwork()
    return network, network.cluster(leader=leader)


def updates(peer: ScriptedPeer) -> list[Request]:
    return peer.of(UpdateRequest)


# -- finding the leader ------------------------------------------------------------------------------------------------


async def test_update_goes_to_leader_named_by_first_seed(autojump_clock: MockClock) -> None:
    network, (one, two, three) = cluster(leader=3)
    async with client_of(network) as client:
        assert await client.update(b"hello") == 1
        assert client._leader.url == three.url
        assert network.connected == [three.url]
    assert (len(one.received), len(two.received)) == (1, 0)
    assert [type(request) for request in three.received] == [UpdateRequest]
    assert network.connected == []
    assert autojump_clock.current_time() == 0.0


async def test_unresponsive_seed_delays_update_by_tenth_of_second(autojump_clock: MockClock) -> None:
    network, (_, two, _) = cluster(leader=2)
    async with client_of(network, 9, 2) as client:
        await client.update(b"hello")
        assert client._leader.url == two.url
    assert trio.current_time() == pytest.approx(0.1)


async def test_search_repeats_until_peer_names_leader(autojump_clock: MockClock) -> None:
    network, peers = cluster(leader=None)
    async with client_of(network) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.update, b"hello")
        await trio.sleep(0.7)
        assert [len(peer.of(ConfigRequest)) for peer in peers] == [3, 3, 3]
        assert not any(updates(peer) for peer in peers)
        for peer in peers:
            peer.leader = "2"
    assert len(updates(peers[1])) == 1
    assert trio.current_time() == pytest.approx(0.9)


async def test_client_continues_within_second_after_outage(autojump_clock: MockClock) -> None:
    network, peers = cluster(leader=2)
    async with client_of(network) as client:
        for tenths in range(10):
            for peer in peers:
                peer.is_unresponsive = True
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(client.update, b"hello", timeout_s=90))
                await trio.sleep(60 + tenths / 10)
                returned_s = trio.current_time()
                for peer in peers:
                    peer.is_unresponsive = False
            assert returned_s <= trio.current_time() <= returned_s + 1


async def test_leader_used_at_queried_address(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    members = (Peer("1", "tcp://10.0.0.1:8001"),)
    ScriptedPeer(network, Peer("1", url_of(1)), members, "1")
    async with client_of(network, 1) as client:
        assert await client.update(b"hello") == 1
        assert client._leader.url == url_of(1)


async def test_leader_found_if_others_name_its_old_address(autojump_clock: MockClock) -> None:
    """The followers reply first, and name an address of the leader that no peer has any longer."""
    network = MemoryNetwork()
    members = tuple(Peer(str(number), f"tcp://10.0.0.1:{8000 + number}") for number in (1, 2, 3))
    for number in (1, 2, 3):
        ScriptedPeer(network, Peer(str(number), url_of(number)), members, "3")
    async with client_of(network) as client:
        assert await client.update(b"hello", timeout_s=5.0) == 1
        assert client._leader.url == url_of(3)


async def test_redirect_followed_with_same_request(autojump_clock: MockClock) -> None:
    network, (one, two, _) = cluster()
    async with client_of(network) as client:
        await client.update(b"first")
        one.leader = two.leader = "2"
        await client.update(b"second")
        assert network.connected == [two.url]
    assert updates(two) == updates(one)[1:]
    assert trio.current_time() == 0.0


async def test_unresponsive_leader_replaced_and_request_repeated(autojump_clock: MockClock) -> None:
    network, (one, two, three) = cluster()
    async with client_of(network) as client:
        await client.update(b"first")
        one.is_unresponsive = True
        two.leader = three.leader = "3"
        await client.update(b"second")
        assert network.connected == [three.url]
    assert updates(three) == updates(one)[1:]
    assert trio.current_time() == pytest.approx(0.5 + 0.3)
    assert len(one.of(ConfigRequest)) == 1, "the unresponsive peer is last in the search, which ends before it"


async def test_redirect_without_leader_waits_for_election(autojump_clock: MockClock) -> None:
    network, peers = cluster()
    one, two, _ = peers
    async with client_of(network) as client:
        await client.update(b"first")
        for peer in peers:
            peer.leader = "2"
        one.leader = None
        await client.update(b"second")
    assert len(updates(two)) == 1
    assert trio.current_time() == pytest.approx(0.3)


async def test_unknown_leader_found_by_new_configuration(autojump_clock: MockClock) -> None:
    network, peers = cluster()
    async with client_of(network) as client:
        await client.update(b"first")
        four = Peer("4", url_of(4))
        members = (*peers[0].members, four)
        fourth = ScriptedPeer(network, four, members, "4")
        for peer in peers:
            peer.members, peer.leader = members, "4"
        await client.update(b"second")
        assert network.connected == [fourth.url]
    assert len(updates(fourth)) == 1
    assert trio.current_time() == 0.0


async def test_peers_naming_each_other_cause_bounded_retries(autojump_clock: MockClock) -> None:
    network, (one, two, three) = cluster(leader=2)
    two.leader, three.leader = "1", None
    async with client_of(network) as client:
        with pytest.raises(NoAnswerError, match="reports that '1' leads"):
            await client.update(b"hello", timeout_s=3.0)
    assert len(updates(one)) + len(updates(two)) < 60


async def test_single_search_serves_all_waiting_requests(autojump_clock: MockClock) -> None:
    network, (one, two, three) = cluster()
    async with client_of(network) as client:
        await client.update(b"first")
        one.is_unresponsive = True
        two.leader = three.leader = "3"
        async with trio.open_nursery() as nursery:
            for number in range(64):
                nursery.start_soon(client.update, b"update %d" % number)
        assert len(updates(three)) == 64
        assert len(two.of(ConfigRequest)) == 1
    assert trio.current_time() == pytest.approx(0.8)


async def test_search_of_canceled_task_continued_by_other_task(autojump_clock: MockClock) -> None:
    network, peers = cluster(leader=None)
    async with client_of(network) as client, trio.open_nursery() as nursery:
        with trio.move_on_after(0.2):
            nursery.start_soon(client.update, b"other")
            await client.update(b"canceled")
        for peer in peers:
            peer.leader = "1"
    assert [request.data for request in updates(peers[0]) if isinstance(request, UpdateRequest)] == [b"other"]


async def test_unreachable_peer_skipped_and_named_in_error(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    network.cluster(leader=2)
    network.refused = {url_of(1)}
    async with client_of(network) as client:
        assert await client.update(b"hello") == 1
        network.refused = {url_of(1), url_of(2), url_of(3)}
        network.peers.clear()
        with pytest.raises(NoAnswerError, match=r"8001: Too many open files; .*8002: (no answer|Too many)"):
            await client.update(b"hello", timeout_s=2.0)


# -- updates -----------------------------------------------------------------------------------------------------------


def accepting(delays_s: list[float], nursery: trio.Nursery, then: Callable[[bytes], UpdateCommitted | None]) -> Script:
    """Return a script that replies "accepted" after each of these delays, and then sends a final reply."""

    def script(request: Request, respond: Respond) -> bool:
        async def answer(request_id: bytes) -> None:
            for delay_s in delays_s:
                await trio.sleep(delay_s)
                respond(UpdateAccepted(request_id))
            last = then(request_id)
            if last is not None:
                await trio.sleep(0.4)
                respond(last)

        if isinstance(request, UpdateRequest):
            nursery.start_soon(answer, request.request_id)
            return True
        return False

    return script


async def test_accepted_restarts_reply_timer(autojump_clock: MockClock) -> None:
    network, (one, *_) = cluster()
    async with client_of(network) as client, trio.open_nursery() as nursery:
        one.script = accepting([0.4] * 5, nursery, lambda request_id: UpdateCommitted(request_id, 7))
        assert await client.update(b"slow") == 7
        assert trio.current_time() == pytest.approx(2.4)
    assert len(updates(one)) == 1


async def test_timeout_after_accepted_starts_search(autojump_clock: MockClock) -> None:
    network, (one, two, three) = cluster()
    async with client_of(network) as client, trio.open_nursery() as nursery:
        one.script = accepting([0.0], nursery, lambda _: None)
        with trio.move_on_after(0.1):
            await client.update(b"first")
        two.leader = three.leader = "2"
        await client.update(b"second")
    assert updates(two) == updates(one)[1:]
    assert trio.current_time() == pytest.approx(0.1 + 0.5 + 0.3)


async def test_ignored_request_does_not_block_other_requests(autojump_clock: MockClock) -> None:
    network, (one, two, _) = cluster()
    one.script = lambda request, _respond: isinstance(request, UpdateRequest) and request.data == b"ignored"
    async with client_of(network) as client:

        async def others() -> None:
            for _ in range(30):
                await client.update(b"other")
                await trio.sleep(0.1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            with pytest.raises(NoAnswerError, match="may be committed or not; repeat it with the request id"):
                await client.update(b"ignored", timeout_s=2.9)
    assert len(one.of(ConfigRequest)) + len(two.of(ConfigRequest)) == 1
    assert len([request for request in updates(one) if getattr(request, "data", None) == b"ignored"]) == 6


async def test_expired_id_raises_request_expired_error(autojump_clock: MockClock) -> None:
    network, (one, *_) = cluster()

    def expired(request: Request, respond: Respond) -> bool:
        if isinstance(request, UpdateRequest):
            respond(UpdateExpired(request.request_id))
        return isinstance(request, UpdateRequest)

    one.script = expired
    async with client_of(network) as client:
        with pytest.raises(RequestExpiredError, match="id 0102030405060708090a0b0c: the id is too old"):
            await client.update(b"old", bytes(range(1, 13)))
    assert len(updates(one)) == 1


async def test_request_ids_contain_time_and_are_unique(autojump_clock: MockClock) -> None:
    network, (one, *_) = cluster()
    async with client_of(network) as client:
        for _ in range(100):
            await client.update(b"x")
        ids = {request.request_id for request in updates(one) if isinstance(request, UpdateRequest)}
        assert len(ids) == 100
        assert {request_seconds(request_id) for request_id in ids} == {int(NOW_S)}
        with pytest.raises(ValueError, match="has 12 bytes, not 4"):
            await client.update(b"x", b"1234")


async def test_request_id_rejected_while_in_use(autojump_clock: MockClock) -> None:
    network, (one, *_) = cluster()
    one.is_unresponsive = True
    async with client_of(network) as client:
        request_id = client.make_request_id()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.update, b"x", request_id)
            await wait_all_tasks_blocked()
            with pytest.raises(ValueError, match="is under way"):
                await client.update(b"x", request_id)
            one.is_unresponsive = False
        assert await client.update(b"x", request_id) == 1


async def test_update_of_invalid_size_not_sent(autojump_clock: MockClock) -> None:
    network, (one, *_) = cluster()
    async with client_of(network) as client:
        for data in (b"", bytes(10 * 1024 * 1024 + 1)):
            with pytest.raises(ValueError, match="an update has 1 to 10485760 bytes"):
                await client.update(data)
    assert one.received == []


async def test_error_names_peers_and_their_replies(autojump_clock: MockClock) -> None:
    network, (one, two, three) = cluster(leader=None)
    three.is_unresponsive = True
    two.leader = "7"
    async with client_of(network) as client:
        with pytest.raises(NoAnswerError) as raised:
            await client.update(b"hello", bytes(range(12)), timeout_s=2.0)
    assert str(raised.value) == (
        "no leader answered within 2 s: tcp://127.0.0.1:8001: does not know a leader; "
        "tcp://127.0.0.1:8002: reports that '7' "
        "leads; tcp://127.0.0.1:8003: no answer within 500 ms. It may be committed or not; repeat it with the "
        "request id 000102030405060708090a0b."
    )
    assert trio.current_time() == pytest.approx(2.0)
    assert updates(one) == []


async def test_concurrent_updates_limited(autojump_clock: MockClock) -> None:
    network, (one, *_) = cluster()
    pending: list[Callable[[], None]] = []

    def delay_reply(request: Request, respond: Respond) -> bool:
        if isinstance(request, UpdateRequest):
            pending.append(lambda: respond(UpdateCommitted(request.request_id, 1)))
        return isinstance(request, UpdateRequest)

    one.script = delay_reply
    async with client_of(network, options=ZmqClientOptions(max_under_way=4)) as client, trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(client.update, b"x")
        for expected in (4, 4, 2):
            await trio.sleep(0.01)
            assert len(pending) == expected
            while pending:
                pending.pop()()


# -- hostile and broken peers ------------------------------------------------------------------------------------------


async def test_invalid_replies_dropped_and_counted(autojump_clock: MockClock) -> None:
    network, (one, *_) = cluster()
    async with client_of(network) as client:
        await client.update(b"first")
        (socket,) = network.open
        own = client.make_request_id()

        def send_false_reply(request: Request, _respond: Respond) -> bool:
            if isinstance(request, UpdateRequest):
                for frames in (
                    [own],
                    [own, b"\x01", b"\xc1"],
                    [own, b"\x01", b"\xa1x"],
                    [b""],
                    [b"\x00" * 12, b"\x01"],
                ):
                    socket.deliver(frames)
            return False

        one.script = send_false_reply
        assert await client.update(b"second", own) == 2
        assert client.counters == {ClientEvent.MALFORMED: 3, ClientEvent.UNMATCHED_REPLY: 2}


async def test_reply_from_peer_without_request_ignored(autojump_clock: MockClock) -> None:
    network, (one, two, _) = cluster(leader=None)
    answers: list[Respond] = []

    def keep_reply(_request: Request, respond: Respond) -> bool:
        answers.append(respond)
        return False

    two.script = keep_reply
    async with client_of(network) as client, trio.open_nursery() as nursery:
        request_id = client.make_request_id()
        one.script = lambda request, _: isinstance(request, UpdateRequest)
        nursery.start_soon(client.update, b"x", request_id)
        await trio.sleep(0.1)
        one.leader = "1"
        await trio.sleep(0.3)
        assert len(updates(one)) == 1
        for respond in answers:
            respond(UpdateCommitted(request_id, 666))
        await trio.sleep(0.1)
        one.script = lambda _request, _respond: False
        one.log[request_id] = 5
        assert request_id in client._under_way
    assert len(updates(one)) == 2


async def test_full_queue_counts_as_lost_message(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    network.cluster(leader=1)
    async with client_of(network) as client:
        await client.update(b"first")
        network.open[0].has_room = False
        assert await client.update(b"second") == 2
        assert client.counters == {ClientEvent.NOT_SENT: 1}


async def test_error_in_block_propagates_unchanged(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    with pytest.raises(KeyError, match="mine"):
        async with client_of(network):
            raise KeyError("mine")


async def test_seed_without_tcp_url_rejected() -> None:
    for urls, text in (([], "give a URL of a peer"), (["ipc:///tmp/x"], "'ipc:///tmp/x' is not the URL of a peer")):
        with pytest.raises(ValueError, match=text):
            async with open_client(MemoryNetwork(), urls, IDENT, ZmqClientOptions()):
                pass


# -- real sockets ------------------------------------------------------------------------------------------------------


async def test_concurrent_updates_over_loopback_committed_once() -> None:
    with zmq_context() as context, trio.fail_after(60):
        async with trio.open_nursery() as server:
            peer = LoopbackPeer(context)
            await server.start(peer.run)
            async with zmq_raft.connect([peer.url], IDENT) as client:
                indexes: list[int] = []

                async def send(count: int) -> None:
                    indexes.extend([await client.update(b"%d" % number) for number in range(count)])

                async with trio.open_nursery() as tasks:
                    for _ in range(64):
                        tasks.start_soon(send, 16)
            server.cancel_scope.cancel()
    assert sorted(indexes) == list(range(1, 1025))


async def test_late_peer_found_over_loopback() -> None:
    with zmq_context() as context, trio.fail_after(60):
        async with trio.open_nursery() as server:
            peer = LoopbackPeer(context)
            async with zmq_raft.connect([peer.url], "cluster") as client:
                with pytest.raises(NoAnswerError, match="no answer within 500 ms"):
                    await client.update(b"x", timeout_s=0.2)
                await server.start(peer.run)
                assert await client.update(b"x") == 1
            server.cancel_scope.cancel()


# -- the configuration and the state of logs ---------------------------------------------------------------------------


async def test_configuration_comes_from_leader(autojump_clock: MockClock) -> None:
    network, (one, *_, three) = cluster(leader=3)
    one.members = one.members[::2]
    async with client_of(network) as client:
        for _ in range(2):
            reply = await client.config()
            assert (reply.is_leader, reply.leader, reply.peers) == (True, "3", three.members)
    assert len(one.of(ConfigRequest)) == 1


async def test_configuration_without_leader_comes_from_peer(autojump_clock: MockClock) -> None:
    network, (one, two, three) = cluster(leader=None)
    one.is_unresponsive = three.is_unresponsive = True
    async with client_of(network) as client:
        reply = await client.config(timeout_s=5.0)
        assert (reply.is_leader, reply.leader, reply.peers) == (False, None, two.members)
        two.is_unresponsive = True
        with pytest.raises(NoAnswerError, match="no peer returned the configuration within 5 s"):
            await client.config(timeout_s=5.0)


async def test_configuration_names_unresponsive_leader(autojump_clock: MockClock) -> None:
    network, (*_, three) = cluster(leader=3)
    three.is_unresponsive = True
    async with client_of(network) as client:
        reply = await client.config()
        assert (reply.is_leader, reply.leader) == (False, "3")
        assert client._leader.url is None


def log_info_reply(request: LogInfoRequest, leader: str | None, term: int, *, is_leader: bool = False) -> LogInfoReply:
    return LogInfoReply(
        request_id=request.request_id,
        is_leader=is_leader,
        leader=leader,
        term=term,
        first_index=1,
        last_applied=2,
        commit=3,
        last_index=4,
        snapshot_bytes=5,
        prune_index=0,
    )


async def test_log_info_of_peer_does_not_change_leader(autojump_clock: MockClock) -> None:
    network, (one, two, three) = cluster()

    def serve_log_info(peer: ScriptedPeer, term: int) -> None:
        def script(request: Request, respond: Respond) -> bool:
            if isinstance(request, LogInfoRequest):
                respond(log_info_reply(request, peer.leader, term, is_leader=peer.leader == peer.peer_id))
            return isinstance(request, LogInfoRequest)

        peer.script = script

    for term, peer in enumerate((one, two, three), start=1):
        serve_log_info(peer, term)
    async with client_of(network) as client:
        assert (await client.log_info(two.url)).term == 2
        await client.update(b"x")
        assert (await client.log_info(two.url)).term == 2
        assert client._leader.url == one.url
        await wait_all_tasks_blocked()
        assert network.connected == [one.url]
        assert (await client.log_info()).term == 1
        one.leader = three.leader = "3"
        assert (await client.log_info()).term == 3
        two.is_unresponsive = True
        with pytest.raises(NoAnswerError, match="8002 did not reply within 2 s"):
            await client.log_info(two.url, timeout_s=2.0)


async def test_log_info_error_reports_earlier_reply_of_any_peer(autojump_clock: MockClock) -> None:
    network, (one, two, _) = cluster()
    one.is_unresponsive = True

    def script(request: Request, respond: Respond) -> bool:
        assert isinstance(request, LogInfoRequest)
        respond(log_info_reply(request, "1", 7))
        return True

    two.script = script
    async with client_of(network) as client:
        with pytest.raises(NoAnswerError) as unanswered:
            await client.log_info(one.url, timeout_s=2.0)
        assert not unanswered.value.has_peer_replied
        await client.log_info(two.url)
        with pytest.raises(NoAnswerError) as unanswered:
            await client.log_info(one.url, timeout_s=2.0)
        assert unanswered.value.has_peer_replied


async def test_log_info_request_repeated_to_unresponsive_peer(autojump_clock: MockClock) -> None:
    network, (_, two, _) = cluster()

    def script(request: Request, respond: Respond) -> bool:
        if isinstance(request, LogInfoRequest) and len(two.of(LogInfoRequest)) == 3:
            respond(log_info_reply(request, "1", 7))
        return True

    two.script = script
    async with client_of(network) as client:
        assert (await client.log_info(two.url, timeout_s=30.0)).term == 7
    assert trio.current_time() == pytest.approx(2 * 0.5)


# -- changes of the members --------------------------------------------------------------------------------------------


def changing(replies: list[Callable[[bytes], list[Reply]]]) -> Script:
    """Return a script that answers each ConfigUpdate with the next of these replies."""

    def script(request: Request, respond: Respond) -> bool:
        if isinstance(request, ChangeRequest):
            for reply in replies.pop(0)(request.request_id):
                respond(reply)
        return isinstance(request, ChangeRequest)

    return script


async def test_member_change_returns_its_index(autojump_clock: MockClock) -> None:
    network, (one, two, _) = cluster(leader=2)
    two.script = changing([lambda each: [ChangeRedirect(each, "1")]])
    one.script = changing([lambda each: [ChangeAccepted(each), ChangeAccepted(each), ChangeCommitted(each, 12)]])
    async with client_of(network) as client:
        assert await client.change_config(one.members[:2]) == 12
    assert one.of(ChangeRequest) == two.of(ChangeRequest)


async def test_member_change_repeated_while_other_change_is_active(autojump_clock: MockClock) -> None:
    network, (one, *_) = cluster()

    def busy(request_id: bytes) -> list[Reply]:
        return [ChangeBusy(request_id)]

    one.script = changing([busy, busy, lambda each: [ChangeCommitted(each, 5)], *[busy] * 9])
    async with client_of(network) as client:
        assert await client.change_config(one.members[:2]) == 5
        assert trio.current_time() == pytest.approx(2.0)
        with pytest.raises(NoAnswerError, match="another change of the members is under way"):
            await client.change_config(one.members[:1], timeout_s=3.5)
    assert len({request.request_id for request in one.of(ChangeRequest) if isinstance(request, ChangeRequest)}) == 2


async def test_refused_member_change_contains_message_of_peer(autojump_clock: MockClock) -> None:
    network, (one, *_) = cluster()
    one.script = changing(
        [lambda each: [ChangeRefused(each, "TypeError", "peer id must be unique")], lambda each: [ChangeExpired(each)]]
    )
    async with client_of(network) as client:
        with pytest.raises(ConfigRefusedError, match=r"refuses these members: peer id must be unique \(TypeError\)"):
            await client.change_config(one.members)
        with pytest.raises(RequestExpiredError):
            await client.change_config(one.members)


async def test_false_configuration_dropped_after_next_reply(autojump_clock: MockClock) -> None:
    network, (one, two, _) = cluster(leader=2)
    false_members = tuple(Peer(f"x{number}", f"tcp://127.0.0.1:{9000 + number}") for number in range(64))

    def send_false_reply(request: Request, respond: Respond) -> bool:
        if isinstance(request, ConfigRequest):
            respond(ConfigReply(request_id=request.request_id, is_leader=False, leader="x63", peers=false_members))
        return isinstance(request, ConfigRequest)

    one.script = send_false_reply
    async with client_of(network, 1, 2) as client:
        assert await client.update(b"x", timeout_s=60.0) == 1
        assert network.connected == [two.url]
        assert (await client.config()).peers == two.members


async def test_connections_bounded_if_peer_names_new_members(autojump_clock: MockClock) -> None:
    network, (one, *_) = cluster(leader=None)
    rounds = itertools.count()
    most = 0

    def send_false_reply(request: Request, respond: Respond) -> bool:
        nonlocal most
        most = max(most, len(network.open))
        if isinstance(request, ConfigRequest):
            first = 10_000 + 64 * (next(rounds) % 800)
            members = tuple(Peer(str(port), f"tcp://127.0.0.1:{port}") for port in range(first, first + 64))
            respond(ConfigReply(request_id=request.request_id, is_leader=False, leader=None, peers=members))
        return isinstance(request, ConfigRequest)

    one.script = send_false_reply
    async with client_of(network, 1) as client:
        with pytest.raises(NoAnswerError, match="does not know a leader"):
            await client.update(b"x", timeout_s=60.0)
        await wait_all_tasks_blocked()
        most = max(most, len(network.open))
    assert next(rounds) > 5
    assert most <= 2 * 65


async def test_redirect_to_sender_ignored(autojump_clock: MockClock) -> None:
    network, (one, two, three) = cluster()

    def name_itself(request: Request, respond: Respond) -> bool:
        if isinstance(request, UpdateRequest):
            respond(UpdateRedirect(request.request_id, "1"))
        return isinstance(request, UpdateRequest)

    one.script = name_itself
    async with client_of(network) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.update, b"x")
        await trio.sleep(1.0)
        assert len(updates(one)) <= 5
        one.leader = two.leader = three.leader = "3"
    assert len(updates(three)) == 1
