"""Connecting to a server: a stream (`connectors`), the handshake, and then Raft's messages.

    dial ─▶ request 2 if a challenge is cached, else request 1 ─▶ 401 ─▶ close, dial again with request 2 ─▶ 101

Both sides prove their identity (`proof`). A dialer acts in one role, and accepts only the dialed server.

A dial with one password opens at most three connections, since the server may refuse a nonce as stale. A proxy that
requires a password may cost two more. The dialer keeps each server's challenge for the next dial.

During a change of passwords a server may have only the previous password or only the next one. If the server refuses
the first credentials, the dialer tries the second credentials once. Open connections are not authenticated again.
"""

from collections.abc import Callable
from typing import Protocol

import trio
from msgspec import Struct

from consensus.net.failed_connection import connection_failure, was_refused
from consensus.protocols.garlic_farm.node.connectors import Connector, PeerAddress, TlsConnector
from consensus.protocols.garlic_farm.wire.digest import Credentials
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.peers import ProvenPeer
from consensus.protocols.garlic_farm.wire.upgrade import Extension, Identity
from consensus.protocols.garlic_farm.wire.upgrade_client import Initiator, Session, Switched, UpgradeClient
from consensus.server.callbacks import log_failure
from consensus.server.event_loop import now_ms

__all__ = ["Dialed", "Dialer", "Dials", "PeerAddress"]

_ATTEMPTS = 3
_ATTEMPTS_BY_PROXY = 5
_SESSIONS_MAX = 256
_READ_BYTES = 16_384


class Dialed(Struct, frozen=True):
    """An upgraded connection; `trailing` are the first bytes that the server sent after its 101."""

    stream: trio.abc.Stream
    trailing: bytes
    peer: Identity
    extensions: frozenset[Extension]
    proven: ProvenPeer | None
    """The proven identity of the server; None if this client does not check identities."""


class ConnectionRefused(GarlicFarmError):  # noqa: N818 - the cause of a fault, as in `ConnectionRefusedError`
    """No process listens at the server's own address."""


class Dials(Protocol):
    """Opens a connection that carries messages."""

    async def dial(self, address: PeerAddress, expected: int | None = None) -> Dialed:
        """Connect to `expected` at `address`; any failure is a `GarlicFarmError` that explains it."""


class Dialer:
    """Opens connections in one client's name, and stores the challenges of servers."""

    def __init__(
        self,
        caller: Initiator,
        *,
        transport: Connector | None = None,
        timeout_s: float = 5.0,
        on_identity: Callable[[Identity], None] = lambda _: None,
    ) -> None:
        """Make a dialer; `on_identity` gets the identity claims of each server."""
        self._caller = caller
        self._transport = transport or TlsConnector()
        self._on_identity = on_identity
        self._timeout_s = timeout_s
        self._sessions: dict[PeerAddress, Session] = {}

    async def dial(self, address: PeerAddress, expected: int | None = None) -> Dialed:
        """Return an upgraded connection to `expected` at `address`; any failure is a GarlicFarmError."""
        try:
            with trio.move_on_after(self._timeout_s):
                return await self._dial(address, expected)
        except UnicodeError as error:
            # Host names come from other servers, and the resolver raises this error for some invalid names.
            raise GarlicFarmError(
                Fault.UNREACHABLE, f"{address} is not a name that can be looked up: {error}"
            ) from error
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            kind = ConnectionRefused if was_refused(error) else GarlicFarmError
            raise kind(Fault.UNREACHABLE, f"{address} cannot be reached: {connection_failure(error)}") from error
        except GarlicFarmError:
            raise
        except Exception as error:
            log_failure(self._dial, error)
            raise GarlicFarmError(
                Fault.REFUSED_UPGRADE, f"a fault of the program ended the handshake with {address}: see the log"
            ) from error
        raise GarlicFarmError(
            Fault.UNREACHABLE, f"{address} did not complete a connection within {self._timeout_s:g} s"
        )

    async def _dial(self, address: PeerAddress, expected: int | None) -> Dialed:
        best, *others = self._caller.shown_to(str(address))
        try:
            return await self._dial_as(best, address, expected)
        except GarlicFarmError as error:
            if error.fault is not Fault.WRONG_CREDENTIALS or not others:
                raise
        return await self._dial_as(others[0], address, expected)

    async def _dial_as(self, credentials: Credentials, address: PeerAddress, expected: int | None) -> Dialed:
        session = self._session(address)
        via = self._transport.via(address)
        attempts = _ATTEMPTS if via is None else _ATTEMPTS_BY_PROXY
        for _ in range(attempts):
            reached = await self._transport.connect(address)
            stream = reached.stream
            client = UpgradeClient(
                self._caller,
                session,
                str(address),
                now_ms(),
                credentials,
                via,
                channel=reached.channel,
                called=expected,
            )
            try:
                switched = await _handshake(stream, client)
                if switched is not None:
                    self._on_identity(switched.peer)
                    return Dialed(stream, switched.trailing, switched.peer, switched.extensions, switched.proven)
            except BaseException:
                await trio.aclose_forcefully(stream)
                raise
            await trio.aclose_forcefully(stream)
        raise GarlicFarmError(
            Fault.REFUSED_UPGRADE, f"{address} challenged {attempts} times in a row and accepted no fresh nonce"
        )

    def _session(self, address: PeerAddress) -> Session:
        session = self._sessions.pop(address, None) or Session()
        if len(self._sessions) >= _SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[address] = session
        return session


async def _handshake(stream: trio.abc.Stream, client: UpgradeClient) -> Switched | None:
    """Perform the handshake. Return None if the server has sent a challenge, which needs another connection."""
    await stream.send_all(client.request())
    outcome = None
    while outcome is None:
        outcome = client.receive(bytes(await stream.receive_some(_READ_BYTES)))
    return outcome if isinstance(outcome, Switched) else None
