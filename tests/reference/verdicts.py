"""docs/reference/verdicts.md: the kinds of verdict in the order of precedence, generated from `bridge.api.verdict`."""

from bridge.api.verdict import EXIT_STATUS, MEANINGS, Meaning
from bridge.api.view import Severity

HEAD = """# Verdicts

The verdict is one line about the health of the farm, as the queried node sees it. These are examples:

    Healthy, can lose 1 of 3
    Degraded: node-2 down, can lose none
    No quorum: publishing from node-1 alone; node-2 down, node-3 down
    Not published: no router attached
    Waiting for 2 of 3 nodes
    Gossip arrives under another farm key from 10.77.0.3:7668 (label 77aa00ff77aa00ff)

`garlicfarm status`, `top` and `up` show the verdict in their first line, and the replies of `/readyz` and `/healthz`
contain it. It is [`verdict`](json.md#verdictview) in the view, and `garlicfarm_verdict` and
`garlicfarm_can_lose_servers` in the [metrics](metrics.md). Each change is an event `verdict-changed`, and so a line of
the node's log.

One function computes the verdict for all outputs of a node. The verdicts of two nodes may differ, because each node
uses its own view. The leader knows which servers reply to it. The other servers use gossip, and the reports in the log.
If gossip has marked a server dead, but Raft or its reports show that it is alive, the server does not count as down. In
this case UDP to the server is blocked, and the alarm `udp-blocked` names it.

**Can lose** is the number of servers that may fail, in any combination. After so many failures the farm still has its
quorum, a server that can publish, and a healthy leaf. If not the quorum but the publishers or the leaves determine the
number, the text names them.

A member may report any master. So the kind of the verdict depends only on the masters in this node's settings, or in
the reports of two or more servers. Without such a master, it depends on the masters of the server with the lowest Raft
id. `degraded` lists the other masters without a valid structure. If only evicted or retired identities have reported or
published a master, it does not count. It still counts if the log has its publication and another server has a leaf for
it. Clients may still use the address of a master that does not count, until the log drops it an hour after the last
publication.

A node whose disk is full or hangs cannot add entries to its log. While it knows a leader, its verdict is
`degraded` with the alarm of its disk, and not `no-quorum`.

A node may reach most servers but not the leader, for example if packets are lost in one direction only. Such a node
cannot commit anything, and cannot determine if the other servers have a leader. So its verdict is `no-quorum`, with
the text "enough servers run, but this node does not find a leader". The remedy is to compare the verdict of another
node, and not `garlicfarm recover`.

`status`, `top` and the metrics compute the verdict for each request. `/readyz`, `/healthz`, events, alarms and the
history have the verdict of the node's last check. A node checks each second, or every 10 s if the farm is healthy.
After an event of the node, the next check is within a second. So only a change without an event, such as a report that
is out of date, is found up to 10 s later. In a farm of ten thousand members checks are rarer, because each check takes
longer.

The first kind in this table that applies is the verdict. An alarm is active while its kind applies, even if the verdict
has another kind.

| kind | when | severity | `/readyz` | exit code of `status` | alarm |
|---|---|---|---|---|---|
"""
FOOT = """
The exit code of `garlicfarm status` depends on the severity of the verdict: 0 for `ok`, 3 for `warning`, 4 for
`critical`. As with every command, 1 means that no node replied, and 2 means wrong usage.

`/healthz` does not depend on the verdict. It replies 503 only if a restart of the process would help. This is so if
the process has not run its own checks, or has not applied committed entries, for 30 s. So a supervisor that restarts a
process when `/healthz` fails does not restart it when the quorum is lost. Use `/readyz` for alerts and for routing.

Before the first structure is published, the alarm `not-published` waits for three reporting periods. A node without a
quorum shows the structure that it signed alone ([publishing.md](../explanation/publishing.md)). Farms that share a
network do not disturb each other. Gossip under another farm key is the verdict only of a node that does not reach its
own farm. It raises an alarm only while a server of the farm is down.
"""


def _row(kind: str, meaning: Meaning) -> str:
    severity: Severity = meaning.severity
    ready = 200 if meaning.is_ready else 503
    alarm = "" if meaning.alarm is None else f"`{meaning.alarm.kind}`"
    return f"| `{kind}` | {meaning.text} | {severity.value} | {ready} | {EXIT_STATUS[severity]} | {alarm} |\n"


def page() -> str:
    return HEAD + "".join(_row(kind.value, meaning) for kind, meaning in MEANINGS.items()) + FOOT
