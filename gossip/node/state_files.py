"""The state directory of a node: the files that outlive a process.

    gossip.lock      held by the process that uses the directory
    identity.pem     the Ed25519 key that the node is named after; mode 0600, made once, never changed
    generation       "<restart counter> <node id>", raised and fsynced before the first datagram of a process
    keys             magic, checksum, farm label, the keyring as a KeyringUpdate carries it; mode 0600
    peers            one endpoint per line; written rarely. A lost or old list only makes a rejoin slower

docs/reference/gossip-library.md ("The state directory") has the rules for damaged, old and foreign files.

The generation must never repeat. Peers accept the higher (generation, number) as the newer claim. A node that returns
under an old generation loses against claims of its previous run. So the file is written under another name, fsynced and
renamed over the old one, and the directory is fsynced. A crash leaves the old number or the new one. Peers may also
report a generation of this node that is higher than its own. The node adopts the next higher one, and does not send
datagrams until that one is on disk. Otherwise a restart could use the same generation again, and peers could not
distinguish the two runs.

New keys are used before they are stored, so that a node with a full disk does not also lose its group.
"""

import errno
import fcntl
import logging
import os
import re
import shlex
import stat
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Final

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct

from gossip.core.effects import Alarm, AlarmKind
from gossip.core.keyring import LABEL_BYTES, Keyring
from gossip.core.member import LAST_GENERATION, Address, NodeId
from gossip.core.messages import KeyringUpdate
from gossip.node.endpoints import endpoint, numeric, parse_endpoint
from gossip.wire.codec import DatagramError, decode, decode_stored_keyring, encode
from gossip.wire.identity import node_id_of

IDENTITY_FILE: Final = "identity.pem"
_STORED_IDENTITY: Final = re.compile(
    rb"-----BEGIN PRIVATE KEY-----\n(MC4CAQAwBQYDK2VwBCIEI[A-P][A-Za-z0-9+/]{42})\n-----END PRIVATE KEY-----\n"
)
"""An Ed25519 key in PKCS 8 as `save_identity` writes it. Reading another form imports modules of 0.6 MB."""
GENERATION_FILE: Final = "generation"
LOCK_FILE: Final = "gossip.lock"
_FILE_LIMIT_BYTES: Final = 4096
_PRIVATE_MODE: Final = 0o600
KEYS_FILE: Final = "keys"
_KEYS_MAGIC: Final = b"garlic farm keys 1\n"
_CHECKSUM_BYTES: Final = 32
PEERS_FILE: Final = "peers"
PEERS_REMEMBERED: Final = 16
PEERS_FIRST_KEPT_S: Final = 1.0
PEERS_EVERY_S: Final = 60.0
PEERS_LAST_KEPT_S: Final = 1.0
"""Seconds that a stopping node waits until the list of peers is stored, if the disk hangs."""
RETRY_FIRST_S: Final = 1.0
RETRY_LAST_S: Final = 60.0
_REMEDIES: Final = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "; free space there, then try again"),
    **dict.fromkeys(
        (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP),
        "; name a directory on a local disk: this file system does not lock files",
    ),
}
LOG: Final = logging.getLogger(__name__)


class StateError(Exception):
    """The state directory cannot be used; the text has the reason and the remedy."""


class NodeIdentity(Struct, frozen=True):
    """A node's key, and the id derived from the key."""

    key: Ed25519PrivateKey
    node_id: NodeId

    @classmethod
    def of(cls, key: Ed25519PrivateKey) -> "NodeIdentity":
        """Return the identity of a key."""
        return cls(key, node_id_of(key.public_key().public_bytes_raw()))

    @classmethod
    def throwaway(cls) -> "NodeIdentity":
        """Return a new identity, without storing it."""
        return cls.of(Ed25519PrivateKey.generate())

    def __repr__(self) -> str:
        """Return the node id without the private key."""
        return f"NodeIdentity({self.node_id.hex()})"


def _reason(error: OSError) -> str:
    """Return the reason of the operating system, with the remedy if there is one."""
    remedy = _REMEDIES.get(error.errno or 0, "")
    if error.errno == errno.EACCES and error.filename:
        path = Path(error.filename)
        remedy = f"; give {path if os.path.lexists(path) else path.parent} to the user of this process"
    return f"{error.strerror or error}{remedy}"


