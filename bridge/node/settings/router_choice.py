"""The router that a node's settings say, and where it keeps structures, if it is of the kind that does."""

from collections.abc import Sequence

from bridge.node.events.alarms import Alarms
from bridge.node.router.host import HostSampler, LoopLag
from bridge.node.router.i2cp_router import I2cpRouter
from bridge.node.router.router import FileRouter
from bridge.node.security.signing_keys import HeldKey
from bridge.node.settings.configuration import NodeConfiguration
from bridge.wire.i2p.destination_keys import SigningKey


def make_router(
    configuration: NodeConfiguration, host: HostSampler, lag: LoopLag, alarms: Alarms, keys: Sequence[HeldKey]
) -> FileRouter | I2cpRouter:
    """Made, not running; raises `KeyFileError` where a password file cannot be used."""
    settings, leaves = configuration.router, configuration.leaves
    if settings.i2cp is None:
        return FileRouter(settings.directory, leaves, host, lag, demo=configuration.demo)

    def signing_key_of(master_hash: bytes) -> SigningKey | None:
        # Asked each time: a renewed key counts at once.
        return next((held.key for held in keys if held.master_hash == master_hash), None)

    return I2cpRouter(settings.i2cp.access(), leaves, host, lag, alarms, signing_key_of=signing_key_of)


def structure_files(router: FileRouter | I2cpRouter, keys: Sequence[HeldKey]) -> dict[str, str]:
    """Master destination → the file with its structure, where there is one."""
    if not isinstance(router, FileRouter):
        return {}
    paths = {held.master: router.path_of(held.master_hash) for held in keys}
    return {master: str(path) for master, path in paths.items() if path.exists()}
