"""The new node's side of an invitation: connect, compare the certificate, redeem the token.

    token ──▶ each address in turn ──▶ TLS with the certificate of the token ──▶ JoinRequest ──▶ Granted

The secret leaves this machine only after the certificate is compared. A machine between the two nodes does not have the
certificate's key. So it cannot read the secret, or change the farm key in transit.
"""

import ssl
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

import trio

from bridge.node.inviting.listener import receive_body
from bridge.wire.keys import invitation
from consensus.net import TlsStream, UntrustedCertificateError, connection_failure, secured
from gossip.node import NodeIdentity

CONNECT_S: Final = 10.0
EXCHANGE_S: Final = 30.0
_BROKEN: Final = (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, ssl.SSLError, OSError)


class JoinError(Exception):
    """The token could not be redeemed; the text has the reason and the next step."""

    def __init__(self, text: str, code: invitation.RefusalCode | None = None) -> None:
        super().__init__(text)
        self.code = code


async def redeem(token: invitation.Token, identity: NodeIdentity, name: str) -> invitation.Granted:
    """Redeem a token for an identity; raise JoinError."""
    failures: list[str] = []
    for place in token.places:
        try:
            stream = await _connected(place, token.fingerprint)
        except UntrustedCertificateError:
            failures.append(f"{place}: another program or machine answers there, not the node of the token")
        except (*_BROKEN, ExceptionGroup) as error:
            failures.append(f"{place}: {_failure(error)}")
        else:
            return await _redeemed(stream, place, token, identity, name)
    raise JoinError(_unreachable(failures))


async def _connected(place: invitation.InviterAddress, fingerprint: bytes) -> TlsStream:
    with trio.fail_after(CONNECT_S):
        transport = await trio.open_tcp_stream(place.host, place.port)
        try:
            return await secured(transport, fingerprint)
        except BaseException:
            await trio.aclose_forcefully(transport)
            raise


async def _redeemed(
    stream: TlsStream, place: invitation.InviterAddress, token: invitation.Token, identity: NodeIdentity, name: str
) -> invitation.Granted:
    try:
        async with aclosing(stream):
            with trio.fail_after(EXCHANGE_S):
                reply = await _exchange(stream, token, identity, name)
    except invitation.InvitationError as error:
        raise JoinError(f"the node at {place} replied in a wrong form: {error}") from None
    except _BROKEN as error:
        raise JoinError(
            f"the connection to {place} broke: {_failure(error)}. Run the same command again on this machine; the"
            " token stays valid for it"
        ) from None
    if reply.granted is None:
        refusal = reply.refusal or invitation.Refusal(invitation.RefusalCode.FAILED, "unknown")
        raise JoinError(f"the node at {place} refuses: {refusal.text}", refusal.code)
    return reply.granted


async def _exchange(stream: TlsStream, token: invitation.Token, identity: NodeIdentity, name: str) -> invitation.Reply:
    hello = invitation.decode_message(await receive_body(stream, invitation.REPLY_LIMIT_BYTES), invitation.Hello)
    signature = identity.key.sign(invitation.signed_bytes(token.fingerprint, hello.nonce, token.secret, name))
    public_key = identity.key.public_key().public_bytes_raw()
    await stream.send_all(
        invitation.encode_message(invitation.JoinRequest(invitation.VERSION, token.secret, name, public_key, signature))
    )
    return invitation.decode_message(await receive_body(stream, invitation.REPLY_LIMIT_BYTES), invitation.Reply)


def _failure(error: BaseException) -> str:
    return "no reply in time" if isinstance(error, trio.TooSlowError) else connection_failure(error)


def _unreachable(failures: Sequence[str]) -> str:
    return (
        f"the inviting node was not reached ({'; '.join(failures)}). It must run, its firewall must permit this TCP"
        " port, and its invitation must be open: `garlicfarm invite list` there"
    )
