"""Exactly-once execution of clients' requests (Raft section 8).

The table of sessions is pure; the client, the state machine around the table and its clock need trio. Public
names are imported at first use.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
