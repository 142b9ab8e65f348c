"""docs/reference/verdicts.md: the kinds of verdict in the order of precedence, out of `bridge.api.verdict`."""

from bridge.api.verdict import EXIT_STATUS, MEANINGS, Meaning
from bridge.api.view import Severity

HEAD = """# Verdicts

The verdict says in one line how the farm is, as the asked node sees it: `Healthy, can lose 1 of 3`, `Degraded: node-2
down, can lose none`, `No quorum: publishing from node-1 alone; node-2 down, node-3 down`, `Not published: no router
attached`, `Waiting for 2 of 3 nodes`, `Another farm's key is heard: is the key file the same?`. It is the first line
of `garlicfarm status`, `top` and `up`; `/readyz` and `/healthz` carry it, the view has it as
[`verdict`](json.md#verdictview), and [metrics](metrics.md) as `garlicfarm_verdict` and `garlicfarm_can_lose_servers`.
Each change is an event `verdict-changed`, and so a line of the node's log.

One function of the view makes it, so two surfaces of one node cannot disagree. Two nodes may: each tells what it sees.
The leader knows which servers answer it; the others know of each other by gossip and by their reports in the log.
If gossip has given up a server that Raft or its reports show to be alive, it is not down: UDP to it is blocked, and the
alarm `udp-blocked` names it.

**Can lose** is how many servers may fail, whichever they are, before the farm loses its quorum, its last server that
can publish, or its last healthy leaf. If it is not the quorum that limits it, the text says what does.

The first kind in this table that applies is the verdict. An alarm stands for as long as its kind applies, also while
another kind is the verdict.

| kind | when | severity | `/readyz` | `status` ends with | alarm |
|---|---|---|---|---|---|
"""
FOOT = """
`garlicfarm status` ends with 0 if the verdict is `ok`, 3 for a `warning`, 4 if it is `critical`; as with every command,
1 means that no node answered, 2 wrong usage.

`/healthz` does not follow the verdict. It answers 503 only if a restart of the process would help: the process has not
looked after itself, or has not applied what is committed, for 30 s. A supervisor that restarts what fails `/healthz`
therefore restarts no process when the quorum is lost. Use `/readyz` for what should be told or routed around.

A structure that is about to be published for the first time raises the alarm `not-published` only after three reporting
periods. What a node with no quorum signs by itself is what it shows ([publishing.md](../explanation/publishing.md)).
Gossip under another farm's key is a verdict only of a node that lacks nodes of its own farm, and an alarm while a
server of the farm is down: farms that share a network do not disturb each other.
"""


def _row(kind: str, meaning: Meaning) -> str:
    severity: Severity = meaning.severity
    ready = 200 if meaning.is_ready else 503
    alarm = "" if meaning.alarm is None else f"`{meaning.alarm.kind}`"
    return f"| `{kind}` | {meaning.text} | {severity.value} | {ready} | {EXIT_STATUS[severity]} | {alarm} |\n"


def page() -> str:
    """The document."""
    return HEAD + "".join(_row(kind.value, meaning) for kind, meaning in MEANINGS.items()) + FOOT
