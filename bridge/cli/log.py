"""`garlicfarm log` and `submit`: the farm's replicated log, read, verified on disk, extended by one entry."""

import secrets
import sys
import time
from collections import deque
from pathlib import Path

import click
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct

from bridge.api.control import SubmitAnswer, SubmitOutcome
from bridge.api.entry_words import ENTRY_TYPES, Names, entry_words
from bridge.api.log import LogEntryView, LogPage
from bridge.api.outputs import StorageOutput
from bridge.api.printable import clock_text
from bridge.cli.failure import fail, failures
from bridge.cli.node_queries import node_option, query_node
from bridge.cli.options import IntegerRange, SummaryGroup, file_path, json_option, moment_ms, watch_option
from bridge.cli.printing import echo, print_json, print_json_line
from bridge.node.control.client import ControlClient, ControlError, RefusalError
from bridge.node.raft.submitting import sealed
from bridge.node.security.key_files import KeyFileError, load_client_key
from bridge.node.security.local_trust import UntrustedPathError, check_state_directory
from bridge.wire.log.proof import MEMBER, sign_entry
from consensus.sessions import RequestId, parse_request_id
from consensus.storage import StorageVerdict, Verification, verify_storage

FOLLOW_WAIT_MS = 10_000
TAIL_MOST = 10_000
WINDOW_ENTRIES = 1_000
DAMAGED, NOTHING_TO_CHECK = 1, 2

_HEADS = {
    StorageVerdict.SOUND: "Sound.",
    StorageVerdict.REPAIRABLE: "Sound; the next start repairs some details automatically.",
    StorageVerdict.DAMAGED: "Damaged: a server refuses to start with it.",
    StorageVerdict.EMPTY: "Empty.",
    StorageVerdict.NOT_A_LOG: "Not the directory of a server's log.",
}
_LIVE = (
    "A process has this directory open and continues to write. A result of sound is reliable. Torn, missing or"
    " damaged files may be unfinished writes: stop the node and check again before you act."
)


class _Selection(Struct, frozen=True):
    types: frozenset[str]
    by: str | None
    since_ms: int | None
    raw: bool
    as_json: bool


@click.group(cls=SummaryGroup, invoke_without_command=True)
@click.option(
    "--from", "first", type=IntegerRange(min=1), help="Index of the first entry.  [default: 1, or from --tail]"
)
@click.option("--limit", default=100, show_default=True, type=IntegerRange(1, 1000), help="Maximum number of entries.")
@click.option(
    "--tail",
    type=IntegerRange(0, TAIL_MOST),
    help="Begin with this number of entries at the end of the log, counted after the filters.",
)
@click.option(
    "--type",
    "types",
    multiple=True,
    type=click.Choice(ENTRY_TYPES),
    metavar="TYPE",
    help=f"Only entries of this type; may be given several times. Types: {', '.join(ENTRY_TYPES)}.",
)
@click.option("--by", metavar="NAME", help="Only reports, clocks and publications of this server.")
@click.option("--since", metavar="WHEN", help="Only entries since then, by log time: 90s, 10m, 2h, 1d, or a UTC time.")
@click.option("--raw", is_flag=True, help="Print the bytes of the entries, not sentences.")
@click.option(
    "--linearizable", is_flag=True, help="Show at least all entries acknowledged before this command started."
)
@watch_option("entries as they are committed")
@node_option
@json_option
@click.pass_context
def log(
    context: click.Context,
    *,
    first: int | None,
    limit: int,
    tail: int | None,
    types: tuple[str, ...],
    by: str | None,
    since: str | None,
    raw: bool,
    linearizable: bool,
    follow: bool,
    node: str | None,
    as_json: bool,
) -> None:
    """Print committed entries of the farm's log as sentences. With --watch and --json: one entry on each line.

    A sentence describes the content of an entry, even if the farm refused it; `garlicfarm events` lists the refusals.

    `log verify DIR` checks a server's log on disk instead.
    """
    if context.invoked_subcommand is not None:
        return
    if first is not None and tail is not None:
        raise click.UsageError("--from and --tail both set the first entry: give one of them")
    selection = _Selection(frozenset(types), by, None if since is None else moment_ms(since), raw, as_json)
    filtered = bool(types or by or since)

    async def read(client: ControlClient) -> None:
        view = await client.view()
        reader = _LogPrinter(client, selection, Names(view), limit)
        if tail is not None:
            start = await reader.tail(tail, view.raft.commit_index, one_page=not follow, linearizable=linearizable)
        else:
            start = first or 1
        if follow:
            await reader.follow(start, linearizable=linearizable)
        elif tail is None:
            await reader.read(start, linearizable=linearizable, to_the_end=filtered)

    query_node(node, read)


