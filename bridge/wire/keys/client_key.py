"""The file of a client key, with which a program that is no server signs entries for the farm.

    version = 1
    name = "pipeline"           its name in the farm
    public_key = "…"            base64; this is what a server admits (`garlicfarm node admit-client`)
    private_key = "…"           base64 of the Ed25519 seed; the file FILE.pub beside it is the same without this line

Its scopes say which entries it may write (`bridge.core.membership.client_keys`). It may write none until a server has
admitted it.
"""

import re
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct

from bridge.core.log.fields import NAME
from bridge.wire.keys.text import KeyTextError, decode_key, encode_key, parse

VERSION: Final = 1
_WHAT: Final = "client key file"
_PUBLIC: Final = "public client key file"


class ClientKeyError(ValueError):
    """The text is no client key file, or no such key can be made. The message never contains key material."""


@dataclass(frozen=True, slots=True, repr=False)
class ClientKeyFile:
    """The file's content. Secret: its repr names the key and nothing else."""

    name: str
    key: Ed25519PrivateKey

    def __repr__(self) -> str:
        """Names it without the private key."""
        return f"ClientKeyFile(name={self.name!r}, public_key={self.public_key!r})"

    @property
    def public_key(self) -> str:
        """In base64."""
        return encode_key(self.key.public_key().public_bytes_raw())


class _File(Struct, forbid_unknown_fields=True):
    version: int
    name: str
    public_key: str
    private_key: str

    def __repr__(self) -> str:
        """Without the private key: the repr of a Struct shows its fields."""
        return f"_File({self.name!r})"


def new_client_key(name: str) -> ClientKeyFile:
    """Make a key; raises `ClientKeyError` for a name that the farm does not take."""
    if re.fullmatch(NAME, name) is None:
        raise ClientKeyError(f"name {name[:40]!r}: 1 to 32 of letters, digits, `.`, `_`, `-`, no mark first")
    return ClientKeyFile(name, Ed25519PrivateKey.generate())


def parse_client_key(text: str) -> ClientKeyFile:
    """Read a client key file; raises `ClientKeyError`."""
    try:
        file = parse(text, _File, _WHAT)
        if file.version != VERSION:
            raise ClientKeyError(f"this {_WHAT} has version {file.version}, this garlicfarm reads {VERSION}: update it")
        key = Ed25519PrivateKey.from_private_bytes(decode_key(file.private_key, "private_key"))
    except KeyTextError as error:
        raise ClientKeyError(f"{error}. Make one with `garlicfarm keys new-client FILE --name N`") from None
    found = ClientKeyFile(file.name, key)
    if found.public_key != file.public_key or re.fullmatch(NAME, file.name) is None:
        raise ClientKeyError(f"this {_WHAT} was changed: its name or public key is not what was written; copy it again")
    return found


class _PublicFile(Struct, forbid_unknown_fields=True):
    version: int
    name: str
    public_key: str


def parse_public_client_key(text: str) -> tuple[str, str]:
    """Read the name and the public key (base64) in a `.pub` file; raises `ClientKeyError`."""
    try:
        file = parse(text, _PublicFile, _PUBLIC)
        decode_key(file.public_key, "public_key")
    except KeyTextError as error:
        raise ClientKeyError(
            f"{error}. `garlicfarm keys new-client FILE --name N` writes FILE.pub beside FILE"
        ) from None
    if file.version != VERSION or re.fullmatch(NAME, file.name) is None:
        raise ClientKeyError(f"this {_PUBLIC} was changed, or is of another version: copy it again")
    return file.name, file.public_key


def public_client_key_text(client: ClientKeyFile) -> str:
    """The text of the `.pub` file."""
    return (
        f"# The public half of the client key {client.name!r} of a Garlic Farm. It is no secret. A server admits it:\n"
        "# garlicfarm node admit-client FILE --scope weights\n"
        f"version = {VERSION}\n"
        f'name = "{client.name}"\n'
        f'public_key = "{client.public_key}"\n'
    )


def client_key_text(client: ClientKeyFile) -> str:
    """The text of the file."""
    private_key = encode_key(client.key.private_bytes_raw())
    return (
        f"# The client key {client.name!r} of a Garlic Farm. A holder of this file may submit what its scopes\n"
        "# allow: keep it secret (mode 0600). A server admits its public half:\n"
        "# garlicfarm node admit-client FILE.pub --scope weights\n"
        f"version = {VERSION}\n"
        f'name = "{client.name}"\n'
        f'public_key = "{client.public_key}"\n'
        f'private_key = "{private_key}"\n'
    )