def load_identity(directory: Path) -> NodeIdentity:
    """Return the identity stored in `directory`; create it durably if it is missing."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _read_identity(directory / IDENTITY_FILE)
    except FileNotFoundError:
        return _create_identity(directory)
    except OSError as error:
        raise StateError(f"cannot use the state directory {directory}: {_reason(error)}") from error


def _read_identity(path: Path) -> NodeIdentity:
    pem = read_limited(path, secret=True)
    stored = _STORED_IDENTITY.fullmatch(pem)
    if stored is not None:
        return NodeIdentity.of(Ed25519PrivateKey.from_private_bytes(b64decode(stored[1])[-32:]))
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - see `_STORED_IDENTITY`
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise StateError(
            f"{path} is not a private key: restore it from a backup, or remove it to give this node a new identity"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise StateError(f"{path} is not an Ed25519 key: restore the file that this node made")
    return NodeIdentity.of(key)


def _create_identity(directory: Path) -> NodeIdentity:
    identity = NodeIdentity.throwaway()
    save_identity(directory, identity)
    return identity


def save_identity(directory: Path, identity: NodeIdentity) -> None:
    """Store an identity durably in a directory without one."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat  # noqa: PLC0415

    pem = identity.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        write_durably(directory / IDENTITY_FILE, pem)
    except OSError as error:
        raise StateError(f"cannot make an identity in {directory}: {_reason(error)}") from error


def begin_generation(directory: Path, node_id: NodeId) -> int:
    """Begin the next generation, one above the last; it is durable at return."""
    generation = _read_generation(directory / GENERATION_FILE, node_id) + 1
    keep_generation(directory, node_id, generation)
    return generation


def keep_generation(directory: Path, node_id: NodeId, generation: int) -> None:
    """Store `generation` durably; raise StateError on failure, or if `begin_generation` would refuse the number."""
    if not 0 < generation <= LAST_GENERATION:
        raise StateError(
            f"generation {generation} of node {node_id.hex()} is not stored: generations are 1 to {LAST_GENERATION}."
            f" If peers have a record of the last one, remove {directory}: this node then starts as a new node"
        )
    try:
        write_durably(directory / GENERATION_FILE, f"{generation} {node_id.hex()}\n".encode())
    except OSError as error:
        raise StateError(f"cannot keep the generation in {directory}: {_reason(error)}") from error


