"""The identity and the generation of a node, in its state directory.

    identity.pem     the Ed25519 key that the node is named after; mode 0600, made once, never changed
    generation       "<restart counter> <node id>", raised and fsynced before the first datagram of a life
    gossip.lock      held by the process that uses the directory

The generation must never repeat: peers take the higher (generation, number) as the newer word, and a node that came
back under an old generation would be outshouted by claims of its former self. So it is written beside, fsynced, renamed
over the old file, and the directory is fsynced; a crash leaves the old number or the new one, never a torn one. A file
that cannot be read stops the node with words that say what to do: starting again from 1 would be the same mistake.
"""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from gossip.core.local_node import INCARNATION_LIMIT
from gossip.core.member import NodeId
from gossip.wire.identity import node_id_of

IDENTITY_FILE: Final = "identity.pem"
GENERATION_FILE: Final = "generation"
LOCK_FILE: Final = "gossip.lock"
_FILE_LIMIT_BYTES: Final = 4096
_PRIVATE_MODE: Final = 0o600


class StateError(Exception):
    """The state directory cannot be used; the text says why and what to do."""


@dataclass(frozen=True, slots=True, repr=False)
class Identity:
    """A node's key and the name that follows from it."""

    key: Ed25519PrivateKey
    node_id: NodeId

    @classmethod
    def of(cls, key: Ed25519PrivateKey) -> "Identity":
        """The identity that a key makes."""
        return cls(key, node_id_of(key.public_key().public_bytes_raw()))

    @classmethod
    def throwaway(cls) -> "Identity":
        """A new identity that is kept nowhere."""
        return cls.of(Ed25519PrivateKey.generate())

    def __repr__(self) -> str:
        """The name only: a private key is never printed."""
        return f"Identity({self.node_id.hex()})"


def load_identity(directory: Path) -> Identity:
    """The identity kept in `directory`; made and made durable if there is none yet."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _read_identity(directory / IDENTITY_FILE)
    except FileNotFoundError:
        return _create_identity(directory)
    except OSError as error:
        raise StateError(f"cannot use the state directory {directory}: {error.strerror}") from error


def _read_identity(path: Path) -> Identity:
    pem = read_limited(path, secret=True)
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise StateError(
            f"{path} is not a private key: restore it from a backup, or remove it to give this node a new identity"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise StateError(f"{path} is not an Ed25519 key: restore the file that this node made")
    return Identity.of(key)


def _create_identity(directory: Path) -> Identity:
    identity = Identity.throwaway()
    save_identity(directory, identity)
    return identity


def save_identity(directory: Path, identity: Identity) -> None:
    """Make an identity durable in a directory that has none."""
    pem = identity.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        write_durably(directory / IDENTITY_FILE, pem)
    except OSError as error:
        raise StateError(f"cannot make an identity in {directory}: {error.strerror}") from error


def begin_generation(directory: Path, node_id: NodeId) -> int:
    """The generation of the life that begins now: one above the last, and durable when this returns."""
    generation = _read_generation(directory / GENERATION_FILE, node_id) + 1
    keep_generation(directory, node_id, generation)
    return generation


def keep_generation(directory: Path, node_id: NodeId, generation: int) -> None:
    """Make `generation` durable."""
    try:
        write_durably(directory / GENERATION_FILE, f"{generation} {node_id.hex()}\n".encode())
    except OSError as error:
        raise StateError(f"cannot keep the generation in {directory}: {error.strerror}") from error


def _read_generation(path: Path, node_id: NodeId) -> int:
    try:
        text = read_limited(path).decode("ascii", errors="replace")
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StateError(f"cannot read {path}: {error.strerror}") from error
    number, _, owner = text.rstrip("\n").partition(" ")
    if not (number.isascii() and number.isdigit()) or not 0 < int(number) < INCARNATION_LIMIT - 1:
        raise StateError(
            f"{path} holds no generation: write a number above every one that peers know of this node, "
            f"as in '1000 {node_id.hex()}' (members lists it), or remove the whole directory to start as a new node"
        )
    if owner != node_id.hex():
        raise StateError(
            f"{path} belongs to node {owner or 'unknown'}, the identity beside it is {node_id.hex()}: "
            "these files come from two nodes; restore the pair that belongs together"
        )
    return int(number)


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Hold the directory for this process: two that share an identity would refute each other for ever."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(directory / LOCK_FILE, flags, _PRIVATE_MODE)
    except OSError as error:
        raise StateError(f"cannot lock the state directory {directory}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StateError(
                f"the state directory {directory} is in use by another process: stop it, or choose another directory"
            ) from error
        yield
    finally:
        os.close(descriptor)


def read_limited(path: Path, *, secret: bool = False) -> bytes:
    """What a small file holds, up to the size that any file here may have; a link is not followed.

    A secret is read only if it belongs to this user or root and nobody else may read it; raises StateError.
    """
    # Judged by descriptor, so that what is judged is what is read.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        mode = stat.S_IMODE(status.st_mode)
        if secret and mode & 0o077:
            raise StateError(
                f"{path} is a secret of this node and others may read it (mode {mode:o}): chmod 600 {path}"
            )
        if secret and status.st_uid not in {os.geteuid(), 0}:
            raise StateError(
                f"{path} is a secret of this node and belongs to user id {status.st_uid}: chown it to the node's user"
            )
        return file.read(_FILE_LIMIT_BYTES)


def write_durably(path: Path, content: bytes) -> None:
    """Write beside, fsync, rename, fsync the directory: a crash leaves the old file or the new one."""
    beside = path.with_name(path.name + ".new")
    # What lies there was left by a crash. It is removed, not written over: it might be a link.
    beside.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(beside, flags, _PRIVATE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
