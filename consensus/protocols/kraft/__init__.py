"""KRaft, Kafka's Raft (KIP-595), over kio's messages (the extra `kafka`): voters, observers, and a topic for clients.

What is named here is fetched when it is first used, so nothing of kio is loaded before it is needed.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
