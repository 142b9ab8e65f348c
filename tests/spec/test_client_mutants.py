"""The specifications of reads, leases, sessions and transfers find the planted bugs."""

from collections.abc import Callable
from functools import partial

import pytest

from tests.spec import test_raft_section_8 as section_8
from tests.spec import test_sessions as sessions
from tests.spec.client_mutants import CLIENT_MUTANTS

FOUND_BY: dict[str, Callable[[], None]] = {
    "stale-read-index": section_8.test_reply_to_earlier_request_confirms_no_read,
    "read-before-own-term-commit": section_8.test_read_waits_for_commit_in_own_term,
    "read-joins-current-round": section_8.test_reads_during_round_share_next_round,
    "lease-without-clock-bound": section_8.test_lease_is_election_timeout_minus_clock_bound,
    "lease-outlives-transfer": section_8.test_transfer_ends_lease_for_term,
    "lease-from-any-voter": section_8.test_peer_without_lease_extension_prevents_lease,
    "sessions-expired-without-floor": sessions.test_idle_session_expires_by_log_time,
    "snapshot-without-results": partial(  # one example: Hypothesis would search for a smaller one
        sessions.test_requests_executed_once_also_after_load.hypothesis.inner_test,  # type: ignore[attr-defined]
        seed=6,
        cut=60,
    ),
    "append-during-transfer": section_8.test_proposals_during_transfer_held_until_it_fails,
}


def test_planted_bugs_each_have_specification() -> None:
    assert {mutant.name for mutant in CLIENT_MUTANTS} == set(FOUND_BY)


@pytest.mark.parametrize("mutant", CLIENT_MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_bug_fails_its_specification(mutant: object) -> None:
    planted = next(each for each in CLIENT_MUTANTS if each is mutant)
    with planted.planted(), pytest.raises(AssertionError):
        FOUND_BY[planted.name]()
