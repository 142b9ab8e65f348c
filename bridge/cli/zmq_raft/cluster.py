"""`garlicfarm zmq-raft status|update|log|follow|config`: an ØMQ Raft cluster, shown and used by its client.

    --seed URL, --seed URL ──▶ zmq_raft.connect ──▶ any of the peers: the leader is found from any of them

The peers are processes of `zmq-raft serve` or of the npm package zmq-raft, or the client endpoints of a farm's nodes.
pyzmq is an extra, so nothing of the client is imported before a command runs.
"""

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
import trio
from msgspec import Struct

from bridge.api.cluster_outputs import (
    ZmqRaftConfigOutput,
    ZmqRaftEntryView,
    ZmqRaftMemberView,
    ZmqRaftPeerView,
    ZmqRaftSnapshotView,
    ZmqRaftStatusOutput,
    ZmqRaftUpdateOutput,
)
from bridge.cli.failure import confirm, fail, failures, interruptible
from bridge.cli.options import (
    DashedCommand,
    IntegerRange,
    SummaryGroup,
    file_path,
    json_option,
    timeout_option,
    watchable,
    wide_option,
    yes_option,
)
from bridge.cli.printing import echo, end_with_json, print_json_line, print_table
from bridge.cli.zmq_raft.options import ident_option, needs_pyzmq, parse_peer
from bridge.cli.zmq_raft.serve import serve
from bridge.node.security.key_files import KeyFileError, load_curve_key
from bridge.wire.keys.curve_key import from_z85
from consensus.protocols import zmq_raft as protocol

SEEDS_VARIABLE = "GARLICFARM_ZMQ_SEEDS"
NO_LEADER = "The peers do not report a leader: an election runs, or a majority cannot be reached."
NO_SEED = f"give the address of a peer of the cluster: --seed tcp://HOST:PORT, or {SEEDS_VARIABLE}"
PATIENCE_S = 10.0
STATUS_PATIENCE_S = 2.0
"""Seconds that `status` waits by default for the list of members, and then for each member."""

T = TypeVar("T")
Changed = tuple[str | None, Sequence["protocol.Peer"], int | None]
"""The leader, the members, and the index of the entry that changed them."""
Question = Callable[["protocol.ZmqRaftClient", float], Awaitable[T]]


class Cluster(Struct, frozen=True):
    """The peers of a cluster, and the keys to reach them."""

    seeds: tuple[str, ...]
    ident: str
    timeout_s: float
    keys: tuple[bytes, bytes, bytes] | None = None
    """For CURVE: the peers' public key, and our own pair."""

    def ask(self, question: Question[T]) -> T:
        """Return the result of the client, or end the command with the reason."""
        if not self.seeds:
            fail(NO_SEED)
        with interruptible(), needs_pyzmq():
            return trio.run(self._ask, question)

    async def _ask(self, question: Question[T]) -> T:
        curve = None if self.keys is None else protocol.CurveClient(*self.keys)
        try:
            async with protocol.connect(self.seeds, self.ident, curve=curve) as client:
                return await question(client, self.timeout_s)
        except (protocol.ClientError, ValueError) as error:
            fail(_reason(error))


def _reason(error: Exception) -> str:
    if isinstance(error, protocol.NoAnswerError) and not error.has_peer_replied:
        return (
            f"{error}\nA peer does not answer a client that names another cluster, or lacks the keys that the peer"
            " requires: are --ident, --key and --server-key right?"
        )
    if isinstance(error, protocol.RequestExpiredError):
        return f"{error}.\nA farm permits JSON objects of clients with a listed key: `[zmq] write`, `keys` of its node."
    return str(error)


