"""What a node remembers of formation, as the JSON of its state directory.

    {"version": 1, "promise": P | null, "founding": F | null, "known": F | null, "withdrawn": [P, …]}
    P = {"founders": [id, …], "clock_ms": n, "nonce": hex}
    F = {"founders": [id, …], "cluster_id": hex, "log_time_base_ms": n}

JSON and not CBOR, because an operator who is told that a node promised something wants to look. The file decides
whether a node may vote, so it is read strictly: an unknown member, a set out of order, a founding that contradicts the
promise are refused with `FormationStateError`, and the node does not start on a guess.
"""

from typing import Annotated, Final

import msgspec

from bridge.core.founding import (
    CLOCK_LIMIT_MS,
    CLUSTER_ID_BYTES,
    EXPECT_MAX,
    NODE_ID_BYTES,
    NONCE_BYTES,
    WITHDRAWALS_MAX,
    FormationState,
    Founders,
    Founding,
    Promise,
    is_set_of_founders,
)

VERSION: Final = 1
FORMATION_STATE_LIMIT_BYTES: Final = 16_384

_Clock = Annotated[int, msgspec.Meta(ge=0, lt=CLOCK_LIMIT_MS)]
_Founders = Annotated[list[str], msgspec.Meta(min_length=1, max_length=EXPECT_MAX)]


class FormationStateError(ValueError):
    """The bytes are no formation state."""


class _Promise(msgspec.Struct, forbid_unknown_fields=True):
    founders: _Founders
    clock_ms: _Clock
    nonce: str


class _Founding(msgspec.Struct, forbid_unknown_fields=True):
    founders: _Founders
    cluster_id: str
    log_time_base_ms: _Clock


class _State(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    promise: _Promise | None
    founding: _Founding | None
    known: _Founding | None
    withdrawn: Annotated[list[_Promise], msgspec.Meta(max_length=WITHDRAWALS_MAX)]


def encode_formation_state(state: FormationState) -> bytes:
    """The content of the file, with a line for each member."""
    written = _State(
        version=VERSION,
        promise=None if state.promise is None else _written_promise(state.promise),
        founding=None if state.founding is None else _written_founding(state.founding),
        known=None if state.known is None else _written_founding(state.known),
        withdrawn=[_written_promise(promise) for promise in state.withdrawn],
    )
    return msgspec.json.format(msgspec.json.encode(written), indent=2) + b"\n"


def decode_formation_state(data: bytes) -> FormationState:
    """Read the file again; raises `FormationStateError` only."""
    if len(data) > FORMATION_STATE_LIMIT_BYTES:
        raise FormationStateError(f"the file has {len(data)} bytes, at most {FORMATION_STATE_LIMIT_BYTES} are expected")
    try:
        read = msgspec.json.decode(data, type=_State)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormationStateError(f"not a formation state: {error}") from None
    if read.version != VERSION:
        raise FormationStateError(f"the file has version {read.version}; this version of garlicfarm reads {VERSION}")
    state = FormationState(
        promise=None if read.promise is None else _promise(read.promise),
        founding=None if read.founding is None else _founding(read.founding),
        known=None if read.known is None else _founding(read.known),
        withdrawn=tuple(_promise(promise) for promise in read.withdrawn),
    )
    if state.founding is not None and not _was_promised(state, state.founding.founders):
        raise FormationStateError("the file says that this node founded with a set that it never promised")
    return state


def _was_promised(state: FormationState, founders: Founders) -> bool:
    promises = (state.promise, *state.withdrawn)
    return any(promise is not None and promise.founders == founders for promise in promises)


def _written_promise(promise: Promise) -> _Promise:
    return _Promise([each.hex() for each in promise.founders], promise.clock_ms, promise.nonce.hex())


def _written_founding(founding: Founding) -> _Founding:
    founders = [each.hex() for each in founding.founders]
    return _Founding(founders, founding.cluster_id.hex(), founding.log_time_base_ms)


def _promise(read: _Promise) -> Promise:
    return Promise(_founders(read.founders), read.clock_ms, _bytes(read.nonce, NONCE_BYTES, "nonce"))


def _founding(read: _Founding) -> Founding:
    cluster_id = _bytes(read.cluster_id, CLUSTER_ID_BYTES, "cluster id")
    return Founding(cluster_id, _founders(read.founders), read.log_time_base_ms)


def _founders(read: list[str]) -> Founders:
    founders = tuple(_bytes(each, NODE_ID_BYTES, "founder's id") for each in read)
    if not is_set_of_founders(founders, len(founders)):
        raise FormationStateError("founders are not in ascending order, each once")
    return founders


def _bytes(text: str, size: int, what: str) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        raise FormationStateError(f"the {what} is not hexadecimal") from None
    # fromhex skips spaces, which would give one value two spellings.
    if len(value) != size or len(text) != 2 * size:
        raise FormationStateError(f"the {what} is not {size} bytes in hexadecimal")
    return value
