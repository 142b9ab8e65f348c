"""Stored state of a server: functions that open, read, verify or rebuild it, and a durable write of a file.

`open_stored_log` and `verify_storage` may also read the directory of a running server. A server itself opens its
storage by `consensus.open_server`. Public names are imported at first use.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
