"""`garlicfarm kraft log`: the records of a quorum's log, or of a farm's, from its servers or from a directory.

    --bootstrap-controller ──▶ the leader ────────── Fetch ─┐
    --bootstrap-server ─────▶ a farm's listener ── Fetch ─┼▶ offset, epoch, time, kind, key and value
    --directory ────────────▶ one server's files ───────────┘

The servers may be Kafka's controllers. Their records are metadata in Kafka's own form, and are printed as bytes.
Control records of the protocol are named: a new leader, the version, the voters.

Servers return committed records. A directory has the records that one server has stored; the newest of them may not be
committed, and the output states this.
"""

import sys
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path

import click

from bridge.api.cluster_outputs import KraftLogStartView, KraftRecordView
from bridge.cli.failure import fail, failures
from bridge.cli.kraft.options import Quorum, given_spelling, needs_kafka, quorum_options
from bridge.cli.options import IntegerRange, directory_path, json_option, watch_option
from bridge.cli.printing import echo, print_json_line
from consensus.protocols import kafka
from consensus.protocols import kraft as protocol
from consensus.storage import StorageError

CONTROL_NAMES = {
    0: "Abort",
    1: "Commit",
    2: "LeaderChange",
    5: "KRaftVersion",
    6: "KRaftVoters",
    1_000: "NewProducerId",
    1_100: "FarmInternal",
}
"""Name of each type of control record in a log; the last two are our own, the last one in a farm's log."""
DATA = "Data"
_NO_TIME = "-"
STORED = "These are the records that one server has stored: the newest may be uncommitted."
_NOT_OF_FILES = ("bootstrap_controller", "bootstrap_server", "command_config", "timeout", "follow")
_HEAD = f"{'OFFSET':>8}  {'EPOCH':>5}  {'TIME (UTC)':<23}  {'RECORD':<13}  KEY: VALUE"


@click.command()
@click.option("--from", "first", type=IntegerRange(0), default=0, show_default=True, help="The first offset.")
@click.option("--limit", type=IntegerRange(1), help="Maximum number of records (default: all present records).")
@watch_option("records as they are committed")
@click.option(
    "--directory",
    type=directory_path,
    metavar="DIR",
    help=(
        "Read the files of one server instead: the directory in its log.dirs. The server may run; its files are not"
        " changed."
    ),
)
@quorum_options
@json_option
def log(quorum: Quorum, *, first: int, limit: int | None, follow: bool, directory: Path | None, as_json: bool) -> None:
    """Print the committed records of a log. With --json: one record on each line.

    In a quorum of Kafka's controllers, records are printed as bytes. To read a farm's log, use --bootstrap-server with
    a node that has a Kafka listener.
    """
    if directory is not None and (given := next(filter(None, map(given_spelling, _NOT_OF_FILES)), None)):
        raise click.UsageError(f"--directory reads files, not a server: leave out {given}")
    printer = Printer(limit, as_json=as_json)
    if directory is not None:
        _print_stored(directory, first, printer)
    else:
        quorum.ask(lambda client: _print_committed(client, first, printer, follow=follow))
    if not printer.count:
        echo(f"No {'record' if directory else 'committed record'} from offset {first} on.", err=True)


async def _print_committed(client: "protocol.QuorumClient", first: int, printer: "Printer", *, follow: bool) -> None:
    async with aclosing(client.records(first, follow=follow)) as items:
        async for item in items:
            if printer.take(item):
                return


def _print_stored(directory: Path, first: int, printer: "Printer") -> None:
    with needs_kafka(), failures(protocol.QuorumDirectoryError, kafka.KafkaWireError, StorageError, OSError):
        for item in protocol.stored_records(directory, first):
            if printer.take(item):
                return
        fault = protocol.stored_fault(directory)
    if fault is not None:
        fail(f"the log in '{directory}' is damaged: {fault}")
    echo(STORED, err=True)


class Printer:
    """Prints records below their headings, up to a limit."""

    def __init__(self, limit: int | None, *, as_json: bool) -> None:
        self.count = 0
        self._limit = limit
        self._as_json = as_json

    def take(self, item: "protocol.LogRecord | protocol.LogStart") -> bool:
        """Print an item; return True if the limit is reached."""
        if not self.count and not self._as_json and isinstance(item, protocol.LogRecord):
            echo(_HEAD, bold=True)
        _print(item, as_json=self._as_json)
        self.count += isinstance(item, protocol.LogRecord)
        return self.count == self._limit


def _print(item: "protocol.LogRecord | protocol.LogStart", *, as_json: bool) -> None:
    if isinstance(item, protocol.LogStart):
        if as_json:
            print_json_line(KraftLogStartView(item.offset))
        else:
            echo(f"{item.offset:>8}  the log begins here: a snapshot replaces the earlier records", err=True)
    elif as_json:
        kind, content = _kind(item.control_type), (item.key, item.value)
        view = KraftRecordView.of(item.offset, item.epoch, item.timestamp_ms, kind, content, dict(item.headers))
        print_json_line(view)
    else:
        key = "" if item.key is None or item.control_type is not None else f"{_text(item.key)}: "
        value = protocol.control_text(item) or ("null" if item.value is None else _text(item.value))
        time = _time(item.timestamp_ms)
        line = f"{item.offset:>8}  {item.epoch:>5}  {time:<23}  {_kind(item.control_type):<13}  {key}{value}"
        echo(line.rstrip())
    sys.stdout.flush()


def _kind(control_type: int | None) -> str:
    return DATA if control_type is None else CONTROL_NAMES.get(control_type, f"Control{control_type}")


def _text(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    return text if text.isprintable() else f"0x{data.hex()}"


def _time(timestamp_ms: int) -> str:
    if timestamp_ms < 0:
        return _NO_TIME
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
