"""The exchange of a token over real sockets, and attacks on it.

Each attack ends without a farm key for the attacker. Some attacks use a used, expired, revoked or altered token, a
recorded exchange, or a machine in the middle. Others send a flood of connections, slow bytes, or messages beyond the
limits.
"""

import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from bridge.api.control import Refused
from bridge.node.inviting import listener as listening
from bridge.node.inviting.invitations import Invitations, Joiner
from bridge.node.inviting.listener import InvitationListener, listener_certificate, receive_body
from bridge.node.inviting.redeeming import JoinError, redeem
from bridge.wire.keys.invitation import (
    REPLY_LIMIT_BYTES,
    Granted,
    Hello,
    InviterAddress,
    JoinRequest,
    RefusalCode,
    Reply,
    Token,
    decode_message,
    encode_message,
    signed_bytes,
)
from consensus.net import NodeCertificate, TlsStream, load_or_create_certificate, secured
from gossip.node import NodeIdentity
from tests.processes import free_ports, hold_for_sockets

SECRET_OF_FARM = "the farm key"  # noqa: S105 - of a test
HOST = "127.0.0.1"
TIMEOUT_S = 60


@dataclass
class Stage:
    """An inviting node: its file, its port, and its counts."""

    invitations: Invitations
    certificate: NodeCertificate
    port: int
    granted: list[Joiner] = field(default_factory=list)
    refused: list[RefusalCode] = field(default_factory=list)
    now_ms: int = 1_800_000_000_000

    def token(self, uses: int = 1, lifetime_s: int = 3600) -> Token:
        _, secret = self.invitations.create(uses, lifetime_s, self.port)
        return Token((InviterAddress(HOST, self.port),), self.certificate.fingerprint, secret)

    granting: Callable[[Joiner], Awaitable[Granted]] | None = None
    lock: trio.Lock = field(default_factory=trio.Lock)

    is_name_taken: Callable[[Joiner], bool] = lambda _: False

    async def grant(self, joiner: Joiner) -> Granted:
        if self.granting is not None:
            return await self.granting(joiner)
        await trio.lowlevel.checkpoint()
        self.granted.append(joiner)
        return Granted(SECRET_OF_FARM, "site-a")


@asynccontextmanager
async def stage(directory: Path) -> AsyncIterator[Stage]:
    [port] = free_ports(1)
    made = Stage(Invitations(directory, lambda: made.now_ms, monotonic_s=float), listener_certificate(directory), port)
    listener = InvitationListener(
        host=HOST,
        invitations=made.invitations,
        certificate=made.certificate,
        grant=made.grant,
        is_name_taken=lambda joiner: joiner.name == "site-a" or made.is_name_taken(joiner),
        refused=lambda _, code: made.refused.append(code),
    )
    made.invitations.create(1, 3600, port)
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.run, made.lock)
            await reachable(port)
            yield made
            nursery.cancel_scope.cancel()


async def reachable(port: int) -> None:
    while True:
        with suppress(OSError):
            await (await trio.open_tcp_stream(HOST, port)).aclose()
            return
        await trio.sleep(0.01)


async def refused(token: Token, reason: str, identity: NodeIdentity | None = None) -> None:
    with pytest.raises(JoinError, match=reason):
        await redeem(token, identity or NodeIdentity.throwaway(), "thief")


async def test_token_gives_farm_key(tmp_path: Path) -> None:
    async with stage(tmp_path) as node:
        identity = NodeIdentity.throwaway()
        granted = await redeem(node.token(), identity, "site-b")
        assert granted == Granted(SECRET_OF_FARM, "site-a")
        assert [(each.node_id, each.name) for each in node.granted] == [(bytes(identity.node_id), "site-b")]


async def test_token_stays_valid_after_taken_name(tmp_path: Path) -> None:
    async with stage(tmp_path) as node:
        token, identity = node.token(), NodeIdentity.throwaway()
        with pytest.raises(JoinError, match="has the name 'site-a': choose another name"):
            await redeem(token, identity, "site-a")
        assert node.refused == [RefusalCode.NAME_TAKEN]
        assert (await redeem(token, NodeIdentity.throwaway(), "site-b")).inviter == "site-a"


