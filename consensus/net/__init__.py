"""Network parts of all protocols: TLS, bounded acceptance, delays before retries; and a network in memory.

Public names are imported at first use: the network in memory works without cryptography.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
