"""docs/reference/verdicts.md: the kinds of verdict in the order of precedence, generated from `bridge.api.verdict`."""

from bridge.api.verdict import EXIT_STATUS, MEANINGS, Meaning
from bridge.api.view import Severity

HEAD = """# Verdicts

The verdict is one line about the health of the farm, as the queried node sees it: `Healthy, can lose 1 of 3`,
`Degraded: node-2 down, can lose none`, `No quorum: publishing from node-1 alone; node-2 down, node-3 down`, `Not
published: no router attached`, `Waiting for 2 of 3 nodes`, `Gossip arrives under another farm key: is the key file the
same?`. It is the first line of `garlicfarm status`, `top` and `up`; `/readyz` and `/healthz` carry it, the view has it
as [`verdict`](json.md#verdictview), and [metrics](metrics.md) as `garlicfarm_verdict` and
`garlicfarm_can_lose_servers`. Each change is an event `verdict-changed`, and so a line of the node's log.

One function of the view derives it, so two surfaces of one node cannot disagree. Two nodes may differ: each reports
its own view. The leader knows which servers answer it; the others know of each other by gossip and by their reports in
the log. If gossip has marked a server dead, and Raft or its reports show that it is alive, the server is not down: UDP
to it is blocked, and the alarm `udp-blocked` names it.

**Can lose** is the number of servers, any of them, that may fail before the farm loses its quorum, its last server that
can publish, or its last healthy leaf. If something other than the quorum limits it, the text names the limit.

A member may report any master. So the kind follows from the masters in this node's settings, and from masters in the
reports of two or more servers. Without such a master, it follows from the masters of the server with the lowest Raft
id. `degraded` lists the other masters without a valid structure.

A node whose disk is full or does not answer cannot add entries to its log. While it knows a leader, its verdict is
`degraded` with the alarm of its disk, and not `no-quorum`.

The first kind in this table that applies is the verdict. An alarm is active while its kind applies, even if the verdict
has another kind.

| kind | when | severity | `/readyz` | `status` ends with | alarm |
|---|---|---|---|---|---|
"""
FOOT = """
`garlicfarm status` ends with 0 if the verdict is `ok`, 3 for a `warning`, 4 if it is `critical`; as with every command,
1 means that no node answered, 2 wrong usage.

`/healthz` does not follow the verdict. It answers 503 only if a restart of the process would help: for 30 s the process
has not run its own checks, or has not applied committed entries. A supervisor that restarts a process when `/healthz`
fails therefore does not restart it when the quorum is lost. Use `/readyz` for alerts and for routing.

Before the first structure is published, the alarm `not-published` waits for three reporting periods. A node without a
quorum shows the structure that it signed alone ([publishing.md](../explanation/publishing.md)). Gossip under another
farm key is a verdict only of a node that does not reach its own farm, and an alarm while a server of the farm is down:
farms that share a network do not disturb each other.
"""


def _row(kind: str, meaning: Meaning) -> str:
    severity: Severity = meaning.severity
    ready = 200 if meaning.is_ready else 503
    alarm = "" if meaning.alarm is None else f"`{meaning.alarm.kind}`"
    return f"| `{kind}` | {meaning.text} | {severity.value} | {ready} | {EXIT_STATUS[severity]} | {alarm} |\n"


def page() -> str:
    """Return the document."""
    return HEAD + "".join(_row(kind.value, meaning) for kind, meaning in MEANINGS.items()) + FOOT
