"""The file of a client key: a program other than a server signs entries for the farm with it.

    version = 1
    name = "pipeline"           its name in the farm
    public_key = "…"            base64; a server admits it (`garlicfarm node admit-client`)
    private_key = "…"           base64 of the Ed25519 seed; the file FILE.pub is the same without this line

The scopes of the key limit the entries that it may sign (`bridge.core.membership.client_keys`). Its entries do not have
an effect until a server has admitted the key.
"""

from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct

from bridge.wire.keys.text import VERSION, NamedKeyFile, advised, check_file, check_name, decode_key, encode_key, parse

_WHAT: Final = "client key file"
_PUBLIC: Final = "public client key file"
_MAKE: Final = "`garlicfarm keys new-client FILE --name N`"


class ClientKeyFile(Struct, frozen=True):
    """The file's content. Secret: its repr has only the name."""

    name: str
    key: Ed25519PrivateKey

    def __repr__(self) -> str:
        return f"ClientKeyFile(name={self.name!r}, public_key={self.public_key!r})"

    @property
    def public_key(self) -> str:
        """The public half in base64."""
        return encode_key(self.key.public_key().public_bytes_raw())


class _ClientFile(NamedKeyFile):
    private_key: str


def new_client_key(name: str) -> ClientKeyFile:
    """Make a key; raise `KeyTextError` for a name that the farm does not accept."""
    check_name(name)
    return ClientKeyFile(name, Ed25519PrivateKey.generate())


def parse_client_key(text: str) -> ClientKeyFile:
    """Read a client key file; raise `KeyTextError`."""
    with advised(f"Make one with {_MAKE}"):
        file = parse(text, _ClientFile, _WHAT)
        key = Ed25519PrivateKey.from_private_bytes(decode_key(file.private_key, "private_key"))
    found = ClientKeyFile(file.name, key)
    check_file(file, _WHAT, found.public_key)
    return found


def parse_public_client_key(text: str) -> tuple[str, str]:
    """Read the name and the public key (base64) in a `.pub` file; raise `KeyTextError`."""
    with advised(f"{_MAKE} writes FILE.pub next to FILE"):
        file = parse(text, NamedKeyFile, _PUBLIC)
        decode_key(file.public_key, "public_key")
    check_file(file, _PUBLIC, file.public_key)
    return file.name, file.public_key


def public_client_key_text(client: ClientKeyFile) -> str:
    """Return the text of the `.pub` file."""
    return (
        f"# The public half of the client key {client.name!r} of a Garlic Farm. It is not secret. A server admits it:\n"
        "# garlicfarm node admit-client FILE --scope weights\n"
        f"version = {VERSION}\n"
        f'name = "{client.name}"\n'
        f'public_key = "{client.public_key}"\n'
    )


def client_key_text(client: ClientKeyFile) -> str:
    """Return the text of the file."""
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
