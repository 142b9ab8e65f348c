"""What a node remembers beside its identity: the farm's keys as they were last told, and where its peers were.

    keys      magic, checksum, farm label, the keyring as it travels in KeyringUpdate; mode 0600, written at every
    change peers     one endpoint per line; written rarely, and of no weight: a list that is old or lost costs a slower
    rejoin

The keys are merged with those of the configuration at the start. Without them a node restarted after a rotation would
come back with the key of its configuration, which the group refuses by then. The checksum tells damage from the keys of
another farm: those are passed over, since a node may move, but a damaged file passed over would bring the old key back.
"""

from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

import trio

from gossip.core.keyring import Keyring
from gossip.core.member import Address
from gossip.core.messages import KeyringUpdate
from gossip.node.endpoints import endpoint, numeric, parse_endpoint
from gossip.node.identity import StateError, read_limited, write_durably
from gossip.wire.datagram import DatagramError, decode, encode
from gossip.wire.seal import LABEL_BYTES

KEYS_FILE: Final = "keys"
_KEYS_MAGIC: Final = b"garlic farm keys 1\n"
_CHECKSUM_BYTES: Final = 32
PEERS_FILE: Final = "peers"
PEERS_REMEMBERED: Final = 16
PEERS_FIRST_KEPT_S: Final = 5.0
PEERS_EVERY_S: Final = 60.0


def keep_keys(directory: Path, label: bytes, chain: Keyring) -> None:
    """Make the chain of the farm of this label durable."""
    content = label + encode(KeyringUpdate(chain))
    try:
        write_durably(directory / KEYS_FILE, _KEYS_MAGIC + sha256(content).digest() + content)
    except OSError as error:
        raise StateError(f"cannot keep the farm's keys in {directory}: {error.strerror}") from error


def known_chain(directory: Path, label: bytes) -> Keyring | None:
    """The chain kept for the farm of this label; none if there is none, or it is another farm's."""
    path = directory / KEYS_FILE
    try:
        content = read_limited(path, secret=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"cannot read {path}, the farm's keys as this node knew them: {error.strerror}") from error
    checksum, body = content[len(_KEYS_MAGIC) :][:_CHECKSUM_BYTES], content[len(_KEYS_MAGIC) + _CHECKSUM_BYTES :]
    if not content.startswith(_KEYS_MAGIC) or checksum != sha256(body).digest():
        raise _damaged(path)
    if body[:LABEL_BYTES] != label:
        return None
    try:
        news = decode(body[LABEL_BYTES:])
    except DatagramError:
        news = None
    if not isinstance(news, KeyringUpdate) or not news.chain.is_sound():
        raise _damaged(path)
    return news.chain


def _damaged(path: Path) -> StateError:
    return StateError(
        f"{path}, the farm's keys as this node knew them, is damaged: remove it, put the farm's current key where this "
        "node's configuration names it (a member that runs exports it), and start again"
    )


def keep_peers(directory: Path, peers: tuple[Address, ...]) -> None:
    """Remember where peers were (the first few), as well as the disk allows."""
    text = "".join(f"{endpoint(address)}\n" for address in peers)
    with suppress(OSError):
        write_durably(directory / PEERS_FILE, text.encode("ascii"))


async def remember_peers(directory: Path, peers: Callable[[], tuple[Address, ...]]) -> None:
    """Keep the list of peers, seldom and only when it changed, until cancelled."""
    kept: tuple[Address, ...] = ()
    pause_s = PEERS_FIRST_KEPT_S
    while True:
        await trio.sleep(pause_s)
        pause_s = PEERS_EVERY_S
        now = peers()[:PEERS_REMEMBERED]
        if now and now != kept:
            kept = now
            await trio.to_thread.run_sync(keep_peers, directory, now)


def known_peers(directory: Path) -> tuple[Address, ...]:
    """Where peers were; lines that make no sense are passed over."""
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
