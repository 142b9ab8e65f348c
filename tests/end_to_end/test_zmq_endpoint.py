"""The ØMQ Raft endpoint of a real node: a client reads, follows and writes the farm's log over CURVE."""

import socket
from contextlib import aclosing
from pathlib import Path

import pytest
import trio

from bridge.core.log.feature_level import SUPPORTED_LEVEL
from bridge.node.security.key_files import load_curve_key, save_curve_key, save_farm_key
from bridge.wire.keys.curve_key import CurveKey, new_curve_key, to_z85
from bridge.wire.keys.farm_key import new_farm_key
from consensus.protocols import zmq_raft
from consensus.protocols.zmq_raft import CommittedEntry, CurveClient, LogEntryKind, NoAnswerError, RequestExpiredError
from tests.end_to_end.farm import START_BOUND_S, Farm, Node, call
from tests.end_to_end.settings import LOOPBACK, free_port, node_toml

IDENT = "reading"
BOUND_S = 60.0
WRITER, READER, UNLISTED = (new_curve_key(name) for name in ("writer", "reader", "stranger"))


def lone_farm(directory: Path, zmq: str) -> tuple[Farm, str, str]:
    """Return a farm of one node, with the URLs of its endpoint and its PUB socket."""
    key_file = directory / "farm.key"
    save_farm_key(key_file, new_farm_key(1))
    gossip, consensus, listen, broadcast = (
        f"{LOOPBACK}:{free_port(kind)}" for kind in (socket.SOCK_DGRAM, *(socket.SOCK_STREAM,) * 3)
    )
    node = node_toml(directory / "node-1", farm_key=key_file, gossip=gossip, consensus=consensus, seeds=[])
    node.directory.chmod(0o700)
    text = node.configuration.read_text()
    endpoint = f'[zmq]\nlisten = "tcp://{listen}"\nbroadcast = "{broadcast}"\nident = "{IDENT}"\n{zmq}'
    node.configuration.write_text(text + endpoint)
    return Farm(directory, [node]), f"tcp://{listen}", f"tcp://{broadcast}"


def curve(node: Node, key: CurveKey) -> CurveClient:
    return CurveClient(load_curve_key(node.directory / "zmq.key").public, key.public, key.secret)


async def read_all(client: zmq_raft.ZmqRaftClient) -> list[CommittedEntry]:
    async with aclosing(client.entries(0)) as entries:
        return [each async for each in entries if isinstance(each, CommittedEntry)]


def test_listed_keys_read_follow_and_write_log(tmp_path: Path) -> None:
    # Given a node that lists a key with write permission and a key without
    keys = tmp_path / "keys"
    keys.write_text(f"writer {to_z85(WRITER.public)} submit\nreader {to_z85(READER.public)}\n")
    keys.chmod(0o600)
    farm, url, broadcast = lone_farm(tmp_path, f'write = true\nkeys = "{keys}"\n')
    with farm:
        (node,) = farm.nodes
        node.start()
        farm.wait_until(lambda: node.view().farm.level == SUPPORTED_LEVEL, START_BOUND_S, "the level is raised")

        # When the writer submits an update, twice under one request id
        async def first_run() -> tuple[bytes, int]:
            with trio.fail_after(BOUND_S):
                async with (
                    zmq_raft.connect([url], IDENT, curve=curve(node, WRITER)) as writer,
                    zmq_raft.connect([url], IDENT, curve=curve(node, READER)) as reader,
                ):
                    config = await reader.config()
                    assert (config.is_leader, config.leader, [peer.url for peer in config.peers]) == (True, url, [url])
                    assert await reader.broadcast_url() == broadcast
                    request_id = writer.make_request_id()
                    index = await writer.update(b'{"note":1}', request_id)
                    assert await writer.update(b'{"note":1}', request_id) == index
                    # Then the reader finds it once in the log, and the log equals the log of `GET /v1/log`
                    entries = await read_all(reader)
                    node_entries = await trio.to_thread.run_sync(node.entries)
                    assert [each.index for each in entries] == list(range(1, len(entries) + 1))
                    for each in entries:
                        if each.kind is LogEntryKind.STATE:
                            assert each.data == node_entries[each.index].data
                    assert [each.index for each in entries if each.request_id == request_id] == [index]
                    # And the reader may not write, and a client may not change the members
                    with pytest.raises(RequestExpiredError):
                        await reader.update(b"{}")
                    with pytest.raises(zmq_raft.ConfigRefusedError, match="farm's own rules"):
                        await writer.change_config([zmq_raft.Peer("x", url)])
                    # And a subscriber receives the next entry
                    async with aclosing(reader.subscribe(index)) as following:
                        following_entry = await anext(following)
                        assert isinstance(following_entry, CommittedEntry)
                        assert following_entry.index == index + 1
                    return request_id, index

        request_id, index = trio.run(first_run)
        view = node.view()
        assert view.node.zmq_address == url
        assert view.counters["zmq_updates_committed"] == 1
        assert view.counters["zmq_keys_accepted"] >= 2

        # When the node restarts, a repetition returns the same index, and an unlisted key does not get a reply
        assert node.stop() == 0
        node.start()
        farm.wait_until(lambda: node.view().raft.leader_id is not None, START_BOUND_S, "the node leads again")

        async def second_run() -> None:
            with trio.fail_after(BOUND_S):
                async with zmq_raft.connect([url], IDENT, curve=curve(node, WRITER)) as writer:
                    assert await writer.update(b'{"note":1}', request_id) == index
                async with zmq_raft.connect([url], IDENT, curve=curve(node, UNLISTED)) as unlisted:
                    with pytest.raises(NoAnswerError):
                        await unlisted.log_info(timeout_s=1.0)

        trio.run(second_run)
        assert sum(b'"note"' in each.data for each in node.entries().values()) == 1


def test_port_in_use_ends_node(tmp_path: Path) -> None:
    farm, url, _ = lone_farm(tmp_path, "")
    with farm, socket.create_server((LOOPBACK, int(url.rpartition(":")[2]))):
        (node,) = farm.nodes
        assert node.start().wait_end(BOUND_S) == 1
        assert "[zmq]: cannot listen at" in node.log_file.read_text().splitlines()[-1]


def test_new_curve_command_creates_client_key(tmp_path: Path) -> None:
    made = call("keys", "new-curve", tmp_path / "client.key", "--name", "client")
    assert made.returncode == 0
    assert made.stdout.split()[1] == to_z85(load_curve_key(tmp_path / "client.key").public)
    with pytest.raises(Exception, match="exists already"):
        save_curve_key(tmp_path / "client.key", WRITER)
