"""A node's durable state of formation, as JSON in its state directory.

    file   {"version": 2, "promise": P | null, "founding": F | null, "known": F | null,
            "withdrawn": [P, …], "confirmed": cluster id | null, "endorsed": F, "revoked": [F, …]}
    P      {"founders": [id, …], "clock_ms": n, "nonce": hex}
    F      {"cluster_id": hex, "promised": [{"node": id, "clock_ms": n, "nonce": hex}, …]}

`endorsed` and `revoked` are absent if they are empty; earlier versions did not have them. The cluster id of a founding
follows from its promises. The file contains it for operators, and the reader checks it. In version 1 a founding lacked
the promises, so nodes cannot verify it. A farm of that version continues by `backup` and `recover`
(`docs/how-to/upgrade.md`).

The file is JSON, so that an operator can read the promise of a node. The file decides whether a node may vote, so the
reader is strict. An unknown member or a set out of order causes a `FormationStateError`, and the node does not start.
The `founding` must contain `promise`, or a promise in `withdrawn`.
"""

from typing import Annotated, Final

import msgspec

from bridge.core.formation.founding import (
    CLOCK_LIMIT_MS,
    CLUSTER_ID_BYTES,
    EXPECT_MAX,
    NODE_ID_BYTES,
    NONCE_BYTES,
    WITHDRAWALS_MAX,
    FormationState,
    Founder,
    Founders,
    Founding,
    Promise,
    is_set_of_founders,
)

VERSION: Final = 2
MADE_BEFORE: Final = (
    "an early garlicfarm wrote it without the founders' promises, so this version cannot verify the farm. To continue"
    " the farm, run `garlicfarm backup FILE` with the old version on one of its nodes, then `garlicfarm"
    " recover --from FILE --state-dir NEW` with this version (`garlicfarm help upgrade 'A farm made before'`)"
)
FORMATION_STATE_LIMIT_BYTES: Final = 32_768

_Clock = Annotated[int, msgspec.Meta(ge=0, lt=CLOCK_LIMIT_MS)]
_Founders = Annotated[list[str], msgspec.Meta(min_length=1, max_length=EXPECT_MAX)]


class FormationStateError(ValueError):
    """The bytes are not a formation state."""


class MadeBeforeError(FormationStateError):
    """An earlier version of garlicfarm wrote the formation state; the text has the steps to upgrade."""


class _StoredPromise(msgspec.Struct, forbid_unknown_fields=True):
    founders: _Founders
    clock_ms: _Clock
    nonce: str


class _Founder(msgspec.Struct, forbid_unknown_fields=True):
    node: str
    clock_ms: _Clock
    nonce: str


class FoundingJson(msgspec.Struct, forbid_unknown_fields=True):
    """A founding in JSON; a backup has it in the same form."""

    cluster_id: str
    promised: Annotated[list[_Founder], msgspec.Meta(min_length=1, max_length=EXPECT_MAX)]


_Revoked = Annotated[list[FoundingJson], msgspec.Meta(max_length=WITHDRAWALS_MAX)]


class _Version(msgspec.Struct):
    version: int


