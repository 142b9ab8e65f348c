"""Connecting to a server: TCP, TLS with the pinned certificate, the handshake, and then Raft's stream.

    dial ─▶ request 2 if a challenge is cached, else request 1 ─▶ 401 ─▶ close, dial again with request 2 ─▶ 101

At most three connections: cached nonce, stale, fresh. What was learned of a server is kept for the next time.

While passwords change, a server may know only the one before ours, or the next: refused credentials are followed by the
second best, once. Connections that are open do not ask again.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from consensus.core.position import ServerId
from consensus.node.clock import now_ms
from consensus.node.tls import secured
from consensus.wire.garlic_farm.digest import Credentials
from consensus.wire.garlic_farm.errors import Fault, GarlicFarmError
from consensus.wire.garlic_farm.upgrade import Extension, Identity
from consensus.wire.garlic_farm.upgrade_client import Caller, Session, Switched, UpgradeClient

_ATTEMPTS = 3
_SESSIONS_MAX = 256
_READ_BYTES = 16_384


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Where a server listens, and the SHA-256 of the certificate that it must show."""

    host: str
    port: int
    fingerprint: bytes

    def __str__(self) -> str:
        """As it stands in a Host header."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Connector = Callable[[PeerAddress], Awaitable[trio.abc.Stream]]
"""Opens a stream that is already private: TLS checked against the fingerprint, or I2P."""


async def connect_tls(address: PeerAddress) -> trio.abc.Stream:
    """TCP and TLS to a pinned server."""
    transport = await trio.open_tcp_stream(address.host, address.port)
    try:
        return await secured(transport, address.fingerprint)
    except BaseException:
        await trio.aclose_forcefully(transport)
        raise


@dataclass(frozen=True, slots=True)
class Dialed:
    """An upgraded connection; `trailing` are the first bytes that the server sent after its 101."""

    stream: trio.abc.Stream
    trailing: bytes
    peer: Identity
    extensions: frozenset[Extension]


class Dialer:
    """Opens connections in one client's name, and remembers what servers challenged it with."""

    def __init__(self, caller: Caller, *, connector: Connector = connect_tls, timeout_s: float = 5.0) -> None:
        self._caller = caller
        self._connector = connector
        self._timeout_s = timeout_s
        self._sessions: dict[PeerAddress, Session] = {}

    async def dial(self, address: PeerAddress, expected: ServerId | None = None) -> Dialed:
        """An upgraded connection to `expected` at `address`; any failure is a GarlicFarmError that explains it."""
        try:
            with trio.move_on_after(self._timeout_s):
                return await self._dial(address, expected)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise GarlicFarmError(Fault.UNREACHABLE, f"{address} cannot be reached: {_reason(error)}") from error
        raise GarlicFarmError(
            Fault.UNREACHABLE, f"{address} did not complete a connection within {self._timeout_s:g} s"
        )

    async def _dial(self, address: PeerAddress, expected: ServerId | None) -> Dialed:
        best, *others = self._caller.credentials()
        try:
            return await self._dial_as(best, address, expected)
        except GarlicFarmError as error:
            if error.fault is not Fault.WRONG_CREDENTIALS or not others:
                raise
        return await self._dial_as(others[0], address, expected)

    async def _dial_as(self, credentials: Credentials, address: PeerAddress, expected: ServerId | None) -> Dialed:
        session = self._session(address)
        for _ in range(_ATTEMPTS):
            stream = await self._connector(address)
            try:
                switched = await self._shake_hands(stream, address, session, credentials)
                if switched is not None:
                    _check_server(switched.peer, expected)
                    return Dialed(stream, switched.trailing, switched.peer, switched.extensions)
            except BaseException:
                await trio.aclose_forcefully(stream)
                raise
            await trio.aclose_forcefully(stream)
        raise GarlicFarmError(
            Fault.REFUSED_UPGRADE, f"{address} challenged {_ATTEMPTS} times in a row and accepted no fresh nonce"
        )

    async def _shake_hands(
        self, stream: trio.abc.Stream, address: PeerAddress, session: Session, credentials: Credentials
    ) -> Switched | None:
        client = UpgradeClient(self._caller, session, str(address), now_ms(), credentials)
        await stream.send_all(client.request())
        outcome = None
        while outcome is None:
            outcome = client.receive(bytes(await stream.receive_some(_READ_BYTES)))
        return outcome if isinstance(outcome, Switched) else None

    def _session(self, address: PeerAddress) -> Session:
        session = self._sessions.pop(address, None) or Session()
        if len(self._sessions) >= _SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[address] = session
        return session


def _check_server(peer: Identity, expected: ServerId | None) -> None:
    if None not in {peer.server_id, expected} and peer.server_id != expected:
        raise GarlicFarmError(
            Fault.WRONG_SERVER, f"server {peer.server_id} answers at the address that server {expected} announced"
        )


def _reason(error: BaseException) -> str:
    cause = error.__cause__ or error
    return str(cause) or type(cause).__name__