_OPTIONS = (
    click.option(
        "--server-key", metavar="Z85", help="The public key of the peers, if they require it (`keys show-curve` there)."
    ),
    click.option(
        "--key", type=file_path, help="The key of this client, for peers that list it, from `keys new-curve`."
    ),
    ident_option,
    click.option(
        "--seed",
        "seeds",
        metavar="URL",
        multiple=True,
        envvar=SEEDS_VARIABLE,
        help="The address of a peer of the cluster, as in tcp://127.0.0.1:8047; may be given several times (default:"
        f" ${SEEDS_VARIABLE}, separated by blanks).",
    ),
)


def cluster_options(command: Callable[..., None], *, timeout_s: float = PATIENCE_S) -> Callable[..., None]:
    """Add the options that name the cluster; the command gets a `Cluster`."""

    @wraps(command)
    def with_cluster(
        *,
        seeds: tuple[str, ...],
        ident: str,
        timeout: float,
        key: Path | None,
        server_key: str | None,
        **arguments: Any,
    ) -> None:
        command(Cluster(seeds, ident, timeout, _curve_keys(key, server_key)), **arguments)

    timed = timeout_option("timeout", "Seconds to wait for an answer.", default_s=timeout_s)
    for option in (*_OPTIONS[:2], timed, *_OPTIONS[2:]):
        option(with_cluster)
    return with_cluster


def _curve_keys(key: Path | None, server_key: str | None) -> tuple[bytes, bytes, bytes] | None:
    if key is None and server_key is None:
        return None
    if key is None or server_key is None:
        fail("--key and --server-key belong together: our own key, and the peers' key")
    public = from_z85(server_key)
    if public is None:
        printed = "the 40 characters that `garlicfarm keys show-curve` prints after the name"
        fail(f"{server_key!r} is not a public key: use {printed}")
    with failures(KeyFileError):
        own = load_curve_key(key)
    return public, own.public, own.secret


@click.group("zmq-raft", cls=SummaryGroup)
def zmq_raft() -> None:
    """Use and watch a replicated log with the protocol ØMQ Raft, such as the npm package zmq-raft.

    `serve` runs a peer of such a cluster. Every other command finds the leader automatically, from any peer (--seed).
    """


zmq_raft.add_command(serve)


@zmq_raft.command()
@partial(cluster_options, timeout_s=STATUS_PATIENCE_S)
@wide_option
@json_option
@watchable
def status(cluster: Cluster, *, wide: bool, as_json: bool) -> None:
    """Show the members, the leader, and the state of each member's log."""
    found = cluster.ask(_status)
    end_with_json(found, as_json=as_json)
    headings = ("PEER", "URL", "ROLE", "TERM", "FIRST", "LAST", "COMMITTED", "APPLIED", "SNAPSHOT", "PRUNE")
    print_table(headings, [_row(peer) for peer in found.peers], is_kept=wide)
    if found.leader is None:
        echo(NO_LEADER, err=True)


async def _status(client: "protocol.ZmqRaftClient", timeout_s: float) -> ZmqRaftStatusOutput:
    config = await client.config(timeout_s=timeout_s)
    views: list[ZmqRaftPeerView | None] = [None] * len(config.peers)

    async def query(number: int, peer: protocol.Peer) -> None:
        views[number] = await _view(client, peer, timeout_s)

    async with trio.open_nursery() as nursery:
        for number, peer in enumerate(config.peers):
            nursery.start_soon(query, number, peer)
    peers = tuple(view for view in views if view is not None)
    # A removed peer returns the members, but does not know their leader.
    leaders = [(view.term or 0, view.id) for view in peers if view.role == "leader"]
    return ZmqRaftStatusOutput(config.leader or max(leaders, default=(0, None))[1], peers)


async def _view(client: "protocol.ZmqRaftClient", peer: protocol.Peer, timeout_s: float) -> ZmqRaftPeerView:
    try:
        info = await client.log_info(peer.url, timeout_s=timeout_s)
    except protocol.NoAnswerError:
        return ZmqRaftPeerView(peer.peer_id, peer.url)
    return ZmqRaftPeerView(
        id=peer.peer_id,
        url=peer.url,
        role="leader" if info.is_leader else "follower",
        term=info.term,
        first_index=info.first_index,
        last_index=info.last_index,
        commit_index=info.commit,
        applied_index=info.last_applied,
        snapshot_bytes=info.snapshot_bytes,
        prune_index=info.prune_index,
    )


