"""The master destinations that a node serves: the settings of each, and the node's keys for them.

    one master                         several
    [publishing]                       [[master]]
    signing_key = "signing.key"        signing_key = "blog.key"            may publish it
    publish = "auto"                   publish = "on"
                                       [[master]]
                                       destination = "…base64…"            serves its leaves, and never publishes

                                       [[leaf]]
                                       destination = "…base64…"
                                       master = "….b32.i2p"                otherwise it serves every master

A node without a master reports its leaves for every master of the farm, so small farms do not need a `[[master]]`. The
master of a key file is known only after the file is read. So the settings are read first, and `load_masters` reads the
files.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Final

from msgspec import Struct

from bridge.core.log.hashes import HASH_CHARACTERS
from bridge.core.log.records import MetaStatus, PublishConfig
from bridge.node.router.router import ServedLeaf
from bridge.node.security.signing_keys import PublishingKey
from bridge.node.settings.choices import PublishingPace
from bridge.node.settings.declared import Setting
from bridge.node.settings.reader import Section
from bridge.wire.i2p.structures import Destination, I2pError, address_of, destination_from_base64, hash_of_address
from gossip import Address
from gossip.node import endpoint

REPORTING_PERIOD_MS: Final = 30_000
REPORTING_PERIOD_I2P_MS: Final = 60_000
ADDRESS = re.compile(rf"([a-z2-7]{{{HASH_CHARACTERS}}})(?:\.b32\.i2p)?")
_PROBE = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,253})):([1-9][0-9]{0,4})")
_PORT_LIMIT: Final = 65_535
_BASE64: Final = attrgetter("base64")


class MasterError(ValueError):
    """The masters and leaves of a configuration contradict each other; the text contains the reason."""


def _leaf_destination(text: str) -> Destination:
    try:
        return destination_from_base64(text)
    except I2pError as error:
        raise ValueError(f"leaf destination {text[:16]!r}…: {error}") from error


def _probe(text: str) -> tuple[str, int]:
    found = _PROBE.fullmatch(text)
    if found is None or int(found[3]) > _PORT_LIMIT:
        raise ValueError(f"probe {text[:60]!r} is not host:port, e.g. 127.0.0.1:8080")
    return found[1] or found[2], int(found[3])


def _probe_text(probe: tuple[str, int]) -> str:
    return endpoint(Address(*probe))


def _master_hash(text: str) -> bytes:
    if ADDRESS.fullmatch(text) is None:
        raise ValueError(f"{text[:60]!r} is not the address of a master, {HASH_CHARACTERS} letters and .b32.i2p")
    return hash_of_address(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterSettings:
    """`[[master]]`: the key file that signs for a master, or, without a key, its destination."""

    signing_key: Annotated[
        Path | None, Setting("the key of one of several masters (at most 8), instead of `publishing.signing_key`")
    ] = None
    destination: Annotated[
        Destination | None,
        Setting(
            "the master's destination (base64), if this node does not have its key",
            example="base64 of the master's destination",
            parse=destination_from_base64,
            show=_BASE64,
        ),
    ] = None
    publish: Annotated[PublishConfig, Setting("like `publishing.publish`, for this master")] = PublishConfig.AUTO


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishingSettings:
    """`[publishing]`; the first two settings become None when they are moved to a master."""

    publish: Annotated[
        PublishConfig | None,
        Setting(
            '`"off"`: this node never publishes; `"on"`: it is preferred over nodes with `"auto"`',
            default='`"auto"`',
            shared=True,
            example="auto",
        ),
    ] = None
    signing_key: Annotated[
        Path | None, Setting("the node's signing key; without it the node reports and votes, and never publishes")
    ] = None
    pace: Annotated[
        PublishingPace,
        Setting(
            '`"reporting-period"` publishes a change with the next report; for `router.kind = "file"` only, since a'
            " router takes one structure a minute",
            shared=True,
            reported="pace",
        ),
    ] = PublishingPace.NORMAL
    reporting_period_ms: Annotated[
        int,
        Setting(
            "time between two reports of a server, in milliseconds; applies while this node leads: all servers use"
            " the leader's setting",
            500,
            600_000,
            default=f"{REPORTING_PERIOD_MS}; with `i2p` {REPORTING_PERIOD_I2P_MS}",
            shared=True,
            reported="reportingPeriod",
        ),
    ] = REPORTING_PERIOD_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafSettings(ServedLeaf):
    """`[[leaf]]`: a server tunnel of the router."""

    destination: Annotated[
        Destination,
        Setting(
            "a server tunnel of this router (at most 16): its destination (base64)",
            missing="missing: the base64 of the destination of one of your router's server tunnels",
            example="base64 of the destination of a server tunnel",
            parse=_leaf_destination,
            show=_BASE64,
        ),
    ]
    probe: Annotated[
        tuple[str, int] | None,
        Setting(
            "`host:port` of the tunnel's service, to probe",
            example="127.0.0.1:8080",
            parse=_probe,
            show=_probe_text,
        ),
    ] = None
    master_hash: Annotated[
        bytes | None,
        Setting(
            "the address of the leaf's master",
            default="all masters of the node",
            key="master",
            parse=_master_hash,
            show=address_of,
        ),
    ] = None


class Masters(Struct, frozen=True):
    """The masters that a node serves, with a key and without one."""

    keys: tuple[PublishingKey, ...] = ()
    keyless: tuple[MetaStatus, ...] = ()

    @property
    def hashes(self) -> tuple[bytes, ...]:
        """The hashes of all masters."""
        keyless = (destination_from_base64(each.destination).hash for each in self.keyless)
        return (*(held.master_hash for held in self.keys), *keyless)


def read_masters(
    sections: Sequence[Section], publishing: Section, single: PublishingSettings
) -> tuple[MasterSettings, ...]:
    """Read the masters of a file in either form."""
    publish = single.publish or PublishConfig.AUTO
    if not sections:
        if publish is PublishConfig.ON and single.signing_key is None:
            publishing.problem("publish", '"on" needs publishing.signing_key: without a key nothing can be signed')
        master = MasterSettings(publish=publish, signing_key=single.signing_key)
        return () if single.signing_key is None else (master,)
    for key in ("signing_key", "publish"):
        if publishing.has(key):
            publishing.problem(key, "belongs in each [[master]] if the file has any: move it there")
    return tuple(_read_master(section) for section in sections)


def _read_master(section: Section) -> MasterSettings:
    found = section.read(MasterSettings)
    if section.has("signing_key") == section.has("destination"):
        section.problem("signing_key", "give the key file of this master, or without a key its destination (base64)")
    elif found.signing_key is None and found.publish is PublishConfig.ON:
        section.problem("publish", '"on" needs a signing_key: without a key nothing can be signed')
    return found


def load_masters(settings: tuple[MasterSettings, ...], leaves: tuple[ServedLeaf, ...]) -> Masters:
    """Load the keys; raise `KeyFileError`, and `MasterError` if masters and leaves contradict each other."""
    keys = tuple(
        PublishingKey.load(each.signing_key, each.publish) for each in settings if each.signing_key is not None
    )
    keyless = tuple(
        MetaStatus(each.destination.base64, each.publish, publishing=False, last_published_time_ms=0)
        for each in settings
        if each.destination is not None
    )
    masters = Masters(keys, keyless)
    hashes = masters.hashes
    for each in hashes:
        if hashes.count(each) > 1:
            raise MasterError(f"two [[master]] have the address {address_of(each)}: keep one of them")
    for leaf in leaves:
        if leaf.master_hash is not None and leaf.master_hash not in hashes:
            raise MasterError(
                f"the leaf {leaf.destination.address} names the master {address_of(leaf.master_hash)}, which is not a"
                " [[master]] or signing key of this node: correct the address, or add the master"
            )
    return masters
