"""I2PControl ⇄ values: the JSON-RPC 2.0 interface for a router's status (I2PControl, API 1).

    Authenticate {API, Password} ─▶ Token            RouterInfo {Token, keys} ─▶ figures
    GetRate {Token, Stat, Period} ─▶ Result          NetworkSetting {Token, keys: null} ─▶ settings

A router answers the keys that it knows and ignores the others. So one request has all of them, and a key that is
missing in the answer becomes None. Older routers send numbers as texts. docs/reference/router-report.md has the meaning
of each key, and the kinds of routers that have it.

`I2PControlError` is the only error of the decoder.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from bridge.core.log.figures import RouterStatus

API_VERSION: Final = 1
REPLY_LIMIT_BYTES: Final = 256 * 1024
WRONG_PASSWORD: Final = -32001
TOKEN_FAULTS: Final = frozenset({-32002, -32003, -32004})
"""Codes for a missing, an unknown and an expired token. The client then authenticates again."""

UPTIME: Final = "i2p.router.uptime"
VERSION: Final = "i2p.router.version"
STATUS: Final = "i2p.router.status"
NET_STATUS: Final = "i2p.router.net.status"
PARTICIPATING: Final = "i2p.router.net.tunnels.participating"
EXPLORATORY_IN: Final = "i2p.router.net.tunnels.exploratory.inbound"
EXPLORATORY_OUT: Final = "i2p.router.net.tunnels.exploratory.outbound"
BANDWIDTH_IN: Final = "i2p.router.net.bw.inbound.15s"
BANDWIDTH_OUT: Final = "i2p.router.net.bw.outbound.15s"
ROUTER_INFO: Final = "i2p.router.info"
LIMIT_IN: Final = "i2p.router.net.bw.in"
LIMIT_OUT: Final = "i2p.router.net.bw.out"
JOB_LAG: Final = "jobQueue.jobLag"
JOB_LAG_PERIOD_MS: Final = 60_000
KEYS: Final = (
    *(UPTIME, VERSION, STATUS, NET_STATUS, PARTICIPATING, EXPLORATORY_IN, EXPLORATORY_OUT),
    *(BANDWIDTH_IN, BANDWIDTH_OUT, ROUTER_INFO),
)
_KIB: Final = 1024
_COUNT_LIMIT: Final = 2**53
_TEXT_LIMIT: Final = 200
_ROUTER_INFO_LIMIT: Final = 16_384
_TOKEN_LIMIT: Final = 1024
_NET_ERRORS: Final = {
    8: "its I2CP port has an error",
    9: "its clock is off",
    10: "its TCP address is private",
    11: "it has a symmetric NAT",
    12: "its UDP port is in use",
    13: "it does not have active peers: check connection and firewall",
    14: "UDP is disabled and TCP does not have an address",
}


class I2PControlError(ValueError):
    """The reply is not valid in I2PControl, or it reports an error; `code` is the number of this error, if any."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


_UNKNOWN: Final = RouterStatus(attached=True)


class RouterFacts(Struct, frozen=True):
    """A router's facts about itself; None means unknown."""

    report: RouterStatus = _UNKNOWN
    """Figures of the router, and its RouterInfo."""
    version: str | None = None
    status: str | None = None
    network_error: str | None = None


class _Failure(msgspec.Struct):
    code: int
    message: str = ""


class _Reply(msgspec.Struct):
    result: dict[str, Any] | None = None
    error: _Failure | None = None


_reply = msgspec.json.Decoder(_Reply)


def encode_request(number: int, method: str, parameters: Mapping[str, Any]) -> bytes:
    """Return the body of a request."""
    request = {"jsonrpc": "2.0", "id": str(number), "method": method, "params": dict(parameters)}
    return msgspec.json.encode(request)


def decode_reply(data: bytes) -> dict[str, Any]:
    """Return the result in a reply's body."""
    if len(data) > REPLY_LIMIT_BYTES:
        raise I2PControlError(f"a reply of more than {REPLY_LIMIT_BYTES} bytes")
    try:
        reply = _reply.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise I2PControlError("the reply is not JSON-RPC") from None
    if reply.error is not None:
        message = _printable(reply.error.message) or "no reason given"
        raise I2PControlError(f"{message} (error {reply.error.code})", reply.error.code)
    if reply.result is None:
        raise I2PControlError("the reply has neither result nor error")
    return reply.result


def token_of(result: Mapping[str, Any]) -> str:
    """Return the token in the answer to Authenticate."""
    match result.get("Token"):
        case str(token) if 0 < len(token) <= _TOKEN_LIMIT:
            return token
        case None:  # i2pd replies so to a wrong password.
            raise I2PControlError("the reply to Authenticate lacks a token", WRONG_PASSWORD)
        case _:
            raise I2PControlError("the reply to Authenticate lacks a token")


def facts_of(info: Mapping[str, Any], settings: Mapping[str, Any], rate: Mapping[str, Any]) -> RouterFacts:
    """Return the facts in the replies to RouterInfo, NetworkSetting and GetRate; the last two are empty if unknown."""
    code = _count(info.get(NET_STATUS))
    limit = _sum(_count(settings.get(LIMIT_IN)), _count(settings.get(LIMIT_OUT)))
    return RouterFacts(
        report=RouterStatus(
            attached=True,
            uptime_ms=_count(info.get(UPTIME)),
            job_lag_ms=_figure(rate.get("Result")),
            exploratory_tunnels=_sum(_count(info.get(EXPLORATORY_IN)), _count(info.get(EXPLORATORY_OUT))),
            participating_tunnels=_count(info.get(PARTICIPATING)),
            configured_bandwidth_bytes_per_s=None if limit is None else limit * _KIB,
            current_bandwidth_bytes_per_s=_sum(_count(info.get(BANDWIDTH_IN)), _count(info.get(BANDWIDTH_OUT))),
            last_published_router_info=_router_info(info.get(ROUTER_INFO)),
        ),
        version=_text(info.get(VERSION)),
        status=_text(info.get(STATUS)),
        network_error=None if code is None else _NET_ERRORS.get(code),
    )


def _figure(found: object) -> float | None:
    match found:
        case bool():
            return None
        case int() | float():
            return float(found) if 0 <= found < _COUNT_LIMIT else None
        case str() if len(found) <= _TEXT_LIMIT:
            try:
                return _figure(float(found))
            except ValueError:
                return None
        case _:
            return None


def _count(found: object) -> int | None:
    figure = _figure(found)
    return None if figure is None else round(figure)


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


def _text(found: object) -> str | None:
    return (_printable(found) or None) if isinstance(found, str) else None


def _printable(text: str) -> str:
    return "".join(character for character in text if character.isprintable())[:_TEXT_LIMIT]


def _router_info(found: object) -> str | None:
    return found if isinstance(found, str) and found.isascii() and 0 < len(found) <= _ROUTER_INFO_LIMIT else None
