"""Signs the pipeline's submissions with a client key, so that no node has to sign them in its own name.

This module does not use the farm's code. The format is documented (`docs/reference/application-json.md`). The entry's
last member is `"proof":"PUBLICKEY.NUMBER.SIGNATURE"`. The Ed25519 signature covers a fixed text, the cluster id, and
every byte of the entry before the signature. NUMBER rises with each entry of the key: it is the clock in milliseconds.
"""

import base64
import hashlib
import json
import os
import shlex
import stat
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PURPOSE = b"garlic farm entry 1\x00"
FILE_LIMIT_BYTES = 65_536


class ClientKeyError(Exception):
    """The client key file cannot be used; the text has the file, the reason and the remedy, and no key material."""


class ClientKey:
    """A client key; `sign` gives each entry a higher number."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self._last = 0

    def sign(self, entry: Mapping[str, object], cluster_id: str) -> bytes:
        """Return the JSON of an entry with its proof for the farm of this cluster id (hexadecimal)."""
        self._last = max(time.time_ns() // 1_000_000, self._last + 1)
        return signed(json.dumps(entry).encode(), self._key, bytes.fromhex(cluster_id), self._last)


def signed(entry: bytes, key: Ed25519PrivateKey, cluster_id: bytes, number: int) -> bytes:
    """Return a JSON object, which has at least one member, with the proof of `key` as its last member."""
    unsigned = entry[:-1] + b',"proof":"' + _text(key.public_key().public_bytes_raw()) + b".%d." % number
    return unsigned + _text(key.sign(PURPOSE + cluster_id + unsigned)) + b'"}'


def node_id_of(key: Ed25519PrivateKey) -> bytes:
    """Return the node id of the author of this key's entries."""
    return hashlib.sha256(key.public_key().public_bytes_raw()).digest()[:8]


def load_client_key(path: Path) -> ClientKey:
    """Read the file that `garlicfarm keys new-client` made. Raise ClientKeyError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or stat.S_IMODE(status.st_mode) & 0o077:
                raise ClientKeyError(
                    f"other users can read {path}, or it is not a file: `chmod 600 {shlex.quote(str(path))}`, then try"
                    " again"
                )
            content = file.read(FILE_LIMIT_BYTES)
    except OSError as error:
        raise ClientKeyError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        seed = base64.b64decode(tomllib.loads(content.decode())["private_key"], validate=True)
        return ClientKey(Ed25519PrivateKey.from_private_bytes(seed))
    except (ValueError, KeyError, TypeError, RecursionError):
        text = f"{path} is not a client key file: make one with `garlicfarm keys new-client FILE --name N`"
        raise ClientKeyError(text) from None


def _text(value: bytes) -> bytes:
    return base64.urlsafe_b64encode(value).rstrip(b"=")
