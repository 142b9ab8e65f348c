"""Opens the ØMQ Raft endpoint of a node, if its settings ask for one.

The endpoint takes a few megabytes, and pyzmq, which is an extra. A node without `[zmq]` must not pay for either, so
what needs pyzmq is imported here, at the start of a node that wants it, and nowhere else.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from bridge.node.events.alarms import NodeStopped
from bridge.node.founded_farm import CurrentFarm
from bridge.node.local_node import LocalNode

EXTRA: Final = "zmq"
INSTALL: Final = "install the extra (pip install 'garlicfarm[zmq]'), or take [zmq] out of the configuration"


if TYPE_CHECKING:
    from bridge.node.zmq.endpoint import FarmEndpoint


def is_installed() -> bool:
    """Whether pyzmq is there."""
    return find_spec(EXTRA) is not None


@contextmanager
def zmq_endpoint(local: LocalNode, current: CurrentFarm) -> "Iterator[FarmEndpoint | None]":
    """Have the endpoint bound while the block lasts; None if there is to be none.

    Raises `NodeStopped` and `KeyFileError`.
    """
    settings = local.configuration.zmq
    if settings is None:
        yield None
        return
    if not is_installed():
        raise NodeStopped(f"zmq.listen needs pyzmq, which is not installed: {INSTALL}")
    from bridge.node.zmq.endpoint import open_endpoint  # noqa: PLC0415 - see the module

    with open_endpoint(local, settings, current) as endpoint:
        yield endpoint
