"""ØMQ Raft: servers among its peers, an endpoint for its clients, and a client, over pyzmq (the extra `zmq`).

Public names are imported at first use, so the wire can be used without pyzmq. In these modules, *the package* is the
npm package `zmq-raft`.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
