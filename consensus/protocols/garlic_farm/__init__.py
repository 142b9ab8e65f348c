"""The Garlic Farm protocol: servers and clients over TLS or I2P, with handshake and proof of identity.

`PeerLinks` is the `Transport` that a server sends by, `GarlicFarmServer` listens, `GarlicFarmClient` finds the leader.
The package loads a name at its first use. Connections without a handshake are not part of it; `tests.node.plain_peers`
has them for JRaft's servers.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
