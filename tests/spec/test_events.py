"""Events as text: names and times of day instead of numbers. A fact reported by several nodes appears once."""

from bridge.api.events import (
    FACTS_MAX,
    SAME_FACT_MS,
    EventStory,
    event_sentence,
    event_severity,
    event_text,
    story_line,
)
from bridge.api.trace import Scalar, TraceEvent
from bridge.api.view import Severity
from tests.effort import each_case

MASTER = "hakketfo3r2mqy5vdo4n6t5gqzc3b2e7xkfp4nq6lw2a5s7d3yue.b32.i2p"
LEAF = MASTER.removesuffix(".b32.i2p")
MESSAGE: dict[str, Scalar] = {"name": "deploy", "from": "node-1", "payload": "v2"}
OFFER: dict[str, Scalar] = {"from": "73c9", "name": "node-2", "era": 3, "vouching": 1, "needed": 2}


def event(kind: str, node: str = "node-1", time_ms: int = 0, **data: Scalar) -> TraceEvent:
    return TraceEvent(1, time_ms, None, kind, node, data)


@each_case(
    ("trace", "sentence"),
    [
        (
            event("publisher-chosen", server=2, name="node-2", previous=3, previousName="node-3", master=MASTER),
            "node-2 will publish hakketfo3r2m….b32.i2p, after node-3",
        ),
        (
            event("publisher-chosen", server=2, previous=3, master=MASTER, reason="server 3 cannot publish: …"),
            "server 2 will publish hakketfo3r2m….b32.i2p, after server 3, because server 3 cannot publish: …",
        ),
        (
            event("publisher-chosen", server=None, previous=3, previousName="node-3", master=MASTER),
            "no server can publish hakketfo3r2m….b32.i2p, after node-3",
        ),
        (
            event("publication-accepted", server=2, name="node-2", second=1_795_352_222),
            "node-2 may publish the structure of 12:57:02",
        ),
        (
            event("publication-refused", server=1, name="node-1", reason="node-1 is not the publisher; no server is"),
            "from node-1: node-1 is not the publisher; no server is",
        ),
        (
            event(
                "publication-refused",
                server=1,
                reason="timestamp 1795352222 is not after 1795352333, the timestamp of the last accepted publication",
            ),
            "from server 1: timestamp 12:57:02 is not after 12:58:53, the timestamp of the last accepted publication",
        ),
        (event("exclusion-changed", leaf=LEAF, excluded=True), "leaf hakketfo3r2m….b32.i2p is excluded"),
        (
            event("cost-factor-changed", leaf=LEAF, factor=1.5),
            "the cost of leaf hakketfo3r2m….b32.i2p is multiplied by 1.5",
        ),
        (
            event("leaf-unhealthy", leaf=LEAF, conditions="router service", error="refused"),
            "leaf hakketfo3r2m….b32.i2p: no router answers and its service does not answer the probe (refused)",
        ),
        (
            event("leaf-healthy", leaf=LEAF, conditions="service", error="", unhealthyMs=302_000),
            "leaf hakketfo3r2m….b32.i2p is healthy again after 5m02s: before, its service does not answer the probe",
        ),
        (
            event("leaf-unhealthy", leaf=LEAF, conditions="router", error="refused", changes=37, agoMs=560_000),
            (
                "leaf hakketfo3r2m….b32.i2p: no router answers (refused); it changed 9m20s ago;"
                " 37 changes since its last event"
            ),
        ),
        (event("node-started", pid=71, generation=1), "with pid 71"),
        (
            event("node-started", pid=71, generation=1, gossip="10.1.2.3:7668", raft="10.1.2.3:7669", chosen="eth0"),
            "with pid 71; gossip at 10.1.2.3:7668, chosen: eth0; Raft at 10.1.2.3:7669",
        ),
        (event("node-started", pid=71, generation=1, raft="x.i2p:7669"), "with pid 71; Raft at x.i2p:7669"),
        (event("node-started", pid=72, generation=2), "with pid 72, start number 2"),
        (
            event("published", second=1_795_352_222, entries=3),
            "its router accepted the structure of 12:57:02 (entries: 3)",
        ),
        (event("leader-followed", term=4, leader=2, leaderName="node-2"), "node-2 leads in term 4"),
        (
            event("configuration-changed", voters="1 2", learners="", voterNames="oslo lima", learnerNames=""),
            "voters are oslo, lima",
        ),
        (event("founding-promised", founders=3), "it promises to create a farm; number of founders: 3"),
        (event("farm-founded", cluster="642f81cb", raftId=1), "of cluster 642f81cb, as server 1"),
        (event("farm-known", cluster="642f81cb"), "it has discovered cluster 642f81cb"),
        (TraceEvent(1, 0, None, "user-event", "node-2", MESSAGE), "deploy from node-1: v2"),
        (TraceEvent(1, 0, None, "query", "node-2", {**MESSAGE, "answered": True}), "deploy from node-1: v2 (answered)"),
        (
            event("control-certificate-renewed", file="/srv/control.crt"),
            "clients that check the certificate need the new /srv/control.crt",
        ),
        (event("signing-key-renewed", until=1_795_352_222), "it can sign until 2026-11-22"),
        (event("reconcile-proposed", step="promote", server=2, name="node-2"), "make node-2 a voter"),
        (event("reconcile-failed", step="hand-over", reason="timed-out"), "to hand leadership over: timed-out"),
        (
            event("keys-exported", epoch=2, unconfirmed=True),
            "the farm's keys of epoch 2 were read for a farm key file, without confirmation by a leader",
        ),
        (event("key-used", key="adf0cb09", forced=True), "gossip key adf0cb09 is used by all nodes to seal, by force"),
        (
            event("server-evicted", server=3, name="node-3", id="73c9", era=2),
            "node-3 is evicted, and the farm gets new keys, of era 2",
        ),
        (event("node-evicted", id="73c9", era=2, sealedFor=2), "with new keys of era 2, sealed for 2 members"),
        (event("key-replacement", era=1, sealedFor=3), "new keys of era 1, sealed for 3 members"),
        (event("server-forgotten", server=7), "server 7 has not reported for a long time"),
        (
            event("log-time-corrected", beforeMs=1_795_351_200_000, afterMs=1_795_347_600_000),
            "log time was set back from 12:40:00 to 11:40:00",
        ),
        (
            event("log-time-corrected", beforeMs=1_895_351_200_000, afterMs=1_795_347_600_000),
            "log time was set back from 2030-01-22 22:26:40 to 2026-11-22 11:40:00",
        ),
        (
            event("clock-bounded", server=3, name="node-3", excessMs=41_000),
            "log time was limited: the clock of node-3 is 41s above the limit that a majority of the clocks sets",
        ),
        (
            event("server-retired", server=3, name="node-3", id="73c9", successor="84d0"),
            "node-3 is retired: another identity has its name",
        ),
        (
            event("admission-lapsed", server=4, name=None, id="73c9"),
            "server 4 did not join in time, so its place is free",
        ),
        (
            event("client-key-changed", name="tool", id="73", scopes="", admitted=False),
            "the client key tool is removed",
        ),
        (
            event("second-forgotten", master=MASTER, second=1_795_351_200, until=1_795_412_000),
            (
                "the last accepted timestamp of hakketfo3r2m….b32.i2p, 2026-11-22 12:40:00, is dropped: a router that"
                " has this structure refuses earlier ones until 2026-11-23 05:33:20"
            ),
        ),
        (event("handover-ordered", server=None, outcome="no-voter"), "handover of leadership: no voter"),
        (
            TraceEvent(1, 0, None, "key-offered", "node-1", OFFER),
            "node-2 offers keys of era 3: 1 of 2 needed voters offer these",
        ),
        (event("something-new", server=2, name="node-2", second=1_795_352_222), "name=node-2 second=12:57:02"),
    ],
)
def test_event_sentence_has_names_and_times_of_day(trace: TraceEvent, sentence: str) -> None:
    assert event_sentence(trace) == sentence