async def test_used_token_is_refused_for_other_identity(tmp_path: Path) -> None:
    async with stage(tmp_path) as node:
        token, identity = node.token(), NodeIdentity.throwaway()
        await redeem(token, identity, "site-b")
        await refused(token, "used already")
        with pytest.raises(JoinError, match="used already"):
            await redeem(token, NodeIdentity.throwaway(), "site-b")
        await redeem(token, identity, "site-b")
        assert {each.node_id for each in node.granted} == {bytes(identity.node_id)}


async def test_simultaneous_uses_give_one_farm_key(tmp_path: Path) -> None:
    async with stage(tmp_path) as node:
        token, ends = node.token(), list[str]()

        async def attempt() -> None:
            try:
                ends.append((await redeem(token, NodeIdentity.throwaway(), "site-b")).inviter)
            except JoinError as error:
                ends.append(str(error))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(attempt)
        assert ends.count("site-a") == 1
        assert len(node.granted) == 1


async def test_grants_are_made_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two grants at a time could choose the same spare signing key."""
    async with stage(tmp_path) as node:
        running, most = [0], [0]

        async def grant(joiner: Joiner) -> Granted:
            running[0] += 1
            most[0] = max(most[0], running[0])
            await trio.sleep(0.05)
            running[0] -= 1
            node.granted.append(joiner)
            return Granted(SECRET_OF_FARM, "site-a")

        monkeypatch.setattr(node, "granting", grant)
        token = node.token(uses=4)
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(redeem, token, NodeIdentity.throwaway(), "site-b")
        assert (len(node.granted), most[0]) == (4, 1)


async def test_farm_key_is_not_granted_after_revocation(tmp_path: Path) -> None:
    async with stage(tmp_path) as node, trio.open_nursery() as nursery:
        order, revoked = list[str](), trio.Event()

        async def revoke() -> None:
            async with node.lock:
                node.invitations.revoke(node.invitations.all[-1].id)
                order.append("revoked")
                revoked.set()

        async def grant(_: Joiner) -> Granted:
            await trio.lowlevel.checkpoint()
            order.append("granted")
            return Granted(SECRET_OF_FARM, "site-a")

        def is_name_taken(_: Joiner) -> bool:
            # The request holds the lock now, so the revocation is next.
            nursery.start_soon(revoke)
            return False

        node.granting, node.is_name_taken = grant, is_name_taken
        await redeem(node.token(), NodeIdentity.throwaway(), "site-b")
        await revoked.wait()
        assert order == ["granted", "revoked"]


async def test_unconfirmed_farm_key_is_not_granted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage(tmp_path) as node:
        token, identity = node.token(), NodeIdentity.throwaway()

        async def refuse(_: Joiner) -> Granted:
            raise Refused(503, "no-leader", "no leader has confirmed the commit index")

        with monkeypatch.context() as patch:
            patch.setattr(node, "granting", refuse)
            await refused(token, "no leader .* run the command again: the token stays valid", identity)
        assert (await redeem(token, identity, "site-b")).inviter == "site-a"


async def test_expired_and_revoked_tokens_are_refused(tmp_path: Path) -> None:
    async with stage(tmp_path) as node:
        expired, token = node.token(lifetime_s=60), node.token()
        node.now_ms += 60_000
        await refused(expired, "has expired")
        node.invitations.revoke(node.invitations.all[-1].id)
        await refused(token, "revoked")
        await refused(replace(token, secret=bytes(16)), "does not have an invitation")
        assert node.refused == [RefusalCode.EXPIRED, RefusalCode.REVOKED, RefusalCode.UNKNOWN]
        assert node.granted == []


async def test_token_survives_restart_of_inviting_node(tmp_path: Path) -> None:
    async with stage(tmp_path) as node:
        token = node.token()
    async with stage(tmp_path) as node:
        assert node.certificate.fingerprint == token.fingerprint
        moved = replace(token, places=(InviterAddress(HOST, node.port),))
        await redeem(moved, NodeIdentity.throwaway(), "site-b")
        await refused(moved, "used already")


async def test_port_is_closed_without_invitation(tmp_path: Path) -> None:
    async with stage(tmp_path) as node:
        token = node.token()
        for each in node.invitations.all:
            node.invitations.revoke(each.id)
        while True:
            try:
                await (await trio.open_tcp_stream(HOST, node.port)).aclose()
            except OSError:
                break
            await trio.sleep(0.05)
        await refused(token, "was not reached")


async def test_second_address_of_token_is_tried(tmp_path: Path) -> None:
    async with stage(tmp_path) as node:
        with socket.socket() as closed:
            closed.bind((HOST, 0))
            wrong = InviterAddress(HOST, int(closed.getsockname()[1]))
            token = replace(node.token(), places=(wrong, InviterAddress(HOST, node.port)))
            assert (await redeem(token, NodeIdentity.throwaway(), "site-b")).inviter == "site-a"


@asynccontextmanager
async def served(handle: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[int]:
    """Serve another program's port."""

    async def closing(stream: trio.SocketStream) -> None:
        async with stream:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError):
                await handle(stream)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, closing, 0)
        yield int(listeners[0].socket.getsockname()[1])
        nursery.cancel_scope.cancel()


