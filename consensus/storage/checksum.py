"""CRC-32C (RFC 3720) of every record on disk, by the package `crc32c`.

The extension module is loaded without the package. The package would import `importlib.metadata` to read its own
version. That module loads parsers of mail, archives and command lines: two megabytes in every process with a log. If a
later release names the extension differently, the whole package is used.
"""

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any, Final

Checksum = Callable[..., int]
"""`crc32c(data, value=0)`: the checksum of `data`; `value` is the checksum of the bytes before `data`."""


def _extension() -> Any:
    package = find_spec("crc32c")
    places = None if package is None else package.submodule_search_locations
    found = None if places is None else PathFinder.find_spec("crc32c._crc32c", list(places))
    if found is None or found.loader is None:
        import crc32c  # noqa: PLC0415 - only where the extension cannot be had alone

        return crc32c
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


crc32c: Final[Checksum] = _extension().crc32c
