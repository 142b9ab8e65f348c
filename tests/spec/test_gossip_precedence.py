"""Which of two claims about a member wins: the whole rule as one table."""

from itertools import product

import pytest

from gossip.core.member import Incarnation, Status, supersedes

ALIVE, SUSPECT, DEAD, LEFT = Status.ALIVE, Status.SUSPECT, Status.DEAD, Status.LEFT

# rows: the claim's status; columns: the known status (alive, suspect, dead, left); all at equal incarnation
AT_EQUAL_INCARNATION = {
    ALIVE: (False, False, False, False),
    SUSPECT: (True, False, False, False),
    DEAD: (True, True, False, False),
    LEFT: (True, True, True, False),
}


@pytest.mark.parametrize(("claim", "known"), list(product(Status, Status)))
def test_at_equal_incarnation_left_beats_dead_beats_suspect_beats_alive(claim: Status, known: Status) -> None:
    incarnation = Incarnation(3, 5)
    assert supersedes((incarnation, claim), (incarnation, known)) is AT_EQUAL_INCARNATION[claim][known]


@pytest.mark.parametrize(("claim", "known"), list(product(Status, Status)))
@pytest.mark.parametrize(
    ("later", "earlier"),
    [
        (Incarnation(1, 1), Incarnation(1, 0)),
        (Incarnation(2, 0), Incarnation(1, 9)),
        (Incarnation(2, 0), Incarnation(1, 0)),
    ],
)
def test_a_higher_incarnation_wins_whatever_the_status(
    claim: Status, known: Status, later: Incarnation, earlier: Incarnation
) -> None:
    assert supersedes((later, claim), (earlier, known))
    assert not supersedes((earlier, known), (later, claim))


def test_the_order_is_total_so_that_all_nodes_end_with_the_same_claim() -> None:
    claims = [(Incarnation(g, n), s) for g, n, s in product(range(3), range(3), Status)]
    for one, other in product(claims, claims):
        assert supersedes(one, other) + supersedes(other, one) == (one != other)
