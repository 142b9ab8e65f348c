"""The farm key file: the shared secret of a farm, in TOML (docs/reference/key-files.md, "Farm key").

A holder of the keys can announce its own founding. So a node that joins later needs the cluster id to recognize its
farm. `garlicfarm keys export`, run on a node of the farm, writes the cluster id into the exported file. A node whose
file has the cluster id never creates a farm.

Credentials for the Digest authentication of the Garlic Farm protocol are not stored. They are derived from a key and
the cluster name, so two files cannot disagree about them, and a rotation changes them. The epoch is not an input of the
derivation, because a later epoch may use the same key again. Members receive such an epoch at different times, and must
still accept each other.

A running farm changes its keys by gossip; a member exports the current ones as a new file. The text is TOML, so that an
operator can see which farm a file is for.
"""

import os
import re
from typing import Annotated, Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Meta, Struct
from msgspec.structs import replace

from bridge.core.formation.founding import CLUSTER_ID_BYTES, NODE_ID_BYTES
from bridge.core.log.fields import NAME, NAME_FORM
from bridge.wire.keys.text import KEY_BYTES, KeyTextError, decode_key, encode_key, other_version, parse
from gossip import CLOCK_LIMIT, ERA_LIMIT, KEYS_LIMIT, LABEL_BYTES, Keyring, farm_label

VERSION: Final = 1
EXPECT_LIMIT: Final = 9
DEFAULT_CLUSTER: Final = "farm"
_WHAT: Final = "farm key file"


class FarmKeyError(ValueError):
    """The text is not a farm key file, or such a key cannot be made. The message never contains key material."""


class DigestCredentials(Struct, frozen=True):
    """The credentials that servers of the farm present in the HTTP upgrade."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"DigestCredentials(username={self.username!r})"


class FarmKey(Struct, frozen=True):
    """The file's content. Secret: its repr names only the farm."""

    cluster: str
    expect: int
    epoch: int
    label: bytes
    gossip_keys: tuple[bytes, ...]
    retired_keys: tuple[bytes, ...] = ()
    era: int = 0
    cluster_id: bytes | None = None
    """The cluster id of the existing farm, in an exported file."""
    founders: frozenset[bytes] = frozenset()
    """Node ids of the only nodes that may create the farm, if an operator listed them."""

    def __repr__(self) -> str:
        return (
            f"FarmKey(cluster={self.cluster!r}, expect={self.expect}, epoch={self.epoch}, label={self.label.hex()!r}, "
            f"keys={len(self.gossip_keys)}, retired={len(self.retired_keys)})"
        )

    @property
    def age(self) -> tuple[int, int]:
        """Era and epoch. Of two files of one farm, the file with the greater pair is the later one."""
        return self.era, self.epoch

    @property
    def key_ring(self) -> Keyring:
        """The ring that seals and opens gossip."""
        primary, *others = self.gossip_keys
        return Keyring.of(primary, tuple(others), self.retired_keys, self.epoch, self.era, self.label)

    @property
    def digest_credentials(self) -> tuple[DigestCredentials, ...]:
        """The credentials of each open key. The node presents the first, of the sealing key, and accepts all."""
        return tuple(self._credentials_of(key) for key in self.gossip_keys)

    @property
    def earlier_credentials(self) -> tuple[DigestCredentials, ...]:
        """Credentials of the retired keys, newest first, which this node does not accept.

        After a replacement of all keys, the node still presents the newest of them (`bridge.node.security.farm_keys`).
        """
        return tuple(self._credentials_of(key) for key in self.retired_keys)

    def _credentials_of(self, key: bytes) -> DigestCredentials:
        purpose = f"garlic farm, digest 1: {self.cluster}".encode()
        derived = HKDF(SHA256(), 4 + KEY_BYTES, self.label, purpose).derive(key)
        return DigestCredentials(username=f"farm-{derived[:4].hex()}", password=derived[4:].hex())

    def following(self, chain: Keyring) -> "FarmKey":
        """Return this farm's key file with the present keys of gossip."""
        return replace(
            self,
            epoch=chain.used_at,
            gossip_keys=(chain.primary, *chain.others),
            retired_keys=chain.retired,
            era=chain.era,
        )


def new_farm_key(expect: int, cluster: str = DEFAULT_CLUSTER) -> FarmKey:
    """Make the key of a farm that `expect` nodes will create."""
    key = os.urandom(KEY_BYTES)
    return _checked(FarmKey(cluster, expect, epoch=1, label=farm_label(key), gossip_keys=(key,)))


class _FarmFile(Struct, forbid_unknown_fields=True):
    version: int
    cluster: str
    expect: int
    epoch: Annotated[int, Meta(ge=1, lt=CLOCK_LIMIT)]
    label: str
    gossip_keys: Annotated[list[str], Meta(min_length=1, max_length=KEYS_LIMIT)]
    retired_keys: Annotated[list[str], Meta(max_length=KEYS_LIMIT)] = []
    era: Annotated[int, Meta(ge=0, lt=ERA_LIMIT)] = 0
    cluster_id: str | None = None
    founders: Annotated[list[str], Meta(max_length=2 * EXPECT_LIMIT - 1)] = []

    def __repr__(self) -> str:
        # The repr of a Struct would show the keys.
        return f"_FarmFile({self.cluster!r}, epoch {self.epoch})"