class _LogPrinter:
    def __init__(self, client: ControlClient, selection: _Selection, names: Names, limit: int) -> None:
        self._client = client
        self._selection = selection
        self._names = names
        self._limit = limit
        self._by = None if selection.by is None else self._server(selection.by)
        self._printed = 0

    def _server(self, name: str) -> int:
        found = self._names.server_named(name)
        if found is None:
            fail(f"no server is called {name}: `garlicfarm servers` lists them")
        return found

    async def read(self, first: int, *, linearizable: bool, to_the_end: bool) -> None:
        """Print one page; with a filter, read pages until there are enough entries or the log ends."""
        found: list[LogEntryView] = []
        while True:
            page = await self._client.log(first, self._limit, linearizable=linearizable)
            found += [each for each in page.entries if self._is_selected(each)]
            first = page.next_index
            if not to_the_end or not page.entries or len(found) >= self._limit or first > page.commit_index:
                break
        found = found[: self._limit]
        if self._selection.as_json:
            print_json(msgspec.structs.replace(page, entries=tuple(found)))
            return
        for entry in found:
            self._print(entry)
        if not found:
            echo(f"No such entry; the commit index is {page.commit_index}.", err=True)
        elif first <= page.commit_index:
            echo(f"More: --from {found[-1].index + 1} (the commit index is {page.commit_index}).", err=True)

    async def tail(self, count: int, commit_index: int, *, one_page: bool, linearizable: bool) -> int:
        """Print the last `count` selected entries, read from the end backwards; return the next index."""
        if linearizable:
            commit_index = (await self._client.log(1, 0, linearizable=True)).commit_index
        page, found = LogPage(1, commit_index, commit_index, commit_index + 1), deque[LogEntryView]()
        end = commit_index
        while end > 0 and len(found) < count:
            first, entries = max(1, end - WINDOW_ENTRIES + 1), list[LogEntryView]()
            while first <= end:
                page = await self._client.log(first, end - first + 1)
                entries += page.entries
                first = page.next_index
                if not page.entries:
                    break
            found.extendleft(each for each in reversed(entries) if self._is_selected(each))
            if not entries or end - WINDOW_ENTRIES < page.first_index or self._is_before(entries[0]):
                break
            end -= WINDOW_ENTRIES
        shown = tuple(found)[len(found) - count if len(found) > count else 0 :]
        if self._selection.as_json and one_page:
            print_json(msgspec.structs.replace(page, next_index=commit_index + 1, entries=shown))
            return commit_index + 1
        for entry in shown:
            self._print(entry)
        if not shown and one_page:
            echo(f"No such entry; the commit index is {commit_index}.", err=True)
        return commit_index + 1

    async def follow(self, first: int, *, linearizable: bool) -> None:
        while True:
            page = await self._client.log(first, self._limit, FOLLOW_WAIT_MS, linearizable=linearizable)
            linearizable = False  # entries acknowledged from now on have later indexes, which the next pages contain
            for entry in page.entries:
                if self._is_selected(entry):
                    self._print(entry)
            sys.stdout.flush()
            first = page.next_index

    def _print(self, entry: LogEntryView) -> None:
        if self._selection.as_json:
            print_json_line(entry)
        else:
            echo(self._line(entry))

    def _is_before(self, entry: LogEntryView) -> bool:
        since_ms = self._selection.since_ms
        return since_ms is not None and (entry.log_time_ms is None or entry.log_time_ms < since_ms)

    def _is_selected(self, entry: LogEntryView) -> bool:
        selection = self._selection
        if self._is_before(entry):
            return False
        if not selection.types and self._by is None:
            return True
        words = entry_words(entry, self._names)
        return (not selection.types or words.type in selection.types) and (self._by is None or words.by == self._by)

    def _line(self, entry: LogEntryView) -> str:
        return _line(entry) if self._selection.raw else _in_words(entry, self._names)


