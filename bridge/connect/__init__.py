"""The client of a farm: it fetches the signed list of leaves, chooses one, and opens streams to it through SAM.

    async with connect(link) as farm:
        stream = await farm.open_stream()

`link` is the URI from `garlicfarm link`. Public names are imported at first use.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
