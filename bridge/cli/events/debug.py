"""`garlicfarm debug`: one file with the data for fault analysis of a farm, without secrets.

    the first node ──POST /v1/debug──▶ settings, versions, profile, stacks, memory
    each node      ──GET────────────▶ view, identities, events, metrics, history, views ──▶ NAME.tar.gz, mode 0600
    members without a known address, nodes that do not answer ──▶ summary.json lists them, with the reasons

`--node`, which may be repeated, names the nodes; the first one is profiled. By default the command queries the node
that other commands query, and the nodes whose state directories have the same parent. Users need a bundle when
something does not work. So if a node refuses a request or does not reply, the summary lists this failure, and the
command writes all other documents.

The file contains neither keys nor tokens nor entries of the log. It contains names, addresses of nodes and of
destinations, and the texts of alarms and events. The size of each document and of all together is bounded.
"""

import gzip
import io
import os
import tarfile
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
import trio
from msgspec import Struct, field

from bridge import VERSION
from bridge.api.control_routes import CLUSTER, DEBUG, DEBUG_SECONDS_MAX, HISTORY, NODES, VIEWS, Route
from bridge.api.debug import DebugAnswer, DebugAnswered, DebugOutput, DebugSilent
from bridge.api.json import DocumentError, encode
from bridge.api.observations.history import HOURS_DEFAULT
from bridge.api.trace import EventPage
from bridge.api.view import FarmView
from bridge.cli.failure import fail, failures, reason_of
from bridge.cli.node_queries import answer_timeout_s, find_named_nodes, find_nodes, nodes_option
from bridge.cli.options import IntegerRange, file_path, json_option
from bridge.cli.printing import echo, end_with_json
from bridge.core.formation.member import MemberStatus
from bridge.node.control.client import ControlClient, ControlError
from bridge.node.control.connections.node_address import NodeAddress

SECONDS_DEFAULT = 5
NODES_MOST = 32
BUNDLE_MOST_BYTES = 64 * 1024 * 1024
ANSWER_TIMEOUT_S = 10.0
EVENTS_PAGE = 1_000
_NOT_QUERIED = ", and was not queried: give its address with --node as well"


class _DebugBundle(Struct):
    """The collected data: files by their names, and their description."""

    directory: str
    files: dict[str, bytes] = field(default_factory=dict)
    answered: list[DebugAnswered] = field(default_factory=list)
    silent: list[DebugSilent] = field(default_factory=list)
    members: dict[str, str] = field(default_factory=dict)
    """The status of each member in the view of a node."""
    size: int = 0

    def add(self, name: str, content: bytes) -> bool:
        if self.size + len(content) > BUNDLE_MOST_BYTES:
            return False
        self.files[name] = content
        self.size += len(content)
        return True


@click.command()
@click.option("--output", type=file_path, help="The file to write  [default: garlicfarm-debug-TIME.tar.gz, here].")
@click.option(
    "--seconds",
    default=SECONDS_DEFAULT,
    show_default=True,
    type=IntegerRange(0, DEBUG_SECONDS_MAX),
    help="Seconds of the processor profile of the queried node; 0: without a profile.",
)
@nodes_option
@json_option
def debug(*, output: Path | None, seconds: int, nodes: tuple[str, ...], as_json: bool) -> None:
    """Write a file for fault analysis: views, events, history, metrics, settings, a profile; without keys and tokens.

    The command profiles the first given node, or else the default node of other commands, with its admin token. For
    further nodes a read token is enough. The file lists nodes without a reply, with the reason.
    """
    made_at = datetime.now(UTC)
    name = f"garlicfarm-debug-{made_at:%Y%m%dT%H%M%SZ}"
    path = output or Path(f"{name}.tar.gz")
    with failures(ControlError):
        addresses = (find_named_nodes(nodes) or find_nodes())[:NODES_MOST]
    # The file is opened before the profile, which takes seconds, so that its errors are reported immediately.
    with failures(OSError):
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    try:
        with file:
            bundle = _gather(addresses, seconds, name)
            found = _summary(bundle, path, made_at)
            bundle.files["summary.json"] = msgspec.json.format(encode(found), indent=2)
            _write(file, bundle, made_at)
            size = file.tell()
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            fail(f"{path}: {error.strerror or reason_of(error)}; no file was left there")
        raise
    found = msgspec.structs.replace(found, bytes=size)
    end_with_json(found, as_json=as_json)
    _print_summary(found)


def _gather(addresses: Sequence[NodeAddress], seconds: int, name: str) -> _DebugBundle:
    bundle = _DebugBundle(name)

    async def query_all() -> None:
        async with trio.open_nursery() as nursery:
            for number, address in enumerate(addresses):
                nursery.start_soon(_query_into, bundle, address, seconds if number == 0 else None)

    try:
        trio.run(query_all)
    except* KeyboardInterrupt:
        fail("interrupted; no file was left")
    if not bundle.answered:
        fail("no node answers, and no file was left: " + "; ".join(each.reason for each in bundle.silent))
    return bundle


