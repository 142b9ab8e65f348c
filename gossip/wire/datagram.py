"""The eight messages of the RFC and their bytes: `encode` and `decode`.

`layout.py` says how a datagram is built and under which limits; `encoding.py` and `decoding.py` are its two directions.
A datagram comes from anybody, so `decode` returns a message or raises `DatagramError`, nothing else. Whether a node
really said what its info claims is the question of `identity.py`; whether the sender may speak at all, of `seal.py`.
"""

from gossip.wire.decoding import decode
from gossip.wire.encoding import encode
from gossip.wire.layout import Code, DatagramError

__all__ = ["Code", "DatagramError", "decode", "encode"]
