"""What a node remembers beside its identity: the farm's keys as they were last told, and where its peers were.

    keys      the farm label and the key chain as it travels in KeyNews; mode 0600, written at every change, durable
    peers     one endpoint per line; written rarely, and of no weight: a list that is old or lost costs a slower rejoin

The keys are merged with those of the configuration at the start. Without them a node restarted after a rotation would
come back with the key of its configuration, which the group refuses by then.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from gossip.core.keychain import KeyChain
from gossip.core.member import Address
from gossip.core.messages import KeyNews
from gossip.node.endpoints import endpoint, numeric, parse_endpoint
from gossip.node.identity import StateError, read_limited, write_durably
from gossip.wire.datagram import DatagramError, decode, encode
from gossip.wire.seal import LABEL_BYTES

KEYS_FILE: Final = "keys"
PEERS_FILE: Final = "peers"
PEERS_REMEMBERED: Final = 16
PEERS_FIRST_KEPT_S: Final = 5.0
PEERS_EVERY_S: Final = 60.0


def keep_keys(directory: Path, label: bytes, chain: KeyChain) -> None:
    """Make the chain of the farm of this label durable."""
    try:
        write_durably(directory / KEYS_FILE, label + encode(KeyNews(chain)))
    except OSError as error:
        raise StateError(f"cannot keep the farm's keys in {directory}: {error.strerror}") from error


def known_chain(directory: Path, label: bytes) -> KeyChain | None:
    """The chain kept for the farm of this label; none if there is none, or it is another farm's."""
    path = directory / KEYS_FILE
    try:
        content = read_limited(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"cannot read {path}: {error.strerror}") from error
    if content[:LABEL_BYTES] != label:
        return None
    try:
        news = decode(content[LABEL_BYTES:])
    except DatagramError:
        news = None
    if not isinstance(news, KeyNews):
        raise StateError(f"{path} is damaged: remove it, and give this node the farm's current key")
    return news.chain


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
