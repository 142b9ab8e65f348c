"""The port for new nodes, open only while a token can be redeemed, or the request of a redeemed token repeated.

    accept ─▶ TLS ─▶ Hello(nonce) ─▶ JoinRequest ─▶ signature ─▶ `Invitations.redeem`, durable ─▶ grant ─▶ Reply

A connection of an unknown sender occupies one place for some seconds, and costs the processor one handshake. The secret
has 128 random bits, so guesses do not need a lockout. Connections, bytes and times are limited. The node redeems one
request at a time.

The port and the certificate are the same for all tokens of a node, and survive a restart. The certificate has its own
key, so the tokens outlive a change of the certificate between servers.
"""

import os
import ssl
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import trio

from bridge.api.control import Refused
from bridge.node.inviting.invitations import Invitation, Invitations, Joiner, RedeemError
from bridge.wire.keys import invitation
from consensus.net import AcceptOptions, AcceptQueue, NodeCertificate, TlsStream, load_or_create_certificate

PORT: Final = 7671
DIRECTORY: Final = "invitations"
"""The directory of the certificate, in the state directory."""
EXCHANGE_S: Final = 10.0
REPLY_S: Final = 2.0
"""The part of the exchange for the reply, also after a grant that takes too long."""
EXCHANGES_MAX: Final = 16
"""Limit for exchanges at a time; the descriptors of exchanges and waiting connections are reserved.

A further exchange ends the oldest one. Even in a flood an exchange has most of a second for its three round trips.
"""
WAITING: Final = AcceptOptions(unknown_max=24, unknown_per_source_max=6, known_max=1, waiting_s=5.0, starts_per_s=20.0)
LOOK_EVERY_S: Final = 1.0
_BROKEN: Final = (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, ssl.SSLError, OSError)

Grant = Callable[[Joiner], Awaitable[invitation.Granted]]


def listener_certificate(state_dir: Path) -> NodeCertificate:
    """Return the certificate of the port; make it at the first call. Raise CertificateError."""
    return load_or_create_certificate(state_dir / DIRECTORY)


@dataclass(slots=True, kw_only=True)
class InvitationListener:
    """The listener of one node. `run` it once."""

    host: str
    invitations: Invitations
    certificate: NodeCertificate
    grant: Grant
    """Returns the content for an identity whose redemption is durable."""
    is_name_taken: Callable[[Joiner], bool] = lambda _: False
    redeemed: Callable[[Invitation, Joiner], None] = lambda *_: None
    refused: Callable[[str, invitation.RefusalCode], None] = lambda *_: None
    """Receives the address of a refused sender, and the reason."""
    failed: Callable[[str | None], None] = lambda _: None
    """Receives the reason why the port cannot be opened; None when it is open."""
    _running: dict[trio.CancelScope, None] = field(default_factory=dict, init=False)
    """Exchanges that may be ended to make room for a further one, the oldest first."""

    async def run(self, lock: trio.Lock) -> None:
        """Keep the port open while a token can be used, until canceled. `lock` guards the invitations."""
        context = self.certificate.server_context()

        async def handle(transport: trio.SocketStream, address: str) -> None:
            async with aclosing(TlsStream(transport, context, server_side=True)) as stream:
                with trio.move_on_after(EXCHANGE_S) as scope:
                    self._make_room(scope)
                    try:
                        await self._exchange(stream, address, lock)
                    finally:
                        self._running.pop(scope, None)

        while True:
            if self.invitations.is_listening:
                await self._listen(handle)
            await trio.sleep(LOOK_EVERY_S)

    async def _listen(self, handle: Callable[[trio.SocketStream, str], Awaitable[None]]) -> None:
        try:
            listeners = await trio.open_tcp_listeners(self.invitations.port, host=self.host)
        except OSError as error:
            self.failed(f"{self.host}:{self.invitations.port} cannot be opened: {error.strerror or error}")
            return
        self.failed(None)
        async with trio.open_nursery() as nursery:
            await nursery.start(AcceptQueue(WAITING).serve, listeners, handle)
            while True:
                await trio.sleep(LOOK_EVERY_S)
                if not self.invitations.is_listening:
                    nursery.cancel_scope.cancel()
                    return

    def _make_room(self, scope: trio.CancelScope) -> None:
        if len(self._running) >= EXCHANGES_MAX:
            oldest = next(iter(self._running))
            del self._running[oldest]
            oldest.cancel()
        self._running[scope] = None

    async def _exchange(self, stream: TlsStream, address: str, lock: trio.Lock) -> None:
        try:
            await stream.do_handshake()
            nonce = os.urandom(invitation.NONCE_BYTES)
            await stream.send_all(invitation.encode_message(invitation.Hello(invitation.VERSION, nonce)))
            reply = await self._reply(stream, nonce, address, lock)
            await stream.send_all(invitation.encode_message(reply))
        except _BROKEN:
            return

    async def _reply(self, stream: TlsStream, nonce: bytes, address: str, lock: trio.Lock) -> invitation.Reply:
        try:
            request = invitation.decode_message(
                await receive_body(stream, invitation.REQUEST_LIMIT_BYTES), invitation.JoinRequest
            )
        except invitation.InvitationError as error:
            return self._refused(address, invitation.RefusalCode.MALFORMED, str(error))
        if not invitation.is_proven(request, self.certificate.fingerprint, nonce):
            text = "the signature of the request is not valid for this connection"
            return self._refused(address, invitation.RefusalCode.UNPROVEN, text)
        joiner = Joiner(request.public_key, request.name)
        try:
            with trio.fail_at(trio.current_effective_deadline() - REPLY_S):
                return await self._granted(request.secret, joiner, lock)
        except RedeemError as error:
            return self._refused(address, error.code, str(error))
        except (Refused, trio.TooSlowError) as error:
            why = (
                str(error) or "no leader confirms the farm's state: `garlicfarm status` on the inviting node shows why"
            )
            text = f"{why}. Then run the command again: the token stays valid for this machine"
            return self._refused(address, invitation.RefusalCode.FAILED, text)
        except OSError as error:
            text = f"the disk of the inviting node: {error.strerror or error}; correct it, and run the command again"
            return self._refused(address, invitation.RefusalCode.FAILED, text)

    async def _granted(self, secret: bytes, joiner: Joiner, lock: trio.Lock) -> invitation.Reply:
        # Two grants at a time could choose the same spare key, and no grant may follow a revocation.
        async with lock:
            with trio.CancelScope(shield=True):  # After a canceled write the file and the memory would differ.
                is_taken = self.is_name_taken(joiner)
                spend = partial(self.invitations.redeem, secret, joiner, is_name_taken=is_taken)
                found = await trio.to_thread.run_sync(spend)
            self.redeemed(found, joiner)
            return invitation.Reply(granted=await self.grant(joiner))

    def _refused(self, address: str, code: invitation.RefusalCode, text: str) -> invitation.Reply:
        self.refused(address, code)
        return invitation.Reply(refusal=invitation.Refusal(code, text[:500]))


async def receive_body(stream: TlsStream, limit: int) -> bytes:
    """Receive one message and return its body; raise InvitationError."""
    head = await _receive_exactly(stream, invitation.LENGTH_BYTES)
    return await _receive_exactly(stream, invitation.body_length(head, limit))


async def _receive_exactly(stream: TlsStream, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        data = await stream.receive_some(size - len(received))
        if not data:
            raise trio.BrokenResourceError("it ended within a message")
        received += data
    return bytes(received)