def _row(peer: ZmqRaftPeerView) -> Sequence[str]:
    if peer.role is None:
        return (peer.id, peer.url, "no answer", *["-"] * 7)
    figures = (
        peer.term,
        peer.first_index,
        peer.last_index,
        peer.commit_index,
        peer.applied_index,
        peer.snapshot_bytes,
        peer.prune_index,
    )
    return (peer.id, peer.url, peer.role, *map(str, figures))


@zmq_raft.command(cls=DashedCommand)
@click.argument("data", nargs=-1)
@click.option(
    "--request-id",
    metavar="HEX",
    help="Repeat the update with this id. It is committed once, even if you repeat it several times within some hours.",
)
@click.option(
    "--parallel",
    type=IntegerRange(1, 1024),
    default=1,
    show_default=True,
    help="Concurrent updates; with more than one, their order in the log is not defined.",
)
@cluster_options
@json_option
def update(cluster: Cluster, *, data: tuple[str, ...], request_id: str | None, parallel: int, as_json: bool) -> None:
    """Commit each DATA to the log, or each line of stdin without DATA, and print its index.

    Empty lines are skipped. If the outcome is unknown, the command prints the id for a repetition. With this id, the
    cluster commits the update only once.
    """
    given = None if request_id is None else _request_id(request_id)
    if given is not None and len(data) != 1:
        fail("--request-id repeats one update: give its DATA, and no other")
    updates = tuple(each.encode(errors="surrogateescape") for each in data)
    most = protocol.DEFAULT_LIMITS.max_entry_data_bytes
    for number, each in enumerate(updates, 1):
        if not 1 <= len(each) <= most:
            fail(f"DATA {number} has {len(each)} bytes; an update has 1 to {most}. Nothing was sent")

    def report(index: int, used: bytes) -> None:
        if as_json:
            print_json_line(ZmqRaftUpdateOutput(index, used.hex()))
        else:
            echo(f"Committed at index {index}, request id {used.hex()}.")
        sys.stdout.flush()

    async def send(client: "protocol.ZmqRaftClient", timeout_s: float) -> list[str]:
        return await _update_all(client, timeout_s, updates, given, parallel, report)

    reasons = cluster.ask(send)
    if reasons:
        fail("\n".join(reasons))


async def _update_all(
    client: "protocol.ZmqRaftClient",
    timeout_s: float,
    given: tuple[bytes, ...],
    request_id: bytes | None,
    parallel: int,
    report: Callable[[int, bytes], None],
) -> list[str]:
    """Commit all updates until one fails; finish the updates in flight, and return the reasons of failures."""
    reasons: list[str] = []
    send, receive = trio.open_memory_channel[bytes](0)
    feeding = trio.CancelScope()

    async def work() -> None:
        async for data in receive:
            used = request_id or client.make_request_id()
            try:
                index = await client.update(data, used, timeout_s=timeout_s)
            except (protocol.ClientError, ValueError) as error:
                reasons.append(_reason(error))
                feeding.cancel()
            except trio.Cancelled:
                echo(f"Interrupted: the update with the request id {used.hex()} may be committed or not.", err=True)
                raise
            else:
                report(index, used)

    async with trio.open_nursery() as nursery:
        for _ in range(parallel):
            nursery.start_soon(work)
        with feeding:
            async with send, aclosing(_updates(given)) as updates:
                async for each in updates:
                    await send.send(each)
    return reasons


