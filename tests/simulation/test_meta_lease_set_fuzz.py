"""Mutated Meta LeaseSet2 structures: a short run of what takes minutes.

The long one is `python -m tests.simulation meta-lease-set-fuzz --count 500000`.
"""

from random import Random, randrange

import pytest

from bridge.wire.i2p.meta_lease_set import Verdict, decode, encode, verify
from tests.simulation import meta_lease_set_fuzz as decoder
from tests.simulation.fuzzing import FuzzError, Tally, play


def test_mutated_structures_raise_the_one_error_or_are_encoded_alike_and_none_is_forged() -> None:
    tally = Tally()
    play(decoder.subject(), randrange(2**32), 4_000, tally)
    assert tally.outcomes.keys() == decoder.OUTCOMES


def test_the_corpus_verifies_where_it_can_be_verified() -> None:
    verdicts = [verify(decode(data)).verdict for data in decoder.corpus()]
    assert verdicts == [Verdict.HOLDS] * 6 + [Verdict.CANNOT_VERIFY] * 5


def test_every_truncation_of_every_shape_is_the_one_error_or_of_a_type_without_a_length() -> None:
    known = frozenset(decoder.corpus())
    random = Random(0)
    for data in known:
        taken = [length for length in range(len(data)) if decoder.check(data[:length], known, random) != "refused"]
        # Only where the length of a signature cannot be known, any rest is one.
        assert not taken or decode(data).signature_type == 99


def test_the_fuzz_catches_a_decoder_that_forgets_a_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "encode", lambda structure: encode(structure)[:-1])
    with pytest.raises(FuzzError, match="encoded to other bytes"):
        play(decoder.subject(), 1, 1_000, Tally())
