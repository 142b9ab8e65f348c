"""Opens the sockets of an agent, and says in the operator's words why one cannot be opened."""

from collections.abc import Callable

from gossip.core.member import Address
from gossip.node.endpoints import endpoint
from gossip.node.settings import ConfigError
from gossip.node.udp import DatagramSocket


def opened(
    setting: str, address: Address, how: Callable[[Address, int], DatagramSocket], limit_bytes: int
) -> DatagramSocket:
    """The socket for a setting; `ConfigError` names the setting."""
    try:
        return how(address, limit_bytes)
    except OSError as error:
        raise ConfigError(
            f"{setting} = {endpoint(address)} cannot be opened ({error.strerror}): choose an address of this machine "
            "and a port that no other process uses"
        ) from error