async def _updates(given: tuple[bytes, ...]) -> AsyncGenerator[bytes, None]:
    """Yield the given updates, or the lines of stdin; a thread waits for the lines, so that answers are read too."""
    for each in given:
        yield each
    # Of a longer line only this part is read, which is enough to refuse it.
    most = protocol.DEFAULT_LIMITS.max_entry_data_bytes + len(b"\r\n") + 1
    while not given and (
        line := await trio.to_thread.run_sync(sys.stdin.buffer.readline, most, abandon_on_cancel=True)
    ):
        if text := line.rstrip(b"\r\n"):
            yield text


def _request_id(text: str) -> bytes:
    try:
        request_id = bytes.fromhex(text)
    except ValueError:
        request_id = b""
    if len(request_id) != protocol.REQUEST_ID_BYTES:
        fail(f"{text!r} is not a request id: an id has {2 * protocol.REQUEST_ID_BYTES} hexadecimal digits")
    return request_id


@zmq_raft.command()
@click.option("--from", "first", default=1, show_default=True, type=IntegerRange(min=1), help="The first index.")
@click.option("--count", default=100, show_default=True, type=IntegerRange(min=1), help="Maximum number of entries.")
@cluster_options
@json_option
def log(cluster: Cluster, *, first: int, count: int, as_json: bool) -> None:
    """Print committed entries. With --json: one entry on each line.

    If the log is compacted, the snapshot comes first.
    """

    async def read(client: "protocol.ZmqRaftClient", timeout_s: float) -> tuple[int, int]:
        entries, last = 0, first - 1
        async with aclosing(client.entries(first - 1, count, timeout_s=timeout_s)) as items:
            async for item in items:
                _print_item(item, as_json=as_json)
                if isinstance(item, protocol.CommittedEntry):
                    entries, last = entries + 1, item.index
        return entries, last

    entries, last = cluster.ask(read)
    if entries == 0:
        echo(f"No entry from {first} on.", err=True)
    elif entries == count:
        echo(f"More, if there are any: --from {last + 1}.", err=True)


@zmq_raft.command()
@click.option("--from", "first", type=IntegerRange(min=1), help="The first index (default: the next entry).")
@cluster_options
@json_option
def follow(cluster: Cluster, *, first: int | None, as_json: bool) -> None:
    """Print entries as they are committed, until Ctrl-C. With --json: one entry on each line.

    The command continues after a change of the leader; --timeout applies only to the first reply.
    """

    @trio.lowlevel.enable_ki_protection
    def show(item: "protocol.LogItem") -> None:
        # Without the protection, the stream would write the line again after an interrupt during the flush.
        _print_item(item, as_json=as_json)
        sys.stdout.flush()

    async def read(client: "protocol.ZmqRaftClient", timeout_s: float) -> None:
        previous = (await client.log_info(timeout_s=timeout_s)).commit if first is None else first - 1
        await client.broadcast_url(timeout_s=timeout_s)
        async with aclosing(client.subscribe(previous)) as items:
            async for item in items:
                show(item)

    cluster.ask(read)


def _print_item(item: "protocol.LogItem", *, as_json: bool) -> None:
    if isinstance(item, protocol.CommittedEntry):
        text = item.data if item.kind is protocol.LogEntryKind.STATE else _plain(item.data)
        if as_json:
            print_json_line(ZmqRaftEntryView.of(item.index, item.term, item.kind.value, item.request_id.hex(), text))
        else:
            value = text.decode(errors="backslashreplace")
            echo(f"{item.index:>8} term {item.term:<4} {item.kind.value:<10} {item.request_id.hex()} {value}")
    elif as_json:
        print_json_line(
            ZmqRaftSnapshotView(item.last_index, item.last_term, item.offset, item.total_bytes, base64=item.data)
        )
    elif item.is_last:
        echo(f"{item.last_index:>8} term {item.last_term:<4} snapshot   of {item.total_bytes} bytes, for all before")


def _plain(data: bytes) -> bytes:
    """Return the content of a configuration or a checkpoint as JSON."""
    return msgspec.json.encode(msgspec.msgpack.decode(data))


