"""What any protocol needs of a network: TLS, bounded acceptance, delays before retries; and a network in memory.

What is named here is fetched when it is first used: the network in memory needs no cryptography.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
