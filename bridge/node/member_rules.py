"""Who may become a member by the Garlic Farm protocol's own words, in a farm whose members are known by gossip.

    AddServerRequest     the log has given out the id, and the router's signed metadata tells where it listens
    RemoveServerRequest  enough voters remain

Whoever holds the farm key can say these words, so they must not be a way around what the reconciler and the log
decide: an id that the log has not given out would be somebody whom nobody can tell from anybody else, and a farm that
was talked below its size has lost what its founders agreed on.
"""

from collections.abc import Callable
from dataclasses import dataclass

from consensus.core.position import Configuration, Server, ServerId
from consensus.node.garlic_farm_dial import PeerAddress


@dataclass(frozen=True, slots=True)
class FarmMemberRules:
    """The rules of one farm; `expect` and `voters_max` as in its settings."""

    resolve: Callable[[ServerId], PeerAddress | None]
    voters: Callable[[], frozenset[ServerId]]
    expect: int
    voters_max: int

    def may_add(self, server: Server) -> PeerAddress | str:
        """Where the newcomer listens, or why it cannot be a voter."""
        ceiling = max(self.voters_max, self.expect)
        if len(self.voters()) >= ceiling:
            return (
                f"the farm has {ceiling} voters already, as many as consensus.voters_max allows;"
                " a router that joins by gossip becomes an observer"
            )
        address = self.resolve(server.server_id)
        if address is None:
            return (
                "the log has not given out this id, or nobody knows where that router listens: give the router the"
                " farm key and start it, and it joins by gossip (docs/changing-servers.md)"
            )
        return address

    def may_remove(self, server: ServerId, configuration: Configuration) -> str | None:
        """None if enough voters remain."""
        if len(configuration.voter_ids - {server}) < self.expect:
            return f"a farm of {self.expect} needs another voter in its place first"
        return None