class _State(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    promise: _StoredPromise | None
    founding: FoundingJson | None
    known: FoundingJson | None
    withdrawn: Annotated[list[_StoredPromise], msgspec.Meta(max_length=WITHDRAWALS_MAX)]
    confirmed: str | None = None
    endorsed: FoundingJson | msgspec.UnsetType = msgspec.UNSET
    revoked: _Revoked | msgspec.UnsetType = msgspec.UNSET


def encode_formation_state(state: FormationState) -> bytes:
    """Return the content of the file, one member on each line; raise `FormationStateError` for an unreadable state."""
    written = _State(
        version=VERSION,
        promise=None if state.promise is None else _written_promise(state.promise),
        founding=None if state.founding is None else written_founding(state.founding),
        known=None if state.known is None else written_founding(state.known),
        withdrawn=[_written_promise(promise) for promise in state.withdrawn],
        confirmed=None if state.confirmed is None else state.confirmed.hex(),
        endorsed=msgspec.UNSET if state.endorsed is None else written_founding(state.endorsed),
        revoked=[written_founding(each) for each in state.revoked] or msgspec.UNSET,
    )
    content = msgspec.json.encode(written)
    try:
        msgspec.json.decode(content, type=_State)
    except msgspec.ValidationError as error:
        raise FormationStateError(f"no version could read this formation state: {error}") from error
    return msgspec.json.format(content, indent=2) + b"\n"


def decode_formation_state(data: bytes) -> FormationState:
    """Parse the content of the file; raise `FormationStateError` only."""
    if len(data) > FORMATION_STATE_LIMIT_BYTES:
        raise FormationStateError(f"the file has {len(data)} bytes, at most {FORMATION_STATE_LIMIT_BYTES} are expected")
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version != VERSION:
            if version < VERSION:
                raise MadeBeforeError(f"the file has version {version}: {MADE_BEFORE}")
            raise FormationStateError(f"the file has version {version}: a later garlicfarm wrote it; update this one")
        read = msgspec.json.decode(data, type=_State)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormationStateError(f"not a formation state: {error}") from None
    state = FormationState(
        promise=None if read.promise is None else _promise(read.promise),
        founding=None if read.founding is None else read_founding(read.founding),
        known=None if read.known is None else read_founding(read.known),
        withdrawn=tuple(_promise(promise) for promise in read.withdrawn),
        confirmed=None if read.confirmed is None else _bytes(read.confirmed, CLUSTER_ID_BYTES, "confirmed cluster id"),
        endorsed=None if read.endorsed is msgspec.UNSET else read_founding(read.endorsed),
        revoked=() if read.revoked is msgspec.UNSET else tuple(read_founding(each) for each in read.revoked),
    )
    if state.founding is not None and not _was_promised(state, state.founding):
        raise FormationStateError("the founding in the file does not contain a promise from the file")
    return state


def _was_promised(state: FormationState, founding: Founding) -> bool:
    promises = [each for each in (state.promise, *state.withdrawn) if each is not None]
    return any(founding.rests_on(node_id, promise) for promise in promises for node_id in founding.founders)


def _written_promise(promise: Promise) -> _StoredPromise:
    return _StoredPromise([each.hex() for each in promise.founders], promise.clock_ms, promise.nonce.hex())


def written_founding(founding: Founding) -> FoundingJson:
    """Return the founding as a Struct for JSON."""
    promised = [_Founder(each.node_id.hex(), each.clock_ms, each.nonce.hex()) for each in founding.promised]
    return FoundingJson(founding.cluster_id.hex(), promised)


def _promise(read: _StoredPromise) -> Promise:
    return Promise(_founders(read.founders), read.clock_ms, _nonce(read.nonce))


def read_founding(read: FoundingJson) -> Founding:
    """Return the founding from its JSON; raise `FormationStateError` if the cluster id does not match the promises."""
    try:
        founding = Founding(
            tuple(
                Founder(_bytes(each.node, NODE_ID_BYTES, "founder's id"), each.clock_ms, _nonce(each.nonce))
                for each in read.promised
            )
        )
    except FormationStateError:
        raise
    except ValueError as error:
        raise FormationStateError(str(error)) from None
    if _bytes(read.cluster_id, CLUSTER_ID_BYTES, "cluster id") != founding.cluster_id:
        raise FormationStateError(
            f"the file names cluster {read.cluster_id}, but its promises make cluster {founding.cluster_id.hex()}"
        )
    return founding


def _nonce(text: str) -> bytes:
    return _bytes(text, NONCE_BYTES, "nonce")


def _founders(read: list[str]) -> Founders:
    founders = tuple(_bytes(each, NODE_ID_BYTES, "founder's id") for each in read)
    if not is_set_of_founders(founders, len(founders)):
        raise FormationStateError("founders are not in ascending order, or one occurs twice")
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
