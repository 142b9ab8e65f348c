"""What the Raft server tells of itself, as events of the trace and alarms: who leads, who is a member, a full disk."""

from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from consensus import ConfigurationChanged, ContentRejected, DiskFull, Notice, Role, RoleChanged, integer_id


def note_raft(notice: Notice, trace: EventLog, alarms: Alarms) -> None:
    """One notice of the server, written down."""
    match notice:
        case RoleChanged(role, term, leader):
            if role is Role.LEADER:
                trace.append("leader-elected", {"term": term})
            elif leader is not None:
                trace.append("leader-followed", {"term": term, "leader": integer_id(leader)})
            elif role is Role.CANDIDATE:
                trace.append("election-started", {"term": term})
            else:
                trace.append("leader-unknown", {"term": term})
        case ConfigurationChanged(configuration):
            trace.append(
                "configuration-changed",
                {
                    "voters": " ".join(map(str, sorted(configuration.voter_ids))),
                    "learners": " ".join(map(str, sorted(configuration.learner_ids))),
                },
            )
        case DiskFull(full):
            if full:
                alarms.set(
                    "disk-full",
                    "the disk of the state directory is full: nothing new is stored or acknowledged",
                    "free some space, the node goes on by itself; see docs/reference/alarms.md",
                )
            else:
                alarms.clear("disk-full")
        case ContentRejected():
            pass  # told by `farm_content`, which knows names
