"""The master destinations that a node serves: what it is told about each, and the keys that it holds for them.

    one master                         several
    [publishing]                       [[master]]
    signing_key = "signing.key"        signing_key = "blog.key"            may publish it
    publish = "auto"                   publish = "on"
                                       [[master]]
                                       destination = "…base64…"            serves leaves of it, and never publishes

                                       [[leaf]]
                                       destination = "…base64…"
                                       master = "….b32.i2p"                else it stands behind every master

A node without any master reports its leaves for every master of the farm, so small farms need no `[[master]]` at all.
Which master a key file belongs to is only known by reading it, hence two steps: settings, then `load_masters`.
"""

import base64
import re
from dataclasses import dataclass
from pathlib import Path

from bridge.core.log.hashes import HASH_CHARACTERS
from bridge.core.log.records import MetaStatus, PublishConfig
from bridge.node.router.router import Leaf
from bridge.node.security.signing_keys import HeldKey
from bridge.node.settings.reader import Section
from bridge.wire.i2p.structures import Destination, I2pError, address_of, destination_from_base64

ADDRESS = re.compile(rf"([a-z2-7]{{{HASH_CHARACTERS}}})(?:\.b32\.i2p)?")


class MasterError(ValueError):
    """The masters and leaves of a configuration do not fit together; the text says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterSettings:
    """One master: the key file that signs for it, or, without a key, what it is."""

    publish: PublishConfig = PublishConfig.AUTO
    signing_key: Path | None = None
    destination: Destination | None = None


@dataclass(frozen=True, slots=True)
class Masters:
    """The masters that a node serves, with a key and without one."""

    keys: tuple[HeldKey, ...] = ()
    keyless: tuple[MetaStatus, ...] = ()

    @property
    def hashes(self) -> tuple[bytes, ...]:
        """All of them."""
        keyless = (destination_from_base64(each.destination).hash for each in self.keyless)
        return (*(held.master_hash for held in self.keys), *keyless)


def read_masters(sections: list[Section], publishing: Section) -> tuple[MasterSettings, ...]:
    """The masters of a file, in either form; what is wrong is noted in the sections."""
    single = MasterSettings(
        publish=publishing.choice("publish", PublishConfig), signing_key=publishing.path("signing_key")
    )
    if single.publish is PublishConfig.ON and single.signing_key is None and not sections:
        publishing.problem("publish", '"on" needs publishing.signing_key: without a key nothing can be signed')
    if not sections:
        return () if single.signing_key is None else (single,)
    for key, told in (("signing_key", single.signing_key), ("publish", publishing.has("publish"))):
        if told:
            publishing.problem(key, "belongs into each [[master]] where there are any: move it there")
    return tuple(master for section in sections if (master := _read_master(section)) is not None)


def _read_master(section: Section) -> MasterSettings | None:
    signing_key, text = section.path("signing_key"), section.text("destination")
    publish = section.choice("publish", PublishConfig)
    section.finish()
    if (signing_key is None) == (text is None):
        section.problem("signing_key", "give the key file of this master, or without a key its destination (base64)")
        return None
    if text is not None and publish is PublishConfig.ON:
        section.problem("publish", '"on" needs a signing_key: without a key nothing can be signed')
    try:
        destination = None if text is None else destination_from_base64(text)
    except I2pError as error:
        section.problem("destination", str(error))
        return None
    return MasterSettings(publish=publish, signing_key=signing_key, destination=destination)


def read_leaf_master(section: Section) -> bytes | None:
    """The hash of the master that a leaf names by its address."""
    text = section.text("master")
    found = None if text is None else ADDRESS.fullmatch(text)
    if text is not None and found is None:
        section.problem(
            "master", f"{text[:60]!r} is not the address of a master, {HASH_CHARACTERS} letters and .b32.i2p"
        )
    return None if found is None else base64.b32decode(found[1].upper() + "====")


def load_masters(settings: tuple[MasterSettings, ...], leaves: tuple[Leaf, ...]) -> Masters:
    """The keys in hand; raises `KeyFileError`, and `MasterError` where masters and leaves do not fit together."""
    keys = tuple(HeldKey.load(each.signing_key, each.publish) for each in settings if each.signing_key is not None)
    keyless = tuple(
        MetaStatus(each.destination.base64, each.publish, publishing=False, last_published_time_ms=0)
        for each in settings
        if each.destination is not None
    )
    masters = Masters(keys, keyless)
    hashes = masters.hashes
    for each in hashes:
        if hashes.count(each) > 1:
            raise MasterError(f"two [[master]] are {address_of(each)}: keep one of them")
    for leaf in leaves:
        if leaf.master_hash is not None and leaf.master_hash not in hashes:
            raise MasterError(
                f"the leaf {leaf.destination.address} names the master {address_of(leaf.master_hash)}, and no"
                " [[master]] or signing key of this node is that one: correct the address, or add the master"
            )
    return masters
