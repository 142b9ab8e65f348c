"""What a node's life begins with: identity, generation, keys and remembered peers, out of its state directory."""

from contextlib import ExitStack
from dataclasses import dataclass

from gossip.core.keychain import KeyChain
from gossip.core.member import Address
from gossip.node.config import AgentConfig
from gossip.node.identity import Identity, begin_generation, exclusive, load_identity
from gossip.node.state_files import known_chain, known_peers


@dataclass(frozen=True, slots=True)
class Life:
    """The beginning of one life. `chain` is none if datagrams travel in clear."""

    identity: Identity
    generation: int
    chain: KeyChain | None
    peers: tuple[Address, ...] = ()


def begin_life(config: AgentConfig, stack: ExitStack) -> Life:
    """Begin the next life; the state directory is ours until the stack unwinds."""
    ring, directory = config.key_ring, config.state_directory
    chain = None if ring is None else ring.chain
    if directory is None:
        return Life(Identity.throwaway(), 1, chain)
    stack.enter_context(exclusive(directory))
    identity = load_identity(directory)
    if ring is not None and chain is not None:
        known = known_chain(directory, ring.label)
        chain = chain if known is None else chain.merge(known)
    return Life(identity, begin_generation(directory, identity.node_id), chain, known_peers(directory))