def parse_farm_key(text: str) -> FarmKey:
    """Read a farm key file."""
    try:
        file = parse(text, _FarmFile, _WHAT)
        if file.version != VERSION:
            raise FarmKeyError(f"this farm key file {other_version(file.version, VERSION)}")
        return _checked(
            FarmKey(
                cluster=file.cluster,
                expect=file.expect,
                epoch=file.epoch,
                label=_hexadecimal(file.label, LABEL_BYTES, "label"),
                gossip_keys=tuple(decode_key(key, f"gossip_keys[{n}]") for n, key in enumerate(file.gossip_keys)),
                retired_keys=tuple(decode_key(key, f"retired_keys[{n}]") for n, key in enumerate(file.retired_keys)),
                era=file.era,
                cluster_id=None
                if file.cluster_id is None
                else _hexadecimal(file.cluster_id, CLUSTER_ID_BYTES, "cluster_id"),
                founders=frozenset(_hexadecimal(each, NODE_ID_BYTES, "founders") for each in file.founders),
            )
        )
    except KeyTextError as error:
        raise FarmKeyError(f"{error}. Make one with `garlicfarm keys new-farm --expect N`, or copy it again") from None


def farm_key_text(farm_key: FarmKey) -> str:
    """Return the text of the file; raise `FarmKeyError` for an epoch or an era that `parse_farm_key` would refuse."""
    if not 0 < farm_key.epoch < CLOCK_LIMIT or not 0 <= farm_key.era < ERA_LIMIT:
        raise FarmKeyError(f"no node reads a farm key file of epoch {farm_key.epoch} and era {farm_key.era}")
    gossip_keys = "".join(f'    "{encode_key(key)}",\n' for key in farm_key.gossip_keys)
    retired_keys = "".join(f'    "{encode_key(key)}",\n' for key in farm_key.retired_keys)
    era = (
        f"# All keys were replaced so often, to keep evicted nodes out.\nera = {farm_key.era}\n" if farm_key.era else ""
    )
    founded = (
        "# The farm exists: a node with this file joins this cluster and no other, and never creates one.\n"
        f'cluster_id = "{farm_key.cluster_id.hex()}"\n'
        if farm_key.cluster_id is not None
        else ""
    )
    listed = ", ".join(f'"{each.hex()}"' for each in sorted(farm_key.founders))
    # Left out once the farm is created: then it does not have an effect, and earlier versions cannot read it.
    exists = farm_key.cluster_id is not None
    founders = f"# Only these nodes may create the farm.\nfounders = [{listed}]\n" if listed and not exists else ""
    return (
        f"# The key of the Garlic Farm {farm_key.cluster!r}. A holder of this file can join it: keep it secret\n"
        "# (mode 0600), and copy it to each node of the farm and nowhere else.\n"
        f"version = {VERSION}\n"
        f'cluster = "{farm_key.cluster}"\n'
        f"# Exactly this many nodes create the farm. It must exceed half of all nodes that can ever take part.\n"
        f"expect = {farm_key.expect}\n"
        f"epoch = {farm_key.epoch}\n"
        f'label = "{farm_key.label.hex()}"\n'
        f"{era}"
        f"{founded}"
        f"{founders}"
        "# The first key seals; all open. `garlicfarm keys rotate` changes the keys of a farm that runs, and\n"
        "# `garlicfarm keys export FILE` writes the file that then belongs here.\n"
        f"gossip_keys = [\n{gossip_keys}]\n"
        f"retired_keys = [\n{retired_keys}]\n"
    )


def _hexadecimal(text: str, size: int, what: str) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != size:
        raise FarmKeyError(f"`{what}` in the farm key file is not {2 * size} hexadecimal digits")
    return value


def check_founders(founders: frozenset[bytes], expect: int) -> None:
    """Raise `FarmKeyError` unless any two sets of `expect` listed nodes have a common node."""
    if not expect <= len(founders) < 2 * expect:
        raise FarmKeyError(
            f"`founders` lists {len(founders)} nodes, and `expect` is {expect}: list {expect} to {2 * expect - 1} nodes"
        )


def _checked(farm_key: FarmKey) -> FarmKey:
    if re.fullmatch(NAME, farm_key.cluster) is None:
        raise FarmKeyError(f"cluster name {farm_key.cluster[:40]!r}: {NAME_FORM}")
    if not 1 <= farm_key.expect <= EXPECT_LIMIT:
        raise FarmKeyError(f"expect is {farm_key.expect}: 1 to {EXPECT_LIMIT} founders make a farm")
    if farm_key.founders:
        check_founders(farm_key.founders, farm_key.expect)
    try:
        _ = farm_key.key_ring
    except ValueError as error:
        raise FarmKeyError(f"the keys of the farm key file do not form a ring: {error}") from None
    return farm_key