async def test_machine_in_middle_does_not_receive_secret(tmp_path: Path) -> None:
    async with stage(tmp_path) as node:
        token, received = node.token(), bytearray()
        other = load_or_create_certificate(tmp_path / "other")

        async def attack(transport: trio.SocketStream) -> None:
            stream = TlsStream(transport, other.server_context(), server_side=True)
            await stream.do_handshake()
            await stream.send_all(encode_message(Hello(1, bytes(32))))
            while data := await stream.receive_some():
                received.extend(data)

        async with served(attack) as port:
            await refused(replace(token, places=(InviterAddress(HOST, port),)), "another program or machine answers")
        assert received == b""
        await redeem(token, NodeIdentity.throwaway(), "site-b")


async def test_recorded_exchange_cannot_be_replayed(tmp_path: Path) -> None:
    async with stage(tmp_path) as node:
        recorded = bytearray()

        async def relay(outside: trio.SocketStream) -> None:
            inside = await trio.open_tcp_stream(HOST, node.port)

            async def copy(source: trio.SocketStream, sink: trio.SocketStream, *, record: bool) -> None:
                async for data in source:
                    if record:
                        recorded.extend(data)
                    await sink.send_all(data)
                await sink.send_eof()

            async with inside, trio.open_nursery() as nursery:
                nursery.start_soon(lambda: copy(outside, inside, record=True))
                nursery.start_soon(lambda: copy(inside, outside, record=False))

        token = node.token()
        async with served(relay) as port:
            await redeem(replace(token, places=(InviterAddress(HOST, port),)), NodeIdentity.throwaway(), "site-b")
        assert token.secret not in recorded
        assert len(node.granted) == 1
        replayed = await trio.open_tcp_stream(HOST, node.port)
        async with replayed:
            await replayed.send_all(bytes(recorded))
            answer = bytearray()
            with suppress(trio.BrokenResourceError):
                async for data in replayed:
                    answer.extend(data)
        assert SECRET_OF_FARM.encode() not in answer
        assert len(node.granted) == 1


async def exchanged(node: Stage, token: Token, change: Callable[[JoinRequest, bytes], JoinRequest | bytes]) -> Reply:
    """Send a changed request as an attacker with the token; return the reply."""
    transport = await trio.open_tcp_stream(HOST, node.port)
    stream = await secured(transport, token.fingerprint)
    try:
        hello = decode_message(await receive_body(stream, REPLY_LIMIT_BYTES), Hello)
        identity = NodeIdentity.throwaway()
        signature = identity.key.sign(signed_bytes(token.fingerprint, hello.nonce, token.secret, "thief"))
        public_key = identity.key.public_key().public_bytes_raw()
        sent = change(JoinRequest(1, token.secret, "thief", public_key, signature), hello.nonce)
        await stream.send_all(sent if isinstance(sent, bytes) else encode_message(sent))
        return decode_message(await receive_body(stream, REPLY_LIMIT_BYTES), Reply)
    finally:
        await trio.aclose_forcefully(transport)