def _read_generation(path: Path, node_id: NodeId) -> int:
    try:
        text = read_limited(path).decode("ascii", errors="replace")
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StateError(f"cannot read {path}: {_reason(error)}") from error
    number, _, owner = text.rstrip("\n").partition(" ")
    if not (number.isascii() and number.isdigit()) or not 0 < int(number) <= LAST_GENERATION:
        raise StateError(
            f"{path} does not contain a generation: write a number above every generation of this node that peers"
            f" know, as in '1000 {node_id.hex()}' (members lists it), or remove the directory to start as a new node"
        )
    if owner != node_id.hex():
        raise StateError(
            f"{path} belongs to node {owner or 'unknown'}, and the identity in the same directory is {node_id.hex()}:"
            " these files come from two nodes; restore both files of one node"
        )
    return int(number)


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Lock the directory for this process: two processes with the same identity would refute each other without end."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(directory / LOCK_FILE, flags, _PRIVATE_MODE)
    except OSError as error:
        raise StateError(f"cannot lock the state directory {directory}: {_reason(error)}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:  # EACCES: the same, on a network file system
            raise StateError(
                f"the state directory {directory} is in use by another process: stop it, or choose another directory"
            ) from error
        except OSError as error:
            raise StateError(f"cannot lock the state directory {directory}: {_reason(error)}") from error
        yield
    finally:
        os.close(descriptor)


def read_limited(path: Path, *, secret: bool = False) -> bytes:
    """Return the content of a small file, up to the limit of all files here; do not follow a link.

    A secret is read only if it belongs to this user or root and no other user may read it; raises StateError.
    """
    # Checked by descriptor, so that the checked file is the file read.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        mode = stat.S_IMODE(status.st_mode)
        if secret and mode & 0o077:
            raise StateError(
                f"{path} is a secret of this node and others may read it (mode {mode:o}): chmod 600"
                f" {shlex.quote(str(path))}"
            )
        if secret and status.st_uid not in {os.geteuid(), 0}:
            raise StateError(
                f"{path} is a secret of this node and belongs to user id {status.st_uid}: chown it to the node's user"
            )
        return file.read(_FILE_LIMIT_BYTES)


def write_durably(path: Path, content: bytes) -> None:
    """Write a new file, fsync, rename it over the old one, fsync the directory: a crash leaves either file whole."""
    new_path = path.with_name(path.name + ".new")
    # An existing file was left by a crash. It is removed, not overwritten: it might be a link.
    new_path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(new_path, flags, _PRIVATE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new_path.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class GenerationKeeper:
    """The generation of one node. `current` is the last durable one; without a directory, it is not stored."""

    def __init__(self, directory: Path | None, node_id: NodeId, generation: int) -> None:
        self._directory = directory
        self._node_id = node_id
        self.current = generation

    async def adopt(self, generation: int, publish: Callable[[Alarm], None]) -> None:
        """Store a generation, with retries without end; return when it is durable."""
        pause_s, failed = RETRY_FIRST_S, False
        while self._directory is not None:
            try:
                await trio.to_thread.run_sync(keep_generation, self._directory, self._node_id, generation)
                break
            except StateError as error:
                if not failed:
                    failed = True
                    publish(Alarm(AlarmKind.GENERATION_NOT_STORED, self._text(generation, error)))
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_LAST_S)
        self.current = generation
        if failed:
            text = f"generation {generation} of this node is stored now: the node sends again"
            publish(Alarm(AlarmKind.GENERATION_NOT_STORED, text, over=True))

    @staticmethod
    def _text(generation: int, error: StateError) -> str:
        return (
            f"{error}. Peers have recorded a higher generation of this node, so the node must not send anything before"
            f" generation {generation} is stored. Until then, the other nodes report it dead. Free space on that disk;"
            f" the node tries again automatically, at least every {RETRY_LAST_S:.0f} s"
        )


def keep_keys(directory: Path, keyring: Keyring) -> None:
    """Store a keyring durably; raise StateError if that fails, or if `known_keyring` would repair or refuse it."""
    if not keyring.is_sound():
        raise StateError(f"the farm's keys are not kept in {directory}: no node accepts {keyring}")
    content = keyring.label + encode(KeyringUpdate(keyring))
    try:
        write_durably(directory / KEYS_FILE, _KEYS_MAGIC + sha256(content).digest() + content)
    except OSError as error:
        raise StateError(f"cannot keep the farm's keys in {directory}: {_reason(error)}") from error


def known_keyring(directory: Path, label: bytes) -> Keyring | None:
    """Return the keyring stored for the farm of this label; None without one, or if it is another farm's.

    A keyring with times out of range is returned repaired; the file stays as it is.
    """
    stored = _stored_keyring(directory, label)
    return None if stored is None else stored[0]


def load_keyring(directory: Path, label: bytes) -> Keyring | None:
    """Return the keyring like `known_keyring`; store a repaired one again."""
    stored = _stored_keyring(directory, label)
    if stored is None:
        return None
    keyring, was_repaired = stored
    if was_repaired:
        LOG.warning(
            "%s, the farm's keys as this node knew them, held a time that no node accepts: the time was replaced, the "
            "keys are as they were. A member has forged the time; when all nodes have started again, replace the keys",
            directory / KEYS_FILE,
        )
        with suppress(StateError):
            keep_keys(directory, keyring)
    return keyring


def reset_stored_era(directory: Path) -> None:
    """Reset the era of the stored keyring to 0, for a new cluster; raise StateError."""
    stored = _stored_keyring(directory, None)
    if stored is not None:
        keep_keys(directory, replace(stored[0], era=0))


def _stored_keyring(directory: Path, label: bytes | None) -> tuple[Keyring, bool] | None:
    """Return the stored keyring, and True if it was repaired. With `label` None, accept the keyring of any farm."""
    path = directory / KEYS_FILE
    try:
        content = read_limited(path, secret=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"cannot read {path}, the farm's keys as this node knew them: {_reason(error)}") from error
    checksum, body = content[len(_KEYS_MAGIC) :][:_CHECKSUM_BYTES], content[len(_KEYS_MAGIC) + _CHECKSUM_BYTES :]
    if not content.startswith(_KEYS_MAGIC) or checksum != sha256(body).digest():
        raise _damaged(path)
    if label is None:
        label = body[:LABEL_BYTES]
    if body[:LABEL_BYTES] != label:
        return None
    with suppress(DatagramError):
        sound = decode(body[LABEL_BYTES:])
        if isinstance(sound, KeyringUpdate):
            return replace(sound.keyring, label=label), False
    try:
        return replace(decode_stored_keyring(body[LABEL_BYTES:]), label=label), True
    except DatagramError as error:
        raise _damaged(path) from error


def _damaged(path: Path) -> StateError:
    return StateError(
        f"{path}, this node's copy of the farm's keys, is damaged: remove it, write the farm's current key to the key"
        " file of this node's configuration (a running member exports it), and start again"
    )


class KeyringKeeper:
    """Stores the current keyring, in a separate task, and retries until it succeeds.

    One task writes, and only the newest keyring. Two writers could leave the older one in the file, and the group would
    then refuse the restarted node. No other task waits for the disk, so a node with a hanging disk continues with its
    new keys.
    """

    def __init__(
        self,
        directory: Path | None,
        keyring_changed: Callable[[Keyring], None] | None,
        publish: Callable[[Alarm], None],
        stored: Callable[[Keyring], None],
    ) -> None:
        """Create a keeper: `stored` is called with each stored keyring."""
        self._directory = directory
        self._keyring_changed = keyring_changed
        self._publish = publish
        self._stored = stored
        self._unstored: Keyring | None = None
        self._given = trio.Event()
        self._tried = trio.Event()
        self._failed = False

    def keep(self, keyring: Keyring) -> None:
        """Queue a keyring in use, to be stored and reported to the application; ignore an older one."""
        if self._directory is None and self._keyring_changed is None:
            self._stored(keyring)
        elif self._unstored is None or _age(keyring) >= _age(self._unstored):
            self._unstored = keyring
            self._given.set()

    async def settle(self, timeout_s: float) -> None:
        """Return when the keyring is stored, or an attempt has failed, or time is up."""
        with trio.move_on_after(timeout_s):
            while self._unstored is not None and not self._failed:
                await self._tried.wait()

    async def run(self) -> None:
        """Store each keyring until canceled. Then try to store the last keyring once more, for the next start."""
        try:
            await self._follow()
        finally:
            if self._unstored is not None:
                with trio.CancelScope(shield=True):
                    await self._try(self._unstored)

    async def _follow(self) -> None:
        pause_s = RETRY_FIRST_S
        while True:
            if self._unstored is None:
                await self._given.wait()
                pause_s = RETRY_FIRST_S
            self._given = trio.Event()
            if self._unstored is not None and not await self._try(self._unstored):
                with trio.move_on_after(pause_s):
                    await self._given.wait()
                pause_s = min(2 * pause_s, RETRY_LAST_S)

    async def _try(self, keyring: Keyring) -> bool:
        """Store a keyring; return False and raise an alarm if that fails."""
        error = await self._store(keyring)
        is_current = keyring is self._unstored
        if error is not None and not self._failed:
            self._failed = True
            self._publish(Alarm(AlarmKind.KEYRING_NOT_STORED, self._text(error)))
        elif error is None:
            self._stored(keyring)
            if is_current:
                self._unstored = None
            if is_current and self._failed:
                self._failed = False
                self._publish(Alarm(AlarmKind.KEYRING_NOT_STORED, "the group's keys are stored now", over=True))
        self._tried.set()
        self._tried = trio.Event()
        return error is None

    async def _store(self, keyring: Keyring) -> str | None:
        def store() -> None:
            if self._directory is not None:
                keep_keys(self._directory, keyring)
            if self._keyring_changed is not None:
                self._keyring_changed(keyring)

        try:
            await trio.to_thread.run_sync(store)
        except Exception as error:  # noqa: BLE001 - `keyring_changed` is the application's, and may raise anything
            return str(error) if isinstance(error, OSError | StateError) else f"{type(error).__name__}: {error}"
        return None

    @staticmethod
    def _text(reason: str) -> str:
        return (
            f"the group's keys were changed and could not be stored ({reason}): after a restart this node would have"
            " its old key and be refused. Do not restart it. Free space on that disk; the node tries again"
            f" automatically, at least every {RETRY_LAST_S:.0f} s. If it must restart before, give it the current key"
            " first"
        )


def _age(keyring: Keyring) -> tuple[int, int]:
    """Return the sort key of a node's keyrings, oldest first. Each era begins a new clock, so the era comes first."""
    return keyring.era, keyring.clock


def keep_peers(directory: Path, peers: tuple[Address, ...]) -> bool:
    """Store addresses of peers; return False after an error of the disk."""
    text = "".join(f"{endpoint(address)}\n" for address in peers)
    try:
        write_durably(directory / PEERS_FILE, text.encode("ascii"))
    except OSError:
        return False
    return True


async def remember_peers(directory: Path, peers: Callable[[], tuple[Address, ...]]) -> None:
    """Store changes of the list of peers until canceled: soon after the first peer, then rarely, and at the end.

    The first node of a group does not need seeds. If it stops after a short run, only the list leads it to the group.
    """
    stored: tuple[Address, ...] = ()
    pause_s = PEERS_FIRST_KEPT_S

    async def store(*, is_last: bool = False) -> None:
        nonlocal stored, pause_s
        now = peers()[:PEERS_REMEMBERED]
        if now and now != stored:
            pause_s = PEERS_EVERY_S
            if await trio.to_thread.run_sync(keep_peers, directory, now, abandon_on_cancel=is_last):
                stored = now

    try:
        while True:
            await trio.sleep(pause_s)
            await store()
    finally:
        with trio.move_on_after(PEERS_LAST_KEPT_S, shield=True):
            await store(is_last=True)


def known_peers(directory: Path) -> tuple[Address, ...]:
    """Return the stored addresses of peers; ignore invalid lines."""
    try:
        lines = read_limited(directory / PEERS_FILE).decode("ascii", errors="replace").splitlines()
    except OSError:
        return ()
    found: dict[Address, None] = {}
    for line in lines[:PEERS_REMEMBERED]:
        with suppress(ValueError):
            host, port = parse_endpoint(line)
            if numeric(host) == host:
                found[Address(host, port)] = None
    return tuple(found)