def test_event_of_other_version_keeps_its_facts() -> None:
    assert event_text(event("leader-elected", epoch=4)) == "leader-elected: epoch=4"


@each_case(
    ("trace", "severity"),
    [
        (event("member-alive", member="node-2"), Severity.OK),
        (event("member-suspect", member="node-2"), Severity.WARNING),
        (event("publish-failed", reason="no router"), Severity.WARNING),
        (event("something-new-failed", reason="of another version"), Severity.OK),
        (event("alarm-raised", alarm="no-quorum", text="…"), Severity.CRITICAL),
        (event("alarm-raised", alarm="of another version", text="…"), Severity.WARNING),
        (event("verdict-changed", text="Healthy", severity="ok"), Severity.OK),
        (event("verdict-changed", text="No quorum", severity="critical"), Severity.CRITICAL),
        (event("verdict-changed", text="…", severity="of another version"), Severity.WARNING),
    ],
)
def test_event_has_severity_of_its_alarm_or_verdict(trace: TraceEvent, severity: Severity) -> None:
    assert event_severity(trace) is severity


def test_election_reported_once_by_leader_and_followers() -> None:
    story = EventStory()
    trace = [
        event("leader-followed", "node-3", 10, term=4, leader=1, leaderName="node-1"),
        event("leader-elected", "node-1", 0, term=4),
        event("leader-followed", "node-2", 20, term=4, leader=1, leaderName="node-1"),
    ]
    lines = [story_line(each) for each in trace if story.is_new(event_sentence(each), each.time_ms)]
    assert lines == ["leader-elected: node-1 leads in term 4"]


def test_repeated_fact_reported_again_later() -> None:
    story = EventStory()
    times_ms = [0, 5, SAME_FACT_MS - 1, SAME_FACT_MS + 1, 3 * SAME_FACT_MS]
    assert [story.is_new("node-2 is dead", each) for each in times_ms] == [True, False, False, True, True]


def test_reported_facts_are_bounded() -> None:
    story = EventStory()
    for number in range(3 * FACTS_MAX):
        assert story.is_new(f"fact {number}", number)
    assert len(story._reported_ms) == FACTS_MAX


def test_line_of_node_fact_names_its_node() -> None:
    assert story_line(event("published", "node-2", second=60, entries=1)).startswith("node-2 published: ")
    assert story_line(event("member-dead", "node-2", member="node-3", id="ff")) == "member-dead: node-3 is dead"
