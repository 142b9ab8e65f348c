"""`garlicfarm kraft log`: the committed records of a quorum's log, as its leader gives them.

    --bootstrap-controller ──▶ the leader ── Fetch ─▶ offset, epoch, time, what it is, key and value

The quorum may be of Kafka's controllers. Their records are metadata in a form of Kafka's own, and are printed as bytes.
Records of the protocol's own are named: a new leader, the version, the voters.
"""

import sys
from contextlib import aclosing
from datetime import UTC, datetime

import click

from bridge.api.outputs import KraftLogStartView, KraftRecordView
from bridge.cli.kraft.options import Quorum, quorum_options
from bridge.cli.options import json_option
from bridge.cli.printing import echo, print_json_line
from consensus.protocols import kraft as protocol

CONTROL_NAMES = {
    0: "Abort",
    1: "Commit",
    2: "LeaderChange",
    5: "KRaftVersion",
    6: "KRaftVoters",
    1_000: "NewProducerId",
}
"""Of each type of control record that a log has; the last is our own."""
DATA = "Data"
_HEAD = f"{'OFFSET':>8}  {'EPOCH':>5}  {'TIME (UTC)':<23}  {'RECORD':<13}  KEY: VALUE"


@click.command()
@click.option("--from", "first", type=click.IntRange(0), default=0, show_default=True, help="Offset to begin at.")
@click.option("--limit", type=click.IntRange(1), help="Records at most (default: all that are committed now).")
@click.option("--follow", is_flag=True, help="Go on as records are committed, until Ctrl-C.")
@quorum_options
@json_option
def log(quorum: Quorum, *, first: int, limit: int | None, follow: bool, as_json: bool) -> None:
    """Print committed records. With --json: one record on each line.

    The quorum may be of Kafka's controllers: what they write is printed as bytes.
    """
    if not as_json:
        echo(_HEAD, bold=True)

    async def read(client: "protocol.QuorumClient") -> int:
        count = 0
        async with aclosing(client.records(first, follow=follow)) as items:
            async for item in items:
                _print(item, as_json=as_json)
                count += isinstance(item, protocol.LogRecord)
                if count == limit:
                    break
        return count

    if not quorum.ask(read):
        echo(f"No committed record from offset {first} on.", err=True)


def _print(item: "protocol.LogRecord | protocol.LogStart", *, as_json: bool) -> None:
    if isinstance(item, protocol.LogStart):
        if as_json:
            print_json_line(KraftLogStartView(item.offset))
        else:
            echo(f"{item.offset:>8}  the log begins here: a snapshot stands for what was before", err=True)
    elif as_json:
        kind, content = _kind(item.control_type), (item.key, item.value)
        view = KraftRecordView.of(item.offset, item.epoch, item.timestamp_ms, kind, content, dict(item.headers))
        print_json_line(view)
    else:
        key = "" if item.key is None or item.control_type is not None else f"{_text(item.key)}: "
        value = protocol.control_text(item) or ("null" if item.value is None else _text(item.value))
        time = _time(item.timestamp_ms)
        echo(f"{item.offset:>8}  {item.epoch:>5}  {time:<23}  {_kind(item.control_type):<13}  {key}{value}")
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
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
