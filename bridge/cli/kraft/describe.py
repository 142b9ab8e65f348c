"""`garlicfarm kraft describe`: a quorum as its leader sees it, in the tables of `kafka-metadata-quorum describe`.

    --status           the leader, the lag of the followers, the voters
    --replication      a row for each replica: the leader, the followers, the observers
      without --wide   on a narrow terminal, a line for each field in place of Kafka's table

The figures are computed as in Kafka's tool. *Lag in time* of a follower is the time since it last had all of the
leader's log. It is 0 for a follower that has all of it, and -1 if the leader does not know. In the reply of
a voter that does not lead, both lags are -1: it does not know the ends of other logs.
"""

import json
import time
from collections.abc import Iterable, Sequence

import click

from bridge.api.cluster_outputs import KraftDescribeOutput, KraftReplicaView
from bridge.cli.kraft.options import Quorum, quorum_options
from bridge.cli.options import json_option, watchable, wide_option
from bridge.cli.printing import echo, end_with_json, print_table
from consensus.protocols import kafka
from consensus.protocols import kraft as protocol

_HEADINGS = (
    "NodeId",
    "DirectoryId",
    "LogEndOffset",
    "Lag",
    "LastFetchTimestamp",
    "LastCaughtUpTimestamp",
    "Status",
)
_NAME_WIDTH = 24


@click.command()
@click.option("--status", "view", flag_value="status", default="status", help="The summary. This is the default.")
@click.option("--replication", "view", flag_value="replication", help="A row for each replica.")
@click.option("--human-readable", is_flag=True, help="With --replication: times relative to now.")
@wide_option
@quorum_options
@json_option
@watchable
def describe(quorum: Quorum, *, view: str, human_readable: bool, wide: bool, as_json: bool) -> None:
    """Show a quorum as its leader sees it, in the tables of `kafka-metadata-quorum describe`.

    The servers may be ours, Kafka's controllers, or both. The leader is found from any of them.
    """
    state = quorum.ask(lambda client: client.describe())
    end_with_json(_output(state), as_json=as_json)
    if view == "status":
        for name, text in _status(state):
            echo(f"{name + ':':<{_NAME_WIDTH}}{text}")
    else:
        now_ms = time.time_ns() // 1_000_000 if human_readable else None
        print_table(_HEADINGS, [_row(each, now_ms) for each in _output(state).replicas], is_kept=wide)


def _status(state: "protocol.QuorumDescription") -> Sequence[tuple[str, str]]:
    lag, lag_ms = _max_lag(state)
    return (
        ("ClusterId", state.cluster_id),
        ("LeaderId", str(state.leader_id)),
        ("LeaderEpoch", str(state.leader_epoch)),
        ("HighWatermark", str(state.high_watermark)),
        ("MaxFollowerLag", _number(lag)),
        ("MaxFollowerLagTimeMs", str(lag_ms)),
        ("CurrentVoters", _named(state, state.voters)),
        ("CurrentObservers", _named(state, state.observers)),
    )


def _leader(state: "protocol.QuorumDescription") -> "protocol.QuorumReplica | None":
    """Return the leader; None for a removed leader, which leads until its removal is committed and is not a voter."""
    return next((each for each in state.voters if each.node_id == state.leader_id), None)


def _max_lag(state: "protocol.QuorumDescription") -> tuple[int | None, int]:
    """Return the lag of the slowest voter in records and in milliseconds."""
    leader = _leader(state)
    if leader is None:
        return 0, -1
    last = min(state.voters, key=lambda each: each.log_end_offset)
    return _lag(state, last), _behind_ms(leader, last)


def _lag(state: "protocol.QuorumDescription", replica: "protocol.QuorumReplica") -> int | None:
    """Return the number of records that a replica lacks; None if the server that replied does not know."""
    leader = _leader(state)
    if leader is None:
        return state.high_watermark - replica.log_end_offset
    # Only a leader knows when it had its own log. Kafka before 3.3 does not send this time.
    if leader.last_caught_up_ms < 0 and any(each.log_end_offset < 0 for each in state.voters):
        return None
    return leader.log_end_offset - replica.log_end_offset


def _behind_ms(leader: "protocol.QuorumReplica", replica: "protocol.QuorumReplica") -> int:
    if replica.node_id == leader.node_id:
        return 0
    if leader.last_caught_up_ms < 0 or replica.last_caught_up_ms < 0:
        return -1
    return leader.last_caught_up_ms - replica.last_caught_up_ms


def _named(state: "protocol.QuorumDescription", replicas: "Iterable[protocol.QuorumReplica]") -> str:
    """Return a list as Kafka's tool prints it."""
    return f"[{', '.join(_name(state, each) for each in replicas)}]"


def _name(state: "protocol.QuorumDescription", replica: "protocol.QuorumReplica") -> str:
    text = f'{{"id": {replica.node_id}'
    if replica.directory_id.int:
        text += f', "directoryId": {json.dumps(kafka.uuid_text(replica.directory_id))}'
    listeners = state.listeners.get(replica.node_id)
    if listeners:
        text += f', "endpoints": {json.dumps(list(map(_url, listeners)))}'
    return text + "}"


def _url(listener: "protocol.Endpoint") -> str:
    host = f"[{listener.host}]" if ":" in listener.host else listener.host
    return f"{listener.name}://{host}:{listener.port}"


def _row(replica: KraftReplicaView, now_ms: int | None) -> Sequence[str]:
    return (
        str(replica.id),
        replica.directory_id,
        str(replica.log_end_offset),
        _number(replica.lag),
        _when(replica.last_fetch_ms, now_ms),
        _when(replica.last_caught_up_ms, now_ms),
        replica.status,
    )


def _number(value: int | None) -> str:
    return "-1" if value is None else str(value)


def _when(time_ms: int | None, now_ms: int | None) -> str:
    return _number(time_ms) if time_ms is None or now_ms is None else f"{now_ms - time_ms} ms ago"


def _output(state: "protocol.QuorumDescription") -> KraftDescribeOutput:
    lag, lag_ms = _max_lag(state)
    leader = [each for each in state.voters if each.node_id == state.leader_id]
    followers = [each for each in state.voters if each.node_id != state.leader_id]
    replicas = ((leader, "Leader"), (followers, "Follower"), (state.observers, "Observer"))
    return KraftDescribeOutput(
        cluster=state.cluster_id,
        leader_id=state.leader_id,
        leader_epoch=state.leader_epoch,
        high_watermark=state.high_watermark,
        max_follower_lag=lag,
        max_follower_lag_ms=None if lag_ms < 0 else lag_ms,
        replicas=tuple(_view(state, each, status) for group, status in replicas for each in group),
    )


def _view(state: "protocol.QuorumDescription", replica: "protocol.QuorumReplica", status: str) -> KraftReplicaView:
    return KraftReplicaView(
        id=replica.node_id,
        directory_id=kafka.uuid_text(replica.directory_id),
        status=status,
        log_end_offset=replica.log_end_offset,
        lag=_lag(state, replica),
        last_fetch_ms=None if replica.last_fetch_ms < 0 else replica.last_fetch_ms,
        last_caught_up_ms=None if replica.last_caught_up_ms < 0 else replica.last_caught_up_ms,
        listeners=tuple(map(_url, state.listeners.get(replica.node_id, ()))),
    )
