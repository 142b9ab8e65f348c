"""Changes of the member set, planned: which configuration comes next on the way from one to another (Raft section 6).

    joint    C_old ──▶ C_old,new ──committed──▶ C_new ──committed──▶ done     any number of servers at once
    single   C_old ──▶ C_new ──committed──▶ done                              voters differ by one server at most

Switching directly is only safe while every majority of C_old shares a server with every majority of C_new, which one
server more or less leaves so; otherwise two leaders could be elected in one term, one by each. In between, joint
consensus needs both majorities. Learners and endpoints count in no majority, so they may change with any step.

Pure: a plan depends on the two configurations and on what the protocol can say. Who drives it, and when, is told in
`reconfiguration`.
"""

from enum import Enum

from consensus.core.model import Configuration, Server, possible_id

MAX_MEMBERS = 64
"""Servers that one configuration may name."""


class ChangeRefusal(Enum):
    """Why a change of the configuration was refused; nothing was appended, and asking again may be right later."""

    NOT_LEADER = "not-leader"
    NO_COMMIT_IN_TERM = "no-commit-in-term"
    """The leader has not committed an entry of its own term yet: a change of a leader before may be unfinished."""
    BUSY = "busy"
    CHANGE_UNDER_WAY = "change-under-way"
    NO_VOTERS = "no-voters"
    SERVER_TWICE = "server-twice"
    """A server stands twice in the target, or as a voter and as a learner."""
    IMPOSSIBLE_ID = "impossible-id"
    """The target names an id that no server can have, or one of another kind than the group's."""
    TOO_MANY_SERVERS = "too-many-servers"
    MORE_THAN_ONE_SERVER = "more-than-one-server"
    """The protocol, or a server that lacks joint consensus, allows one server more or less at a time."""
    NO_LEARNERS = "no-learners"
    """The protocol, or a server that lacks the extension, cannot name learners."""
    CATCH_UP_TOO_SLOW = "catch-up-too-slow"
    """A new server could not come within an election timeout of the leader's log in the rounds that it had."""
    CATCH_UP_STALLED = "catch-up-stalled"
    """A new server does not answer, or makes no progress."""
    NEW_SERVER_IN_LATER_TERM = "new-server-in-later-term"
    """A new server has seen a later term than the leader's: it brings a history, and must begin with an empty one."""
    LEADERSHIP_LOST = "leadership-lost"
    """The leader stepped down before anything was appended."""


def possible_configuration(configuration: Configuration) -> bool:
    """Whether it has voters, names nobody twice in one list, makes no voter a learner, and has possible ids."""
    return (
        bool(configuration.voters)
        and _named_once(configuration)
        and len(configuration.member_ids) <= MAX_MEMBERS
        and _possible_ids(configuration)
    )


def target_refusal(current: Configuration, target: Configuration) -> ChangeRefusal | None:
    """Why `target` can be no configuration to change to, whatever the protocol; None if it can."""
    if not target.voters:
        return ChangeRefusal.NO_VOTERS
    if target.is_joint or not _named_once(target):
        return ChangeRefusal.SERVER_TWICE
    if not _possible_ids(current, target):
        return ChangeRefusal.IMPOSSIBLE_ID
    if len(current.member_ids | target.member_ids) > MAX_MEMBERS:
        return ChangeRefusal.TOO_MANY_SERVERS
    return None


def newcomers(current: Configuration, target: Configuration) -> tuple[Server, ...]:
    """Who would vote and does not yet: they catch up first, or the group could not commit until they have."""
    return tuple(server for server in target.voters if server.server_id not in current.voter_ids)


def first_step(
    current: Configuration, target: Configuration, *, joint: bool, learners: bool
) -> Configuration | ChangeRefusal:
    """What to append first on the way from `current`, which is not joint, to `target`."""
    if target.learners and not learners:
        return ChangeRefusal.NO_LEARNERS
    if len(current.voter_ids ^ target.voter_ids) <= 1:
        return target
    if not joint:
        return ChangeRefusal.MORE_THAN_ONE_SERVER
    return Configuration(target.voters, current.voters, target.learners)


def leave_joint(configuration: Configuration) -> Configuration:
    """C_new of C_old,new."""
    return Configuration(configuration.voters, (), configuration.learners)


def _possible_ids(*configurations: Configuration) -> bool:
    """Whether all ids are in range and of one kind: ids of different kinds have no order among each other."""
    ids = [server_id for configuration in configurations for server_id in configuration.member_ids]
    return len(set(map(type, ids))) == 1 and all(map(possible_id, ids))


def _named_once(configuration: Configuration) -> bool:
    lists = (
        (*configuration.voters, *configuration.learners),
        configuration.old_voters,
    )
    return all(len({server.server_id for server in servers}) == len(servers) for servers in lists)
