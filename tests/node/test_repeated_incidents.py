"""The metrics of the Raft port log the first incidents of a flood, then only their count, and name the cause."""

import logging

import trio
from trio.testing import MockClock

from bridge.cli.printing import TRACEBACK_PERIOD_S, RepeatLimit
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from bridge.node.raft.refused_connections import REPORT_EVERY_S, RefusedConnections
from consensus.protocols.garlic_farm.node.metrics import Incident, Metrics
from consensus.protocols.garlic_farm.wire.errors import Fault


async def test_flood_from_many_addresses_is_logged_briefly(autojump_clock: MockClock) -> None:
    logged: list[Incident] = []
    metrics = Metrics(logged.append)
    for number in range(3_000):
        metrics.incident(Fault.SILENT, f"10.0.{number // 250}.{number % 250}", "it sent nothing")
    metrics.incident(Fault.WRONG_CREDENTIALS, "10.0.0.1", "wrong password")
    assert [incident.fault for incident in logged] == [Fault.SILENT] * 5 + [Fault.WRONG_CREDENTIALS]
    await trio.sleep(11)
    metrics.incident(Fault.SILENT, "10.9.9.9", "it sent nothing")
    assert logged[-1].text == "it sent nothing (2995 more incidents of this kind were left out)"
    assert metrics.counts[Fault.SILENT] == 3_001


async def test_unreachable_is_reported_for_every_server(autojump_clock: MockClock) -> None:
    logged: list[Incident] = []
    metrics = Metrics(logged.append)
    for number in range(20):
        metrics.incident(Fault.UNREACHABLE, f"server {number}", "it does not answer", outgoing=True)
    assert len(logged) == 20


def _record(cause: str | None, text: str) -> logging.LogRecord:
    record = logging.LogRecord("garlicfarm", logging.INFO, "f", 1, "%s", (text,), None)
    if cause is not None:
        record.cause = cause
    return record


def test_repeat_limit_counts_omitted_lines() -> None:
    now_s = 0.0
    limit = RepeatLimit(most=3, period_s=10, clock_s=lambda: now_s)
    passed = [limit.filter(_record("connection-refused", str(number))) for number in range(100)]
    assert passed.count(True) == 3
    assert limit.filter(_record("leader-elected", "term=2"))
    now_s = 11.0
    after = _record("connection-refused", "again")
    assert limit.filter(after)
    assert after.getMessage() == "again (97 more of this kind were left out)"


def _failed(divisor: str) -> logging.LogRecord:
    try:
        1 // int(divisor)
    except (ValueError, ZeroDivisionError) as error:
        group = ExceptionGroup("tasks failed", [error])
        return logging.LogRecord("garlicfarm", logging.ERROR, "f", 1, "a fault", (), (type(group), group, None))
    raise AssertionError(divisor)


def test_repeat_limit_passes_one_traceback_per_place() -> None:
    now_s = 0.0
    limit = RepeatLimit(clock_s=lambda: now_s)
    assert [limit.filter(_failed("0")) for _ in range(20)].count(True) == 1
    assert limit.filter(_failed("x"))
    now_s = TRACEBACK_PERIOD_S
    after = _failed("0")
    assert limit.filter(after)
    assert after.getMessage() == "a fault (19 more of this kind were left out)"


async def test_wrong_method_is_reported_without_alarm() -> None:
    """Any client can POST to the right path. This does not indicate a server with another version."""
    trace = EventLog("node-1", lambda: 1000)
    alarms = Alarms(trace)
    RefusedConnections(trace, alarms).incident(
        Incident(Fault.WRONG_METHOD, "10.0.0.1", "requested with the method 'POST', but a handshake begins with GET")
    )
    assert trace.recent(1)[0].data["reason"] == "wrong-method"
    assert alarms.active() == ()


async def test_down_server_is_reported_once_then_with_count(autojump_clock: MockClock) -> None:
    trace = EventLog("node-1", lambda: 1000)
    refused = RefusedConnections(trace, Alarms(trace), {2: "node-2"}.get)
    failure = Incident(Fault.UNREACHABLE, "127.0.0.1:7669", "link to server 2: connection refused", outgoing=True)
    for _ in range(30):
        refused.incident(failure)
        await trio.sleep(10)
    assert [event.data["text"] for event in trace.recent(100)] == ["link to node-2: connection refused"]
    await trio.sleep(REPORT_EVERY_S)
    refused.incident(failure)
    assert trace.recent(1)[0].data["times"] == 30
    refused.connected("127.0.0.1:7669")
    assert (trace.recent(1)[0].kind, trace.recent(1)[0].data["failures"]) == ("connection-restored", 31)
    refused.connected("127.0.0.1:7669")
    assert len(trace.recent(100)) == 3


async def test_incidents_are_separate_per_reason_and_server(autojump_clock: MockClock) -> None:
    trace = EventLog("node-1", lambda: 1000)
    refused = RefusedConnections(trace, Alarms(trace))
    for fault in (Fault.UNREACHABLE, Fault.WRONG_CREDENTIALS):
        for peer in ("a:1", "b:1"):
            refused.incident(Incident(fault, peer, f"{peer} {fault.value}", outgoing=True))
    assert [event.kind for event in trace.recent(100)].count("connection-failed") == 4