def _in_words(entry: LogEntryView, names: Names) -> str:
    words = entry_words(entry, names)
    at = "-" if entry.log_time_ms is None else clock_text(entry.log_time_ms)
    return f"{entry.index:>8} {at:<8} {words.type:<13} {words.text}"


def _line(entry: LogEntryView) -> str:
    at = "-" if entry.log_time_ms is None else clock_text(entry.log_time_ms)
    value = entry.data.decode(errors="backslashreplace")
    return f"{entry.index:>8} term {entry.term:<4} {at:<8} {entry.kind.value:<13} {value}"


@click.command()
@click.argument("entry", metavar="JSON")
@click.option(
    "--request-id",
    metavar="ID",
    help=(
        "Repeat the submission with this id. The farm applies it once, even if you repeat it several times or at"
        " several nodes."
    ),
)
@click.option(
    "--client-key",
    type=file_path,
    help=(
        "Sign the entry with this client key; without it the node signs entries that act on the farm, with its own"
        " identity."
    ),
)
@node_option
@json_option
def submit(*, entry: str, request_id: str | None, client_key: Path | None, node: str | None, as_json: bool) -> None:
    """Commit one entry to the farm's log. JSON is one object; - reads it from stdin.

    Exit codes: 0 committed, and accepted by the farm; 1 not committed, or refused by the farm, with the reason. If the
    outcome is unknown, the command prints the id for a repetition, which the farm applies only once.
    """
    if request_id is not None and parse_request_id(request_id) is None:
        fail(f"{request_id} is not a request id: copy the id that `submit` has printed")
    data = (sys.stdin.read() if entry == "-" else entry).encode(errors="surrogateescape")
    with failures(KeyFileError):
        key = None if client_key is None else load_client_key(client_key).key
    answer = query_node(node, lambda client: _submit(client, data, request_id, key))
    if as_json:
        print_json(answer)
    elif answer.outcome is SubmitOutcome.COMMITTED:
        echo(f"Committed at index {answer.index}, term {answer.term}.")
    if answer.outcome is not SubmitOutcome.COMMITTED or answer.reason:
        fail(_reason(answer))


async def _submit(
    client: ControlClient, data: bytes, request_id: str | None, key: Ed25519PrivateKey | None
) -> SubmitAnswer:
    """Submit the entry with a request id that this command makes: it knows the id even if the node does not reply."""
    request = request_id or await _new_request_id(client, data)
    signed = None if key is None else await _signed(client, data, request, key)
    try:
        return await (client.submit(data, request) if signed is None else client.submit(signed))
    except RefusalError:
        raise
    except ControlError as error:
        raise ControlError(f"{error}{_way_on(request)}") from error


