"""Services of a log for Kafka's clients: connections, a topic, and consumer groups (the extra `kafka`).

A public name is imported at its first use, so kio (a library with Kafka's message schemas) is loaded only if needed.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
