"""Which of its settings a node reports to the farm (`config` of its entries): an allow-list.

What is not named here is never reported, so a setting that comes later is a secret until somebody decides otherwise.
Paths, addresses and names of keys are not in it: the log is read by every member, and kept.
"""

from bridge.node.settings.configuration import NodeConfiguration


def reported_settings(configuration: NodeConfiguration) -> dict[str, object]:
    """The members of `config`."""
    consensus, publishing = configuration.consensus, configuration.publishing
    found: dict[str, object] = {
        "transport": configuration.transport.kind.value,
        "timing": consensus.timing.value,
        "votersMax": consensus.voters_max,
        "grace": consensus.grace_ms,
        "admit": consensus.admit.value,
        "reportingPeriod": publishing.reporting_period_ms,
        "pace": publishing.pace.value,
        "routerKind": configuration.router.kind.value,
        "masters": len(configuration.masters),
        "leaves": len(configuration.leaves),
        "demo": configuration.demo,
    }
    if configuration.gossip is not None:
        found["gossipCapacity"] = configuration.gossip.capacity
    return found
