"""The metrics of KIP-595 for Prometheus: their names, and the endpoint of `kraft serve --metrics`.

    current-leader ─▶ kafka_raft_current_leader      the KIP's name after `kafka_raft_`, with `_` for `-`

A metric with an average and a maximum in the KIP becomes two. In the KIP, `current-state` is an enumeration. Here it is
a gauge with a label for each state: 1 for the present state, 0 for the other states. Latencies are in milliseconds, as
in Kafka.

The endpoint answers only GET and HEAD of `/metrics`, one request on a connection. It returns figures, and no secrets,
to any client that reaches the address.
"""

from collections.abc import Callable, Iterator
from typing import Final

import h11
import trio
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from consensus import run_task
from consensus.protocols import kraft as protocol

PREFIX: Final = "kafka_raft_"
STATE: Final = "current_state"
TEXTS: Final = {
    "current_leader": "The leader's node.id; -1: not known",
    "current_epoch": "The newest epoch that this server knows; 0: none yet",
    "current_vote": "The node.id that has this server's vote in the epoch; -1: none",
    "log_end_offset": "The offset of the next record of this server's log",
    "log_end_epoch": "The epoch of the last record of this server's log",
    "high_watermark": "Records below this offset are committed",
    STATE: "1 for the state of this server, 0 for the others",
    "number_unknown_voter_connections": "Other voters whose address this server does not know",
    "election_latency_avg": "Average milliseconds from a candidacy until a leader is known",
    "election_latency_max": "Longest milliseconds from a candidacy until a leader is known",
    "commit_latency_avg": "Average milliseconds from the append of records until their commit; of a leader",
    "commit_latency_max": "Longest milliseconds from the append of records until their commit; of a leader",
    "fetch_records_rate": "Records fetched per second by this server; of a follower",
    "append_records_rate": "Records appended per second by this server; of a leader",
    "poll_idle_ratio_avg": "The share of time without processor use by the event loop",
}
"""Averages, maxima and rates cover the last 30 to 60 seconds; NaN if nothing was measured then."""
_CONNECTIONS: Final = 8
_HEAD_BYTES: Final = 16 * 1024
_REQUEST_S: Final = 10.0
_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def exposition(figures: "protocol.QuorumFigures") -> bytes:
    """Return the metrics as Prometheus' text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(figures))
    return generate_latest(registry)


class _Figures(Collector):
    def __init__(self, figures: "protocol.QuorumFigures") -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        for name, text in TEXTS.items():
            if name == STATE:
                states = GaugeMetricFamily(PREFIX + name, text, labels=("state",))
                for state in protocol.STATES:
                    states.add_metric((state,), self._figures.current_state == state)
                yield states
            else:
                field = f"{name}_ms" if "latency" in name else name
                yield GaugeMetricFamily(PREFIX + name, text, value=float(getattr(self._figures, field)))


async def serve_metrics(
    host: str,
    port: int,
    figures: "Callable[[], protocol.QuorumFigures]",
    *,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer until canceled; report the port when started. Raise `OSError` if it cannot listen."""
    places = trio.CapacityLimiter(_CONNECTIONS)

    async def answer(stream: trio.SocketStream) -> None:
        try:
            places.acquire_nowait()
        except trio.WouldBlock:
            await trio.aclose_forcefully(stream)
            return
        try:
            with trio.move_on_after(_REQUEST_S):
                await _answer(stream, lambda: exposition(figures()))
        except (trio.BrokenResourceError, h11.ProtocolError):
            pass  # the client sees that its connection ends
        finally:
            places.release()
            await trio.aclose_forcefully(stream)

    listeners = await trio.open_tcp_listeners(port, host=host)
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, lambda stream: run_task(answer, stream), listeners)
        task_status.started(int(listeners[0].socket.getsockname()[1]))


async def _answer(stream: trio.SocketStream, text: Callable[[], bytes]) -> None:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES)
    while (event := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(await stream.receive_some(_HEAD_BYTES))
    if not isinstance(event, h11.Request):
        return
    found = event.target.split(b"?")[0] == b"/metrics"
    status = 405 if event.method not in (b"GET", b"HEAD") else 200 if found else 404
    body = text() if status == 200 else b"GET /metrics is all there is\n"  # noqa: PLR2004 - HTTP's OK
    headers = [("Content-Type", _TYPE), ("Content-Length", str(len(body))), ("Connection", "close")]
    data = connection.send(h11.Response(status_code=status, headers=headers)) or b""
    if event.method != b"HEAD":
        data += connection.send(h11.Data(data=body)) or b""
    await stream.send_all(data)
    await stream.send_eof()
