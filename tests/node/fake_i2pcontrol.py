"""A fake I2PControl that answers HTTP requests over memory streams, as a Java router or i2pd does."""

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import h11
import pytest
import trio
import trio.testing

JAVA_INFO: dict[str, Any] = {
    "i2p.router.uptime": 3_600_000,
    "i2p.router.version": "2.10.0",
    "i2p.router.status": "OK",
    "i2p.router.net.status": 0,
    "i2p.router.net.tunnels.participating": 120,
    "i2p.router.net.tunnels.exploratory.inbound": 2,
    "i2p.router.net.tunnels.exploratory.outbound": 3,
    "i2p.router.net.bw.inbound.15s": 10_000.4,
    "i2p.router.net.bw.outbound.15s": 20_000.4,
    "i2p.router.info": "cm91dGVyaW5mbw==",
}
I2PD_INFO: dict[str, Any] = {
    "i2p.router.uptime": "7200000",
    "i2p.router.version": "2.56.0",
    "i2p.router.net.status": 1,
    "i2p.router.net.tunnels.participating": 7,
    "i2p.router.net.bw.inbound.15s": 1_000.0,
    "i2p.router.net.bw.outbound.15s": 2_000.0,
}


@dataclass(eq=False)
class FakeControl:
    """A fake I2PControl."""

    info: dict[str, Any] = field(default_factory=lambda: dict(JAVA_INFO))
    is_java: bool = True
    path: str = "/jsonrpc/"
    password: str = "word"  # noqa: S105 - of a fake router
    up: bool = True
    unresponsive: bool = False
    raw: bytes | None = None
    """Bytes sent as the response to any request."""
    token: int = 1
    calls: list[str] = field(default_factory=list)

    async def serve(self, stream: trio.abc.Stream) -> None:
        connection = h11.Connection(h11.SERVER)
        body, target = b"", ""
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(bytes(await stream.receive_some(4096)))
            elif isinstance(event, h11.Request):
                target = event.target.decode()
            elif isinstance(event, h11.Data):
                body += event.data
            else:
                break
        if self.unresponsive:
            await trio.sleep_forever()
        answer = self.raw if self.raw is not None else self._http(connection, target, body)
        await stream.send_all(answer)
        await stream.aclose()

    def _http(self, connection: h11.Connection, target: str, body: bytes) -> bytes:
        status, text = (200, json.dumps(self._answer(json.loads(body)))) if target == self.path else (404, "")
        response = h11.Response(status_code=status, headers=[("Connection", "close")])
        sent = [connection.send(each) for each in (response, h11.Data(data=text.encode()), h11.EndOfMessage())]
        return b"".join(each or b"" for each in sent)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:  # noqa: PLR0911 - one return per case
        method, params = request["method"], request["params"]
        self.calls.append(method)
        head = {"jsonrpc": "2.0", "id": request["id"]}
        if method == "Authenticate":
            if params != {"API": 1, "Password": self.password}:
                if not self.is_java:
                    return {**head, "result": {}}
                return {**head, "error": {"code": -32001, "message": "Invalid password provided."}}
            return {**head, "result": {"API": 1, "Token": f"token-{self.token}"}}
        if params.get("Token") != f"token-{self.token}":
            return {**head, "error": {"code": -32003, "message": "The provided authentication token doesn't exist."}}
        if method == "RouterInfo":
            return {**head, "result": {key: value for key, value in self.info.items() if key in params}}
        if not self.is_java:
            return {**head, "error": {"code": -32601, "message": "Method not found"}}
        if method == "GetRate":
            assert params["Stat"] == "jobQueue.jobLag"
            return {**head, "result": {"Result": 12.5}}
        assert {key: params[key] for key in params if key != "Token"} == dict.fromkeys(
            ("i2p.router.net.bw.in", "i2p.router.net.bw.out")
        )
        return {
            **head,
            "result": {"i2p.router.net.bw.in": "100", "i2p.router.net.bw.out": "60", "SettingsSaved": False},
        }


@contextmanager
def control_in_place_of_sockets(
    control: FakeControl, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeControl]:
    async def open_tcp_stream(host: str, port: int, *, local_address: str | None) -> trio.abc.Stream:
        assert local_address is None
        await trio.lowlevel.checkpoint()
        if not control.up:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"all attempts to connect to {host}:{port} failed")
        ours, theirs = trio.testing.memory_stream_pair()
        nursery.start_soon(control.serve, theirs)
        return ours

    with monkeypatch.context() as patched:
        patched.setattr(trio, "open_tcp_stream", open_tcp_stream)
        yield control