async def _query_into(bundle: _DebugBundle, address: NodeAddress, seconds: int | None) -> None:
    timeout_s = answer_timeout_s(ANSWER_TIMEOUT_S)
    try:
        async with ControlClient(address, timeout_s) as client:
            view = await client.view()
            place, missing = _place(bundle, view), list[str]()
            _put(bundle, missing, f"{place}/view.json", encode(view))
            for file, question in _QUESTIONS.items():
                await _one(bundle, missing, f"{place}/{file}", partial(question, client))
        if seconds is not None:
            async with ControlClient(address, timeout_s, order_timeout_s=timeout_s + seconds) as client:
                await _one(bundle, missing, f"{place}/debug.json", partial(_debug, bundle, client, seconds, place))
    except (ControlError, DocumentError) as error:
        bundle.silent.append(DebugSilent(str(address), None, str(error)))
        return
    bundle.answered.append(DebugAnswered(str(address), view.node.name, place, tuple(missing)))
    bundle.members.update({each.name: each.status.value for each in view.members})


def _place(bundle: _DebugBundle, view: FarmView) -> str:
    """Return a folder name for a node: nodes of two farms may have one name, and get separate folders."""
    taken = {name.split("/")[0] for name in bundle.files}
    safe = "".join(each if each.isalnum() or each in "._-" else "_" for each in view.node.name).lstrip(".") or "node"
    return safe if safe not in taken else f"{safe}-{view.node.node_id}"


async def _one(bundle: _DebugBundle, missing: list[str], file: str, question: Callable[[], Awaitable[bytes]]) -> None:
    try:
        _put(bundle, missing, file, await question())
    except (ControlError, DocumentError) as error:
        missing.append(f"{file}: {error}")


def _put(bundle: _DebugBundle, missing: list[str], file: str, content: bytes) -> None:
    if not bundle.add(file, content):
        missing.append(f"{file}: the file would be larger than {BUNDLE_MOST_BYTES} bytes")


def _answer(route: Route[Any], **query: int) -> Callable[[ControlClient], Awaitable[bytes]]:
    async def question(client: ControlClient) -> bytes:
        answer: Struct = await client.call(route, query=query)
        return encode(answer)

    return question


async def _metrics(client: ControlClient) -> bytes:
    return (await client.metrics()).encode()


async def _events(client: ControlClient) -> bytes:
    """Return all events that the node still has, one on each line."""
    lines, page = list[bytes](), EventPage(1, 0)
    while True:
        page = await client.events(page.next_cursor, EVENTS_PAGE)
        if not page.events:
            return b"".join(line + b"\n" for line in lines)
        lines += [encode(each) for each in page.events]


_QUESTIONS: dict[str, Callable[[ControlClient], Awaitable[bytes]]] = {
    "cluster.json": _answer(CLUSTER),
    "nodes.json": _answer(NODES),
    "metrics.txt": _metrics,
    "events.jsonl": _events,
    "history.json": _answer(HISTORY, hours=HOURS_DEFAULT),
    "views.json": _answer(VIEWS),
}


async def _debug(bundle: _DebugBundle, client: ControlClient, seconds: int, place: str) -> bytes:
    answer = await client.call(DEBUG, query={"seconds": seconds})
    bundle.add(f"{place}/profile.folded", _folded(answer))
    return encode(answer)


def _folded(answer: DebugAnswer) -> bytes:
    """Return the profile in the format of flame graph tools: `outer;inner count` on each line."""
    lines = [f"{';'.join(each.frames)} {each.samples}\n" for each in answer.profile.stacks]
    return "".join(lines).encode()


# -- the file ----------------------------------------------------------------------------------------------------------


def _summary(bundle: _DebugBundle, path: Path, made_at: datetime) -> DebugOutput:
    names = {each.name for each in bundle.answered}
    others = [
        DebugSilent(None, name, f"it is {status}" + (_NOT_QUERIED if status == MemberStatus.ALIVE.value else ""))
        for name, status in sorted(bundle.members.items())
        if name not in names
    ]
    return DebugOutput(
        file=str(path),
        bytes=0,
        version=VERSION,
        made_at=made_at.isoformat(timespec="seconds"),
        answered=tuple(sorted(bundle.answered, key=lambda each: each.name)),
        silent=(*bundle.silent, *others),
    )


def _write(file: io.BufferedWriter, bundle: _DebugBundle, made_at: datetime) -> None:
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=int(made_at.timestamp())) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, content in sorted(bundle.files.items()):
            entry = tarfile.TarInfo(f"{bundle.directory}/{name}")
            entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
            archive.addfile(entry, io.BytesIO(content))
    file.flush()
    os.fsync(file.fileno())


def _print_summary(found: DebugOutput) -> None:
    for each in found.answered:
        echo(
            f"{each.name}: view, events, history, metrics"
            + (f"; without {'; '.join(each.missing)}" if each.missing else "")
        )
    for other in found.silent:
        echo(f"{other.name or other.address}: {other.reason}")
    echo(f"{found.file}: {found.bytes} bytes. It has names and addresses, but no keys or tokens: read it first.")
