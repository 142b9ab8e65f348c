"""`garlicfarm zmq-raft serve`: one peer of an ØMQ Raft cluster, until a signal stops it.

The protocol lacks authentication. Any program that reaches a peer and has the ident reads the log, writes to it and
takes part in elections. So a URL that is not on loopback needs --allow-network.
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, assert_never

import click
import trio
from msgspec import Struct

from bridge.api.cluster_outputs import ZmqRaftMemberView, ZmqRaftServeOutput
from bridge.cli.failure import fail
from bridge.cli.options import IntegerRange, directory_path, json_option
from bridge.cli.serving.server_command import on_signals, run_server
from bridge.cli.serving.server_lines import Lines, check_network
from bridge.cli.serving.stop_deadline import StopDeadline
from bridge.cli.zmq_raft.options import ident_option, needs_pyzmq, parse_peer
from consensus import ConfigurationChanged, ContentRejected, DiskFull, RoleChanged, Server, counted
from consensus.protocols import zmq_raft as protocol

MIB = 1024 * 1024
HOUR_MS = 60 * 60 * 1000
_HOST = re.compile(r"tcp://\[?([^\]]*)\]?:[^:]*")
_NETWORK = (
    "{} is not on loopback, and this protocol does not authenticate: any program that reaches it with the ident can"
    " read the log, write to it, and take part in elections."
)


class PeerArguments(Struct, frozen=True):
    """The options of the command."""

    peer_id: str
    peers: tuple[str, ...]
    directory: Path
    ident: str
    bind: str | None
    broadcast: str | None
    broadcast_bind: str | None
    compact_command: str | None
    compact_at: int
    election_timeout: str
    request_id_ttl: int
    allow_network: bool

    def options(self) -> "protocol.PeerOptions":
        """Return the checked options for the peer, or end the command with the reason."""
        peers = tuple(map(parse_peer, self.peers))
        self._check_network(peers)
        command = shlex.split(self.compact_command or "")
        found = re.fullmatch(r"([0-9]{1,6})-([0-9]{1,6})", self.election_timeout)
        if found is None:
            fail(f"{self.election_timeout!r} is not an election timeout: write MIN-MAX in milliseconds, as in 200-300")
        return protocol.PeerOptions(
            peer_id=self.peer_id,
            peers=peers,
            ident=self.ident.encode(),
            directory=self.directory,
            bind_url=self.bind,
            broadcast_url=self.broadcast,
            broadcast_bind_url=self.broadcast_bind,
            compactor=protocol.CommandCompactor(command) if command else None,
            compaction=protocol.CompactionOptions(log_bytes=self.compact_at * MIB),
            election_timeout_ms=(int(found[1]), int(found[2])),
            log=protocol.LogOptions(window=protocol.Window.of_ttl(self.request_id_ttl * HOUR_MS)),
        )

    def _check_network(self, peers: Iterable[protocol.Peer]) -> None:
        given = [*(peer.url for peer in peers), self.bind, self.broadcast, self.broadcast_bind]
        outside = [url for url in given if url is not None and not _is_loopback(url)]
        if outside:
            remedy = "If that network is yours alone, permit it with --allow-network"
            check_network(_NETWORK.format(outside[0]), remedy, allow_network=self.allow_network)


class PeerReporter(Lines):
    """Prints the events of a peer."""

    def __init__(self, peer_id: str, *, as_json: bool) -> None:
        super().__init__(ZmqRaftServeOutput, "peer", peer_id, as_json=as_json)
        self._peer_id = peer_id

    def notice(self, notice: "protocol.PeerNotice") -> None:
        """Report an event of the peer."""
        match notice:
            case RoleChanged(role, term, leader):
                text = self.role_text(role, f"term {term}", leader)
                self.report("role", text, role=role.value, term=term, leader=_text(leader))
            case ConfigurationChanged(configuration, newcomers):
                self._members(configuration.servers, newcomers, is_joint=configuration.is_joint)
            case protocol.Compacted(index, size_bytes):
                text = f"compacted the log up to entry {index}; the snapshot has {size_bytes} bytes"
                self.report("compacted", text, index=index, snapshot_bytes=size_bytes)
            case protocol.CompactionFailed(reason):
                text = f"the log is not compacted: {reason}. It stays as it is, and this is tried again"
                self.report("compaction-failed", text, alarm=True)
            case DiskFull():
                self.disk(notice)
            case ContentRejected(sender, reason):
                self.report(
                    "rejected", f"peer {_text(sender)} sent an entry that cannot be stored: {reason}", alarm=True
                )
            case _:
                assert_never(notice)

    def serving(self, peer: "protocol.ZmqRaftPeer") -> None:
        """Report that the peer is open."""
        described = peer.server.describe()
        covered = 0 if described.raft.snapshot is None else described.raft.snapshot.last.index
        entries = described.raft.last.index - covered
        size = f"{counted(entries, 'entry', 'entries')}, {described.log_bytes / MIB:.1f} MiB"
        self.report(
            "serving",
            f"serving peer {self._peer_id} at {peer.url} (log: {size})",
            url=peer.url,
            broadcast_url=peer.broadcast_url,
            log_entries=entries,
            log_bytes=described.log_bytes,
        )
        configuration = described.raft.configuration
        self._members(configuration.servers, (), is_joint=configuration.is_joint)

    def _members(self, servers: Sequence[Server], newcomers: Sequence[Server], *, is_joint: bool) -> None:
        members, joining = _views(servers), _views(newcomers)
        text = f"members{' while they change' if is_joint else ''}: {_named(members)}"
        if joining:
            text += f"; about to join: {_named(joining)}"
        if self._peer_id not in [member.id for member in members]:
            text += f"; peer {self._peer_id} is not among them"
        self.report("members", text, members=members, joining=joining or None)


@click.command()
@click.option("--id", "peer_id", metavar="ID", required=True, help="The id of this peer.")
@click.option(
    "--peer",
    "peers",
    metavar="ID=URL",
    multiple=True,
    required=True,
    help="A member when the cluster was created, as in 1=tcp://127.0.0.1:8047; once for each. A peer that joins names"
    " the present members, and not itself. Once the log lists the members, that list applies.",
)
@click.option("--directory", metavar="DIR", required=True, type=directory_path, help="Directory of the log.")
@click.option("--bind", metavar="URL", help="Address to listen at (default: this peer's URL among --peer).")
@ident_option
@click.option(
    "--broadcast", metavar="URL", help="Publish applied entries by a PUB socket at this address (default: none)."
)
@click.option(
    "--broadcast-bind",
    metavar="URL",
    help="Address that the PUB socket listens at, if it differs from --broadcast.",
)
@click.option(
    "--compact-command",
    metavar="CMD",
    help="The program that makes snapshots (default: the log is never compacted). It gets the previous snapshot and the"
    " entries on stdin, and prints the new snapshot.",
)
@click.option(
    "--compact-at",
    metavar="MIB",
    type=IntegerRange(1),
    default=64,
    show_default=True,
    help="Log size that starts a snapshot.",
)
@click.option(
    "--election-timeout",
    metavar="MIN-MAX",
    default="200-300",
    show_default=True,
    help="In milliseconds; the same for all peers. Raise it if leaders change without a failure, as on a busy"
    " machine. A round trip between peers must take less than half of MIN, or less than 140 if that is more; else"
    " nothing is ever committed.",
)
@click.option(
    "--request-id-ttl",
    metavar="HOURS",
    type=IntegerRange(1),
    default=8,
    show_default=True,
    help="Lifetime of request ids; the same for all peers (the package: requestIdTtl).",
)
@click.option("--allow-network", is_flag=True, help="Permit URLs that are not on loopback.")
@json_option
def serve(*, as_json: bool, **given: Any) -> None:
    """Serve a replicated log as a peer of an ØMQ Raft cluster, until Ctrl-C or SIGTERM.

    The cluster may have peers of the npm package zmq-raft as well. A peer joins a cluster by `zmq-raft config add` once
    it serves. With --json: one object on each line for each event.
    """
    with needs_pyzmq():
        options = PeerArguments(**given).options()
    reporter = PeerReporter(options.peer_id, as_json=as_json)
    run_server(partial(_serve, options, reporter), protocol.PeerError)


async def _serve(options: "protocol.PeerOptions", reporter: PeerReporter, deadline: StopDeadline) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadline.within_when_canceled)
        await nursery.start(on_signals, nursery.cancel_scope.cancel)
        async with protocol.open_peer(options, reporter.notice) as peer:
            reporter.serving(peer)
            await trio.sleep_forever()
    reporter.report("stopped", f"peer {options.peer_id} has stopped")


def _is_loopback(url: str) -> bool:
    """Return True if only this machine reaches the URL; `*` is any address. End the command if it is not a URL."""
    found = _HOST.fullmatch(url)
    try:
        return found is not None and found[1] != "*" and ip_address(found[1]).is_loopback
    except ValueError:
        fail(f"{url} does not name an IP address: write tcp://IP:PORT")


def _views(servers: Sequence[Server]) -> tuple[ZmqRaftMemberView, ...]:
    return tuple(ZmqRaftMemberView(str(server.server_id), server.endpoint) for server in servers)


def _named(members: Sequence[ZmqRaftMemberView]) -> str:
    return ", ".join(f"{member.id}={member.url}" for member in members)


def _text(server_id: object) -> str | None:
    return None if server_id is None else str(server_id)
