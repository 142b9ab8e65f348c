"""Mutated Meta LeaseSet2 structures: a short version of a run of minutes.

The long run is `python -m tests.simulation meta-lease-set-fuzz --count 500000`.
"""

from random import Random, randrange

import pytest

from bridge.wire.i2p.meta_lease_set import Verdict, decode, encode, verify
from tests.simulation import meta_lease_set_fuzz as decoder
from tests.simulation.fuzzing import FuzzError, Tally, play


def test_fuzz_mutated_structures_have_all_outcomes() -> None:
    tally = Tally()
    play(decoder.subject(), randrange(2**32), 4_000, tally)
    assert tally.outcomes.keys() == decoder.OUTCOMES


def test_corpus_verifies_if_type_is_supported() -> None:
    verdicts = [verify(decode(data)).verdict for data in decoder.corpus()]
    assert verdicts == [Verdict.HOLDS] * 6 + [Verdict.CANNOT_VERIFY] * 5


def test_truncated_structures_are_refused_by_known_types() -> None:
    known = frozenset(decoder.corpus())
    random = Random(0)
    for data in known:
        taken = [length for length in range(len(data)) if decoder.check(data[:length], known, random) != "refused"]
        # Only for a type with an unknown signature length, a truncated signature is accepted.
        assert not taken or decode(data).signature_type == 99


def test_fuzz_detects_missing_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "encode", lambda structure: encode(structure)[:-1])
    with pytest.raises(FuzzError, match="encoded to other bytes"):
        play(decoder.subject(), 1, 1_000, Tally())