async def _signed(client: ControlClient, data: bytes, request: str | None, key: Ed25519PrivateKey) -> bytes:
    """Return the entry with its request and the proof of a client key; raise ControlError."""
    cluster_id = (await client.cluster()).cluster_id
    if cluster_id is None:
        raise ControlError("the entry cannot be signed: the node does not belong to a farm yet")
    parsed = None if request is None else parse_request_id(request)
    try:
        named = data if parsed is None else sealed(data.strip(), parsed)
        return sign_entry(named, key, bytes.fromhex(cluster_id), time.time_ns() // 1_000_000)
    except ValueError as error:
        raise ControlError(f"the entry cannot be signed: {error}") from error


async def _new_request_id(client: ControlClient, data: bytes) -> str | None:
    """Return a request id in a new session, which begins at a committed index.

    Return None if the entry has a request or a proof, or if the node does not belong to a farm yet.
    """
    try:
        named = not {"request", MEMBER}.isdisjoint(msgspec.json.decode(data, type=dict))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None  # the node reports the error in it
    cluster = None if named else await client.cluster()
    if cluster is None or cluster.cluster_id is None:
        return None
    return str(RequestId(f"cli-{secrets.token_hex(8)}", cluster.commit_index, 1))


def _way_on(request: str | None) -> str:
    return "" if request is None else f". To repeat it without harm, here or at another node: --request-id {request}"


def _reason(answer: SubmitAnswer) -> str:
    if answer.outcome is SubmitOutcome.COMMITTED:
        return f"the farm refused the entry, and nothing changed: {answer.reason}"
    heads = {
        SubmitOutcome.EXPIRED: "expired, and not applied now",
        SubmitOutcome.REFUSED: "refused, it is not in the log",
        SubmitOutcome.BUSY: "not taken, the farm is busy; try again",
        SubmitOutcome.UNKNOWN: "unknown: it may be committed, now or later, or not",
    }
    place = f" at {answer.leader_endpoint}" if answer.leader_endpoint else ""
    leader = "" if answer.leader_id is None else f" (the leader is {answer.leader_id}{place})"
    reason = f": {answer.reason}" if answer.reason else ""
    doubtful = answer.outcome is SubmitOutcome.UNKNOWN
    look = "; look with `garlicfarm log` before you repeat it" if doubtful and answer.request is None else ""
    return f"{heads[answer.outcome]}{reason}{leader}{look}{_way_on(answer.request) if doubtful else ''}"


@log.command()
@click.argument("directory", type=click.Path(path_type=Path))
@json_option
def verify(*, directory: Path, as_json: bool) -> None:
    """Check a server's log, hard state and snapshots on disk, changing nothing.

    DIRECTORY is a node's state directory, or `raft` inside it. Exit codes: 0 sound, or repaired by the next start; 1
    damaged; 2 nothing to check there.
    """
    # Users usually have a node's state directory at hand.
    place = directory / "raft" if (directory / "raft").is_dir() else directory
    try:
        check_state_directory(place)
        result = verify_storage(place)
    except UntrustedPathError as error:
        fail(str(error))
    except OSError as error:
        echo(f"{place} cannot be read: {error.strerror or error}. Give the directory of a server's log.", err=True)
        sys.exit(NOTHING_TO_CHECK)
    if as_json:
        print_json(_output(place, result))
    else:
        _print_verification(place, result)
    sys.exit(
        {StorageVerdict.DAMAGED: DAMAGED, StorageVerdict.EMPTY: 2, StorageVerdict.NOT_A_LOG: 2}.get(result.verdict, 0)
    )


def _print_verification(place: Path, result: Verification) -> None:
    echo(f"{place}: {_HEADS[result.verdict]}")
    if result.live:
        echo(f"  {_LIVE}")
    for line in result.found:
        echo(f"  {line}")
    for line in result.repairs:
        echo(f"  to be repaired: {line}")
    for line in result.faults:
        echo(f"  WRONG: {line}")


def _output(place: Path, result: Verification) -> StorageOutput:
    return StorageOutput(
        directory=str(place),
        verdict=result.verdict.value,
        live=result.live,
        entries=result.entries,
        first_index=result.first_index,
        last_index=result.last_index,
        last_term=result.last_term,
        segments=result.segments,
        snapshot_index=result.snapshot_index,
        found=tuple(result.found),
        repairs=tuple(result.repairs),
        faults=tuple(result.faults),
    )
