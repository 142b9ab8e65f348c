"""Opens the Kafka listener of a node, if its settings ask for one.

The listener takes some megabytes, and kio, which is an extra. A node without `[kafka]` must not pay for either, so what
needs kio is imported here, at the start of a node that wants it, and nowhere else.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import trio

from bridge.node.events.alarms import NodeStopped
from bridge.node.founded_farm import CurrentFarm
from bridge.node.local_node import LocalNode

if TYPE_CHECKING:
    from bridge.node.kafka.endpoint import FarmListener

MODULES: Final = ("kio", "cramjam")
INSTALL_KAFKA: Final = "install the extra (pip install 'garlicfarm[kafka]'), or remove [kafka] from the settings"


def missing_module() -> str | None:
    """The module of the extra that is not there; None: all are."""
    return next((each for each in MODULES if find_spec(each) is None), None)


@asynccontextmanager
async def kafka_listener(local: LocalNode, current: CurrentFarm) -> "AsyncIterator[FarmListener | None]":
    """Have the listener bound while the block lasts; None if there is to be none.

    Raises `NodeStopped` and `KeyFileError`.
    """
    settings = local.configuration.kafka
    if settings is None:
        yield None
        return
    missing = missing_module()
    if missing is not None:
        raise NodeStopped(f"kafka.listen needs {missing}, which is not installed: {INSTALL_KAFKA}")
    # It takes a while, and a thread lets the event loop have its turns meanwhile.
    await trio.to_thread.run_sync(import_module, "bridge.node.kafka.endpoint")
    from bridge.node.kafka.endpoint import open_listener  # noqa: PLC0415 - see the module

    async with open_listener(local, settings, current) as listener:
        yield listener