async def test_request_for_foreign_identity_is_refused(tmp_path: Path) -> None:
    victim = NodeIdentity.throwaway().key.public_key().public_bytes_raw()
    earlier = JoinRequest(1, bytes(16), "thief", victim, bytes(64))
    async with stage(tmp_path) as node:
        token = node.token()
        for change in (
            lambda request, _: JoinRequest(1, request.secret, request.name, victim, request.signature),
            lambda request, _: JoinRequest(1, request.secret, "other", request.public_key, request.signature),
            lambda request, _: JoinRequest(1, request.secret, "thief", earlier.public_key, earlier.signature),
        ):
            reply = await exchanged(node, token, change)
            assert reply.refusal is not None
            assert reply.refusal.code is RefusalCode.UNPROVEN
        assert node.granted == []
        assert node.invitations.open_uses == 2


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff\xff\xff\xff",
        b"\0\0\x10\0" + b"x" * 4096,
        b"\0\0\0\0",
        b"\0\0\0\x02{}",
        b"\0\0\0\x04" + b"[[[[",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\1\0" + os.urandom(256),
    ],
)
async def test_malformed_request_is_refused_in_bounds(tmp_path: Path, sent: bytes) -> None:
    async with stage(tmp_path) as node:
        reply = await exchanged(node, node.token(), lambda *_: sent)
        assert reply.refusal is not None
        assert reply.refusal.code is RefusalCode.MALFORMED
        assert len(node.invitations.all) == 2
        assert node.granted == []


async def test_many_connections_do_not_exclude_new_node(tmp_path: Path) -> None:
    async with stage(tmp_path) as node:
        token, held = node.token(), list[trio.SocketStream]()
        try:
            for number in range(20 * listening.EXCHANGES_MAX):
                stream = await trio.open_tcp_stream(HOST, node.port)
                if number % 2:
                    await stream.send_all(b"\x16")
                held.append(stream)
                if len(held) > 5 * listening.EXCHANGES_MAX:
                    await held.pop(0).aclose()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_redeem_in_flood, token, node, nursery.cancel_scope)
                while True:
                    held.append(await trio.open_tcp_stream(HOST, node.port))
                    await held[-1].send_all(b"\x16")
                    await trio.sleep(0.02)
        finally:
            for stream in held:
                await trio.aclose_forcefully(stream)
        assert len(node.granted) == 1


async def _redeem_in_flood(token: Token, node: Stage, flood: trio.CancelScope) -> None:
    identity = NodeIdentity.throwaway()
    while not node.granted:
        with suppress(JoinError):
            await redeem(token, identity, "site-b")
    flood.cancel()


async def test_slow_grant_is_refused_with_reason(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    hold_for_sockets(autojump_clock)
    async with stage(tmp_path) as node:
        token, identity = node.token(), NodeIdentity.throwaway()

        async def grant(_joiner: Joiner) -> Granted:
            await trio.sleep_forever()
            raise AssertionError("unreachable")

        node.granting = grant
        with pytest.raises(JoinError, match=r"no leader confirms .* the token stays valid for this machine"):
            await redeem(token, identity, "site-b")
        assert node.refused == [RefusalCode.FAILED]
        node.granting = None
        assert (await redeem(token, identity, "site-b")).inviter == "site-a"


async def test_slow_sender_loses_its_connection(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    hold_for_sockets(autojump_clock)
    async with stage(tmp_path) as node:
        token = node.token()
        transport = await trio.open_tcp_stream(HOST, node.port)
        stream = await secured(transport, token.fingerprint)
        await receive_body(stream, REPLY_LIMIT_BYTES)
        with suppress(trio.BrokenResourceError):
            await stream.send_all(b"\0\0")
            assert await stream.receive_some() == b""
        await trio.aclose_forcefully(transport)
        await redeem(token, NodeIdentity.throwaway(), "site-b")


async def test_reply_in_wrong_form_is_a_join_error(tmp_path: Path) -> None:
    certificate = listener_certificate(tmp_path)
    token = Token((InviterAddress(HOST, 1),), certificate.fingerprint, bytes(16))
    wrong, broke = "replied in a wrong form", "broke: it ended within a message. Run the same command again"
    for sent, reason in (
        (b"\xff\xff\xff\xff", wrong),
        (b"\0\0\0\x02{}", wrong),
        (b"", broke),
        (b"\0\0\0\x10abc", broke),
    ):

        async def answer(transport: trio.SocketStream, sent: bytes = sent) -> None:
            stream = TlsStream(transport, certificate.server_context(), server_side=True)
            await stream.do_handshake()
            await stream.send_all(sent)
            await stream.aclose()

        async with served(answer) as port:
            await refused(replace(token, places=(InviterAddress(HOST, port),)), reason)
