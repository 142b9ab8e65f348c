"""A script of SAM requests with the replies of i2pd: the loopback bridge and real routers must return the same replies.

    play(first bridge, second bridge) ─▶ one line for each step ─▶ compare with REPLIES

It uses plain streams and none of the tested client. Values that differ have names: <key>, <peer>, <version>. Messages
are omitted, because the versions of i2pd word them differently. The bridges belong to two routers of one network, or
are the same bridge.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from bridge.sam.connection import SamBridge
from bridge.wire.i2p.key_file import destination_of_sam_key
from bridge.wire.i2p.sam import parse_line, parse_peer

STEP_S = 90.0
"""Limit of one step: i2pd needs 12 to 40 s for a session, and up to 60 s for a failed look-up."""
CONNECT_PAUSE_S = 1.0
REPLIES = (
    "HELLO 3.1-3.3: HELLO REPLY RESULT=OK VERSION=<version>",
    "HELLO 9.0-9.9: HELLO REPLY RESULT=NOVERSION",
    "DEST GENERATE: DEST REPLY PUB=<peer> PRIV=<key>",
    "SESSION CREATE, unknown style: SESSION STATUS RESULT=I2P_ERROR",
    "SESSION CREATE, invalid key: SESSION STATUS RESULT=INVALID_KEY",
    "SESSION CREATE, invalid ID: SESSION STATUS RESULT=INVALID_ID",
    "SESSION CREATE, own key: SESSION STATUS RESULT=OK DESTINATION=<key>",
    "SESSION CREATE, same ID: SESSION STATUS RESULT=DUPLICATED_ID",
    "STREAM CONNECT, unknown ID: STREAM STATUS RESULT=INVALID_ID",
    "STREAM CONNECT, invalid destination: STREAM STATUS RESULT=INVALID_KEY",
    "STREAM CONNECT, unknown destination: STREAM STATUS RESULT=CANT_REACH_PEER",
    "STREAM ACCEPT, unknown ID: STREAM STATUS RESULT=INVALID_ID",
    "unknown verb: end",
    "SESSION CREATE, TRANSIENT: SESSION STATUS RESULT=OK DESTINATION=<key>",
    "STREAM ACCEPT: STREAM STATUS RESULT=OK",
    "STREAM CONNECT: STREAM STATUS RESULT=OK",
    "line before the accepted stream: <peer>",
    "request: ping",
    "reply: pong",
    "half-close: acceptor received <request>, then the end",
    "half-close: client received the end",
    "end of the session: a waiting STREAM ACCEPT ends",
    "end of the session: STREAM CONNECT: STREAM STATUS RESULT=INVALID_ID",
)


@dataclass(eq=False)
class _Script:
    lines: list[str] = field(default_factory=list)

    def add(self, step: str, reply: str) -> None:
        self.lines.append(f"{step}: {reply}")


class _Line:
    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream

    async def receive(self) -> bytes:
        """Return the next line; empty at the end of the connection. Bytes after the line stay unread."""
        line = bytearray()
        with trio.fail_after(STEP_S):
            while not line.endswith(b"\n"):
                try:
                    received = await self.stream.receive_some(1)
                except trio.BrokenResourceError:
                    return b""
                if not received:
                    return b""
                line += received
        return bytes(line)

    async def call(self, request: str) -> str:
        """Return the reply without its message and with names for keys; "end" if the connection ends."""
        await self.stream.send_all(f"{request}\n".encode())
        if not (data := await self.receive()):
            return "end"
        reply = parse_line(data)
        shown = [f"{key}={_name(key, value)}" for key, value in reply.pairs.items() if key != "MESSAGE"]
        return " ".join([reply.words, *shown])

    async def ends(self) -> bool:
        """Return True if the connection ends without another byte."""
        with trio.fail_after(STEP_S):
            try:
                return not await self.stream.receive_some(1)
            except trio.BrokenResourceError:
                return True


def _name(key: str, value: str) -> str:
    return {"PUB": "<peer>", "PRIV": "<key>", "DESTINATION": "<key>", "VERSION": "<version>"}.get(key, value)


@asynccontextmanager
async def _greeted(bridge: SamBridge) -> AsyncIterator[_Line]:
    async with await trio.open_tcp_stream(bridge.host, bridge.port) as stream:
        line = _Line(stream)
        await line.call("HELLO VERSION MIN=3.1 MAX=3.3")
        yield line


async def _ask(bridge: SamBridge, request: str) -> str:
    async with _greeted(bridge) as line:
        return await line.call(request)


async def play(first: SamBridge, second: SamBridge, options: str = "") -> list[str]:
    """Play the script; `options` are further options of SESSION CREATE."""
    script = _Script()
    await _play_greetings(script, first)
    async with _greeted(first) as line:
        await line.stream.send_all(b"DEST GENERATE SIGNATURE_TYPE=7\n")
        private_key = parse_line(await line.receive()).pairs["PRIV"]
    create = "SESSION CREATE STYLE={} ID={} DESTINATION={} SIGNATURE_TYPE=7 i2cp.leaseSetEncType=4 " + options
    refused = {
        "unknown style": create.format("SMOKE", "refused", private_key),
        "invalid key": create.format("STREAM", "refused", "AAAA"),
        "invalid ID": create.format("STREAM", "a/b", private_key),
    }
    for step, request in refused.items():
        script.add(f"SESSION CREATE, {step}", await _ask(first, request.strip()))
    async with _greeted(first) as server, _greeted(second) as client:
        script.add("SESSION CREATE, own key", await server.call(create.format("STREAM", "server", private_key).strip()))
        script.add("SESSION CREATE, same ID", await _ask(first, create.format("STREAM", "server", "TRANSIENT").strip()))
        await _play_refused_streams(script, first)
        reply = await client.call(create.format("STREAM", "client", "TRANSIENT").strip())
        script.add("SESSION CREATE, TRANSIENT", reply)
        await _play_stream(script, first, second, destination_of_sam_key(private_key).address)
        async with _greeted(first) as acceptor:
            await acceptor.call("STREAM ACCEPT ID=server SILENT=false")
            await server.stream.aclose()
            script.add("end of the session", "a waiting STREAM ACCEPT ends" if await acceptor.ends() else "bytes")
        reply = await _ask(first, f"STREAM CONNECT ID=server DESTINATION={'a' * 52}.b32.i2p SILENT=false")
        script.add("end of the session: STREAM CONNECT", reply)
    return script.lines


async def _play_greetings(script: _Script, bridge: SamBridge) -> None:
    for versions in ("3.1-3.3", "9.0-9.9"):
        lowest, highest = versions.split("-")
        async with await trio.open_tcp_stream(bridge.host, bridge.port) as stream:
            reply = await _Line(stream).call(f"HELLO VERSION MIN={lowest} MAX={highest}")
            script.add(f"HELLO {versions}", reply)
    script.add("DEST GENERATE", await _ask(bridge, "DEST GENERATE SIGNATURE_TYPE=7"))


async def _play_refused_streams(script: _Script, bridge: SamBridge) -> None:
    connect = "STREAM CONNECT ID={} DESTINATION={} SILENT=false"
    unknown = f"{'a' * 52}.b32.i2p"
    script.add("STREAM CONNECT, unknown ID", await _ask(bridge, connect.format("missing", unknown)))
    script.add("STREAM CONNECT, invalid destination", await _ask(bridge, connect.format("server", "AAAA")))
    script.add("STREAM CONNECT, unknown destination", await _ask(bridge, connect.format("server", unknown)))
    script.add("STREAM ACCEPT, unknown ID", await _ask(bridge, "STREAM ACCEPT ID=missing SILENT=false"))
    script.add("unknown verb", await _ask(bridge, "SMOKE SIGNAL ID=1"))


async def _play_stream(script: _Script, first: SamBridge, second: SamBridge, address: str) -> None:
    connect = f"STREAM CONNECT ID=client DESTINATION={address} SILENT=false"
    async with _greeted(first) as acceptor:
        script.add("STREAM ACCEPT", await acceptor.call("STREAM ACCEPT ID=server SILENT=false"))
        async with _connected(script, second, connect) as client:
            await client.stream.send_all(b"ping\n")
            parse_peer(await acceptor.receive())
            script.add("line before the accepted stream", "<peer>")
            script.add("request", (await acceptor.receive()).decode().strip())
            await acceptor.stream.send_all(b"pong\n")
            script.add("reply", (await client.receive()).decode().strip())
            await client.stream.send_all(b"request\n")
            await client.stream.send_eof()
            received = (await acceptor.receive()).decode().strip()
            end = "the end" if await acceptor.ends() else "bytes"
            script.add("half-close", f"acceptor received <{received}>, then {end}")
            script.add("half-close", f"client received {'the end' if await client.ends() else 'bytes'}")


@asynccontextmanager
async def _connected(script: _Script, bridge: SamBridge, connect: str) -> AsyncIterator[_Line]:
    """Connect, again for some time: i2pd publishes the lease set of a session after its OK."""
    began_s = trio.current_time()
    while True:
        async with _greeted(bridge) as client:
            reply = await client.call(connect)
            if reply.endswith("RESULT=OK") or trio.current_time() > began_s + STEP_S:
                script.add("STREAM CONNECT", reply)
                yield client
                return
        await trio.sleep(CONNECT_PAUSE_S)
