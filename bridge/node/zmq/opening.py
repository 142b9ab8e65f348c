"""Opens the ØMQ Raft endpoint of a node, if its settings ask for one.

The endpoint takes a few megabytes, and pyzmq, which is an extra. A node without `[zmq]` must not pay for either, so
what needs pyzmq is imported here, at the start of a node that wants it, and nowhere else.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, cast

import trio

from bridge.node.events.alarms import NodeStopped
from bridge.node.founded_farm import CurrentFarm
from bridge.node.local_node import LocalNode

EXTRA: Final = "zmq"
INSTALL: Final = "install the extra (pip install 'garlicfarm[zmq]'), or remove [zmq] from the settings"


if TYPE_CHECKING:
    from bridge.node.zmq.endpoint import EndpointKeys, FarmEndpoint


def is_installed() -> bool:
    """Whether pyzmq is there."""
    return find_spec(EXTRA) is not None


async def read_zmq_keys(local: LocalNode) -> "EndpointKeys | None":
    """Read in a thread what `zmq_endpoint` needs; raises `KeyFileError`."""
    settings = local.configuration.zmq
    if settings is None or not is_installed():
        return None
    # To import the endpoint takes a while as well.
    module = await trio.to_thread.run_sync(import_module, "bridge.node.zmq.endpoint")
    return cast(
        "EndpointKeys | None", await trio.to_thread.run_sync(module.read_keys, settings, local.configuration.state_dir)
    )


@contextmanager
def zmq_endpoint(
    local: LocalNode, current: CurrentFarm, keys: "EndpointKeys | None" = None
) -> "Iterator[FarmEndpoint | None]":
    """Have the endpoint bound while the block lasts; None if there is to be none. `keys`: of `read_zmq_keys`.

    Raises `NodeStopped`.
    """
    settings = local.configuration.zmq
    if settings is None:
        yield None
        return
    if not is_installed():
        raise NodeStopped(f"zmq.listen needs pyzmq, which is not installed: {INSTALL}")
    from bridge.node.zmq.endpoint import open_endpoint  # noqa: PLC0415 - see the module

    with open_endpoint(local, settings, current, keys) as endpoint:
        yield endpoint
