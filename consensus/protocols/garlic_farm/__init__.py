"""The Garlic Farm protocol: servers and clients over TLS or I2P, with handshake and proof of identity.

`PeerLinks` is the `Transport` of a server, `GarlicFarmServer` listens, `GarlicFarmClient` finds the leader. The package
loads a name at its first use. It does not support connections without a handshake; `tests.node.plain_peers` has them
for JRaft's servers.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
