"""What a node's life begins with: identity, generation, keys and remembered peers, out of its state directory."""

from contextlib import ExitStack
from dataclasses import dataclass

from gossip.core.keyring import Keyring
from gossip.core.member import Address
from gossip.node.identity import Identity, begin_generation, exclusive, load_identity
from gossip.node.settings import GroupSettings
from gossip.node.state_files import known_chain, known_peers


@dataclass(frozen=True, slots=True)
class StartupState:
    """The beginning of one life. `chain` is none if datagrams travel in clear."""

    identity: Identity
    generation: int
    chain: Keyring | None
    peers: tuple[Address, ...] = ()


def load_startup_state(config: GroupSettings, stack: ExitStack) -> StartupState:
    """Begin the next life; the state directory is ours until the stack unwinds."""
    ring, directory = config.key_ring, config.state_directory
    chain = None if ring is None else ring.chain
    if directory is None:
        return StartupState(Identity.throwaway(), 1, chain)
    stack.enter_context(exclusive(directory))
    identity = load_identity(directory)
    if ring is not None and chain is not None:
        known = known_chain(directory, ring.label)
        chain = chain if known is None else chain.merge(known)
    return StartupState(identity, begin_generation(directory, identity.node_id), chain, known_peers(directory))