@zmq_raft.command()
@click.argument("change", type=click.Choice(["set", "add", "remove"]), required=False)
@click.argument("peers", nargs=-1, metavar="[PEER]...")
@click.option("--request-id", metavar="HEX", help="Repeat the change with this id. It is applied once.")
@cluster_options
@json_option
@yes_option
def config(
    cluster: Cluster, *, change: str | None, peers: tuple[str, ...], request_id: str | None, yes: bool, as_json: bool
) -> None:
    """Show the members and the leader; or change the members, and wait until the change is committed.

    PEER is ID=URL; with `remove`, only ID. `set` replaces all members. `add` adds to the present members; start the new
    ones first. `remove` removes members.
    """
    if change is None:
        if request_id is not None:
            fail("--request-id repeats a change: add set, add or remove")
        _print_config(*cluster.ask(_config), None, is_change=False, as_json=as_json)
        return
    if not peers:
        fail(f"name the peers to {change}: {'ID' if change == 'remove' else 'ID=URL'}")
    given = None if request_id is None else _request_id(request_id)
    named = None if change == "remove" else [parse_peer(each) for each in peers]

    async def new_members(client: "protocol.ZmqRaftClient", timeout_s: float) -> list["protocol.Peer"]:
        if named is not None and change == "set":
            return named
        _, present = await _config(client, timeout_s)
        return _without(present, peers) if named is None else list(dict.fromkeys((*present, *named)))

    async def change_members(client: "protocol.ZmqRaftClient", timeout_s: float) -> Changed:
        return await _change(client, timeout_s, await new_members(client, timeout_s), given, adds=change != "remove")

    if change != "add":
        if not yes:
            cluster.ask(_config if change == "set" else new_members)
        confirm(f"{'Leave' if change == 'set' else 'Remove'} {', '.join(peers)} {_ENDS[change]}", yes=yes)

    _print_config(*cluster.ask(change_members), is_change=True, as_json=as_json)


_ENDS = {"set": "as the only members of the cluster?", "remove": "from the cluster?"}


async def _change(
    client: "protocol.ZmqRaftClient",
    timeout_s: float,
    members: Sequence[protocol.Peer],
    request_id: bytes | None,
    *,
    adds: bool,
) -> Changed:
    """Commit the members, and return them without an index if the cluster has them already."""
    try:
        return None, members, await client.change_config(members, request_id, timeout_s=timeout_s)
    except protocol.ConfigRefusedError:
        leader, present = await _config(client, timeout_s)
        if set(present) != set(members):
            raise
        return leader, present, None
    except protocol.NoAnswerError as error:
        if not adds or not error.has_peer_replied:
            raise
        text = f"{error}\nStart the new peers if they do not run: the leader waits for them."
        raise protocol.ClientError(text) from None


async def _config(client: "protocol.ZmqRaftClient", timeout_s: float) -> tuple[str | None, Sequence[protocol.Peer]]:
    reply = await client.config(timeout_s=timeout_s)
    return reply.leader, reply.peers


def _without(present: Sequence[protocol.Peer], ids: Sequence[str]) -> list[protocol.Peer]:
    unknown = set(ids) - {peer.peer_id for peer in present}
    if unknown:
        members = ", ".join(peer.peer_id for peer in present)
        fail(f"{', '.join(sorted(unknown))} is not a member; the members are {members}")
    return [peer for peer in present if peer.peer_id not in ids]


def _print_config(
    leader: str | None, members: Sequence[protocol.Peer], index: int | None, *, is_change: bool, as_json: bool
) -> None:
    end_with_json(
        ZmqRaftConfigOutput(leader, tuple(ZmqRaftMemberView(each.peer_id, each.url) for each in members), index),
        as_json=as_json,
    )
    if is_change:
        echo("These were the members already." if index is None else f"Committed at index {index}.")
    rows = [(each.peer_id, each.url, "leads" if each.peer_id == leader else "") for each in members]
    print_table(("PEER", "URL", ""), rows)
    if not is_change and leader is None:
        echo(NO_LEADER, err=True)
