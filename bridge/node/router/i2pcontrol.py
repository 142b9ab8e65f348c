"""Queries to a router through I2PControl, its JSON-RPC interface for statistics.

    facts ─▶ fresh enough? ─▶ token? ─▶ RouterInfo, NetworkSetting, GetRate ─▶ RouterFacts
                               │ none, or refused: Authenticate, once

A query sends one HTTP request at a time. The facts of a successful query are used for five seconds.

A wrong password is not used again for a minute. Routers log each attempt, and a router that counts them could lock the
operator out. i2pd does not support GetRate, and its NetworkSetting may set a value, so i2pd receives only RouterInfo.
If a Java router replies to NetworkSetting or GetRate with an error, only the figures of that request stay unknown. If
the router does not reply at all, or RouterInfo fails, the query fails.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import httpcore
import trio

from bridge.node.http_exchange import AnswerTooLongError, exchange
from bridge.node.router.link import CONNECT_TIMEOUT_S, ControlAccess, RouterLost, Software, read_tls_context, unreached
from bridge.wire.i2p import i2pcontrol as protocol

REQUEST_TIMEOUT_S: Final = 10.0
FRESH_S: Final = 5.0
PASSWORD_RETRY_S: Final = 60.0
_OK: Final = 200


class I2PControl:
    """The I2PControl of one router."""

    def __init__(self, access: ControlAccess) -> None:
        self._access = access
        self._token: str | None = None
        self._number = 0
        self._facts = protocol.RouterFacts()
        self._queried_at_s: float | None = None
        self._refused_until_s = float("-inf")
        self._one_question = trio.Lock()

    async def facts(self) -> protocol.RouterFacts:
        """Return the router's facts; raise `RouterLost` with the reason of a failure."""
        async with self._one_question:
            now_s = trio.current_time()
            if now_s < self._refused_until_s:
                raise RouterLost(self._wrong_password())
            if self._queried_at_s is None or now_s - self._queried_at_s >= FRESH_S:
                try:
                    self._facts = await self._query()
                except protocol.I2PControlError as error:
                    raise RouterLost(f"I2PControl at {self._access.link}: {error}") from error
                self._queried_at_s = trio.current_time()
            return self._facts

    async def _query(self) -> protocol.RouterFacts:
        info = await self._call("RouterInfo", dict.fromkeys(protocol.KEYS, ""))
        if self._access.software is Software.I2PD:
            return protocol.facts_of(info, {}, {})
        settings: Mapping[str, Any] = {}
        rate: Mapping[str, Any] = {}
        with suppress(protocol.I2PControlError):
            settings = await self._call("NetworkSetting", {protocol.LIMIT_IN: None, protocol.LIMIT_OUT: None})
        with suppress(protocol.I2PControlError):
            rate = await self._call("GetRate", {"Stat": protocol.JOB_LAG, "Period": protocol.JOB_LAG_PERIOD_MS})
        return protocol.facts_of(info, settings, rate)

    async def _call(self, method: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        fresh = self._token is None
        if self._token is None:
            self._token = await self._authenticate()
        try:
            return await self._request(method, {**parameters, "Token": self._token})
        except protocol.I2PControlError as error:
            if fresh or error.code not in protocol.TOKEN_FAULTS:
                raise
        self._token = await self._authenticate()
        return await self._request(method, {**parameters, "Token": self._token})

    async def _authenticate(self) -> str:
        self._token = None
        try:
            return protocol.token_of(
                await self._request("Authenticate", {"API": protocol.API_VERSION, "Password": self._access.password})
            )
        except protocol.I2PControlError as error:
            if error.code == protocol.WRONG_PASSWORD:
                self._refused_until_s = trio.current_time() + PASSWORD_RETRY_S
                raise RouterLost(self._wrong_password()) from None
            raise

    def _wrong_password(self) -> str:
        return f"I2PControl at {self._access.link} refuses the password: correct router.i2pcontrol_password_file"

    async def _request(self, method: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        self._number += 1
        body = protocol.encode_request(self._number, method, parameters)
        try:
            with trio.move_on_after(REQUEST_TIMEOUT_S):
                return protocol.decode_reply(await self._exchange(body))
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
            raise unreached(self._access.link, error.__cause__) from error
        except httpcore.NetworkError as error:
            raise RouterLost(f"I2PControl at {self._access.link} closed the connection") from error
        except httpcore.ProtocolError as error:
            raise RouterLost(f"I2PControl at {self._access.link} does not speak HTTP: {error}") from error
        raise RouterLost(f"I2PControl at {self._access.link} did not answer within {REQUEST_TIMEOUT_S:g} s")

    async def _exchange(self, body: bytes) -> bytes:
        link = self._access.link
        context = await read_tls_context(link)
        url = httpcore.URL(
            scheme="http" if context is None else "https", host=link.host, port=link.port, target=self._access.path
        )
        headers = [
            ("Host", str(link)),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        connection = httpcore.AsyncHTTPConnection(url.origin, context, network_backend=httpcore.TrioBackend())
        async with connection:
            try:
                status, answer = await exchange(
                    connection, "POST", url, headers, body, protocol.REPLY_LIMIT_BYTES, CONNECT_TIMEOUT_S
                )
            except AnswerTooLongError as error:
                raise protocol.I2PControlError(f"a reply of {error}") from error
        if status != _OK:
            raise protocol.I2PControlError(f"it answers with status {status}: check the address and path")
        return answer
