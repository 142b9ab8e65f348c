"""Rules for members that join or leave by messages of the Garlic Farm protocol.

    AddServerRequest      the log has assigned the id and has not removed it, there is room among the voters, and the
                          node's address is known
    RemoveServerRequest   enough voters remain, and the server does not reply (it left, or is dead) or the log has
                          removed it

Any holder of the farm key can send these messages, so they must not bypass the decisions of the reconciler and the log.
A server with an unassigned id could not be distinguished from any other. A farm with fewer voters than `expect` would
violate the agreement of its founders. A live server would be added again by the leader immediately; only an operator
can remove it, by an entry of the log.
"""

from collections.abc import Callable, Collection

from msgspec import Struct

from bridge.core.formation.founding import Founding
from bridge.node.raft.applied_state import AppliedState
from bridge.node.settings.timing import Profile
from consensus import Configuration, ConsensusServer, RaftDescription, Server, ServerId
from consensus.protocols.garlic_farm import MembershipOptions, PeerAddress


class FarmMemberRules(Struct, frozen=True):
    """The rules of one farm: `expect` is from the founding, `voters_max` from the settings, `removed` from the log."""

    resolve: Callable[[ServerId], PeerAddress | None]
    describe: Callable[[], RaftDescription]
    removed: Callable[[], Collection[int]]
    expect: int
    voters_max: int
    contact_within_ms: int

    def may_add(self, server: Server) -> PeerAddress | str:
        """Return the address of the new server, or the reason why it cannot be a voter."""
        ceiling = max(self.voters_max, self.expect)
        if server.server_id in self.removed():
            return "the log has removed this server or its identity from the farm (`garlicfarm help servers`)"
        if len(self.describe().configuration.voter_ids) >= ceiling:
            return (
                f"the farm has {ceiling} voters, the limit of consensus.voters_max; a newly started node becomes an"
                " observer"
            )
        address = self.resolve(server.server_id)
        if address is None:
            return (
                "the log has not assigned this id, or that node's address is not known: give the node the farm key"
                " and start it, and it joins automatically (`garlicfarm help servers`)"
            )
        return address

    def may_remove(self, server: ServerId, configuration: Configuration) -> str | None:
        """Return None if the leader may remove the server, by the rules of the module; otherwise the reason."""
        if len(configuration.voter_ids - {server}) < self.expect:
            return f"a farm of {self.expect} needs another voter as a replacement first"
        answers = (
            each.contact_ms is not None and each.contact_ms <= self.contact_within_ms
            for each in self.describe().followers
            if each.server_id == server
        )
        if any(answers) and server not in self.removed():
            return "it answers, and would be added again: stop it, or run `garlicfarm servers remove`"
        return None


def farm_member_rules(
    applied_state: AppliedState,
    server: ConsensusServer,
    resolve: Callable[[ServerId], PeerAddress | None],
    founding: Founding,
    profile: Profile,
    voters_max: int,
) -> FarmMemberRules:
    """Return the rules, which read this node's log and server at each call."""

    def removed() -> frozenset[int]:
        outlawed = (server_id for server_id, each in applied_state.state.admitted.items() if not each.is_member)
        return frozenset(applied_state.state.removed) | frozenset(outlawed)

    return FarmMemberRules(
        resolve,
        lambda: server.describe().raft,
        removed,
        expect=len(founding.founders),
        voters_max=voters_max,
        contact_within_ms=profile.contact_within_ms,
    )


def member_request_tuning(profile: Profile) -> MembershipOptions:
    """Return the longest times of an invitation and of a departure, for the links of a profile."""
    reply_s = profile.links.reply_timeout_s
    return MembershipOptions(invitation_s=5 + 5 * reply_s, leave_s=reply_s)
