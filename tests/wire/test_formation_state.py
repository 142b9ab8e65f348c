"""The file with the state of formation: round trips, and one error for any other content."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from bridge.core.formation.founding import FormationState, Founder, Founders, Founding, Promise
from bridge.wire.membership.formation_state import (
    FORMATION_STATE_LIMIT_BYTES,
    FormationStateError,
    decode_formation_state,
    encode_formation_state,
)
from tests.effort import each_case

sets: some.SearchStrategy[Founders] = some.sets(some.binary(min_size=8, max_size=8), min_size=1, max_size=9).map(
    lambda nodes: tuple(sorted(nodes))
)
clocks_ms = some.integers(0, 2**48 - 1)
promises = some.builds(Promise, founders=sets, clock_ms=clocks_ms, nonce=some.binary(min_size=16, max_size=16))
nonces = some.binary(min_size=16, max_size=16)


def _founding_with(promise: Promise, clock_ms: int, nonce: bytes) -> Founding:
    others = [Founder(each, clock_ms, nonce) for each in promise.founders[1:]]
    return Founding((Founder(promise.founders[0], promise.clock_ms, promise.nonce), *others))


foundings = some.builds(_founding_with, promises, clocks_ms, nonces)
watching = some.builds(
    FormationState,
    promise=some.none() | promises,
    founding=some.none(),
    known=some.none() | foundings,
    withdrawn=some.lists(promises, max_size=8).map(tuple),
    confirmed=some.none() | nonces,
    endorsed=some.none() | foundings,
    revoked=some.lists(foundings, max_size=8).map(tuple),
)
founded = some.builds(
    lambda promise, clock_ms, nonce: FormationState(promise, _founding_with(promise, clock_ms, nonce)),
    promises,
    clocks_ms,
    nonces,
)
PROMISE = Promise((b"a" * 8, b"b" * 8), 5, b"n" * 16)
EXAMPLE = FormationState(promise=PROMISE, founding=_founding_with(PROMISE, 7, b"m" * 16), confirmed=b"c" * 16)


@given(watching | founded)
def test_formation_state_round_trips(state: FormationState) -> None:
    written = encode_formation_state(state)
    assert decode_formation_state(written) == state
    assert len(written) <= FORMATION_STATE_LIMIT_BYTES


def test_state_without_endorsements_keeps_old_keys() -> None:
    assert json.loads(encode_formation_state(EXAMPLE)).keys() == {
        "version",
        "promise",
        "founding",
        "known",
        "withdrawn",
        "confirmed",
    }


@given(some.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(FormationStateError):
        decode_formation_state(data)


def test_truncated_file_is_refused() -> None:
    written = encode_formation_state(EXAMPLE).rstrip()
    for length in range(len(written)):
        with pytest.raises(FormationStateError):
            decode_formation_state(written[:length])


@each_case(
    ("path", "value", "reason"),
    [
        (("version",), 1, "cannot verify the farm.*garlicfarm recover --from FILE"),
        (("version",), 3, "a later garlicfarm wrote it"),
        (("extra",), 1, "unknown field"),
        (("promise", "founders"), [], "length >= 1"),
        (("promise", "founders"), ["62" * 8, "61" * 8], "ascending"),
        (("promise", "founders"), ["61" * 8], "does not contain a promise"),
        (("promise", "founders"), ["61" * 7], "8 bytes"),
        (("promise", "nonce"), "6e " * 16, "16 bytes"),
        (("promise", "nonce"), "no hex", "hexadecimal"),
        (("promise", "clock_ms"), -1, ">= 0"),
        (("promise", "clock_ms"), 2**48, "<= 281474976710655"),
        (("promise",), None, "does not contain a promise"),
        (("founding", "cluster_id"), "63" * 15, "16 bytes"),
        (("founding", "cluster_id"), "63" * 16, "its promises make cluster"),
        (("founding", "promised"), [], "length >= 1"),
        (("confirmed",), "63" * 15, "16 bytes"),
        (("withdrawn",), None, "array"),
    ],
)
def test_inconsistent_file_is_refused_with_reason(path: tuple[str, ...], value: Any, reason: str) -> None:
    content = json.loads(encode_formation_state(EXAMPLE))
    where = content
    for name in path[:-1]:
        where = where[name]
    where[path[-1]] = value
    with pytest.raises(FormationStateError, match=reason):
        decode_formation_state(json.dumps(content).encode())


def test_oversized_file_is_refused_before_parsing() -> None:
    with pytest.raises(FormationStateError, match="at most"):
        decode_formation_state(b" " * (FORMATION_STATE_LIMIT_BYTES + 1))
