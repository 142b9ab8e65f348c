"""The specifications of reads, leases, sessions and transfers see the bugs that they are there to see."""

from collections.abc import Callable

import pytest

from tests.spec import test_raft_section_8 as section_8
from tests.spec import test_sessions as sessions
from tests.spec.client_mutants import CLIENT_MUTANTS

SEEN_BY: dict[str, Callable[[], None]] = {
    "stale-read-index": section_8.test_an_answer_to_a_request_sent_before_the_read_arrived_proves_nothing,
    "read-before-own-term-commit": section_8.test_a_leader_answers_no_read_before_an_entry_of_its_own_term_is_committed,
    "read-joins-the-round-under-way": section_8.test_two_rounds_within_a_millisecond_are_told_apart,
    "lease-without-clock-bound": section_8.test_a_lease_lasts_a_minimum_election_timeout_less_the_clock_bound,
    "lease-outlives-transfer": section_8.test_a_transfer_ends_the_lease_for_the_rest_of_the_term,
    "lease-of-strangers": section_8.test_a_peer_of_another_make_which_may_vote_at_any_time_gives_no_lease,
    "sessions-expired-without-a-trace": sessions.test_a_session_ends_after_its_time_of_silence_by_log_time,
    "snapshot-without-results": sessions.test_nothing_is_executed_twice_and_a_table_out_of_a_snapshot_decides_the_same,
    "transfer-appends-on": section_8.test_what_is_proposed_meanwhile_is_held_and_resumes_when_the_transfer_fails,
}


def test_every_planted_bug_has_a_specification_that_sees_it() -> None:
    assert {mutant.name for mutant in CLIENT_MUTANTS} == set(SEEN_BY)


@pytest.mark.parametrize("mutant", CLIENT_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_seen(mutant: object) -> None:
    planted = next(each for each in CLIENT_MUTANTS if each is mutant)
    with planted.planted(), pytest.raises(AssertionError):
        SEEN_BY[planted.name]()
