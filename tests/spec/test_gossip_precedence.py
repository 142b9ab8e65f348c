"""Precedence of two claims about a member: the rule as one table, and claims about the node itself."""

from itertools import permutations, product

import pytest

from gossip.core.events import LeaveRequested
from gossip.core.member import Incarnation, Status, UpdateOutcome, weigh, weigh_own
from gossip.core.messages import AliveUpdate, Update
from tests.effort import each_case
from tests.simulation.gossip_network import node_id
from tests.spec.gossip_story import Story, info_of, verdict

ALIVE, SUSPECT, DEAD, LEFT = Status.ALIVE, Status.SUSPECT, Status.DEAD, Status.LEFT
NOTHING, REPLACES, CONFIRMS, REFUTED = (
    UpdateOutcome.NOTHING,
    UpdateOutcome.REPLACES,
    UpdateOutcome.CONFIRMS,
    UpdateOutcome.REFUTED,
)

KNOWN = Incarnation(3, 5)
OLDER = [Incarnation(3, 4), Incarnation(2, 9)]
EQUAL = [KNOWN]
NEWER = [Incarnation(3, 6), Incarnation(4, 0)]
AGES = {"older": OLDER, "equal": EQUAL, "newer": NEWER}

# (claimed, known): outcomes of an older, an equal and a newer claim
ABOUT_OTHERS = {
    (ALIVE, ALIVE): (NOTHING, NOTHING, REPLACES),
    (ALIVE, SUSPECT): (NOTHING, NOTHING, REPLACES),
    (ALIVE, DEAD): (NOTHING, NOTHING, REPLACES),
    (ALIVE, LEFT): (NOTHING, NOTHING, REPLACES),
    (SUSPECT, ALIVE): (NOTHING, REPLACES, REPLACES),
    (SUSPECT, SUSPECT): (NOTHING, CONFIRMS, REPLACES),
    (SUSPECT, DEAD): (NOTHING, NOTHING, REPLACES),
    (SUSPECT, LEFT): (NOTHING, NOTHING, REPLACES),
    (DEAD, ALIVE): (NOTHING, REPLACES, REPLACES),
    (DEAD, SUSPECT): (NOTHING, REPLACES, REPLACES),
    (DEAD, DEAD): (NOTHING, NOTHING, REPLACES),
    (DEAD, LEFT): (NOTHING, NOTHING, REPLACES),
    (LEFT, ALIVE): (NOTHING, REPLACES, REPLACES),
    (LEFT, SUSPECT): (NOTHING, REPLACES, REPLACES),
    (LEFT, DEAD): (NOTHING, REPLACES, REPLACES),
    (LEFT, LEFT): (NOTHING, NOTHING, REPLACES),
}
ABOUT_SELF = {
    ALIVE: (NOTHING, NOTHING, REFUTED),
    SUSPECT: (NOTHING, REFUTED, REFUTED),
    DEAD: (NOTHING, REFUTED, REFUTED),
    LEFT: (NOTHING, REFUTED, REFUTED),
}
CASES = [
    pytest.param(claimed, known, incarnation, outcomes[place], id=f"{claimed.name}-over-{known.name}-{age}-{number}")
    for (claimed, known), outcomes in ABOUT_OTHERS.items()
    for place, (age, incarnations) in enumerate(AGES.items())
    for number, incarnation in enumerate(incarnations)
]
CASES_ABOUT_SELF = [
    pytest.param(claimed, incarnation, outcomes[place], id=f"{claimed.name}-{age}-{number}")
    for claimed, outcomes in ABOUT_SELF.items()
    for place, (age, incarnations) in enumerate(AGES.items())
    for number, incarnation in enumerate(incarnations)
]


def test_table_has_all_pairs_of_statuses() -> None:
    assert set(ABOUT_OTHERS) == set(product(Status, Status))
    assert set(ABOUT_SELF) == set(Status)


@each_case(("claimed", "known", "incarnation", "outcome"), CASES)
def test_node_applies_claims_by_table(
    claimed: Status, known: Status, incarnation: Incarnation, outcome: UpdateOutcome
) -> None:
    story = Story().with_peers(1, 2)
    story.receive_updates(1, AliveUpdate(info_of(9, KNOWN.generation, KNOWN.number)))
    if known is not ALIVE:
        story.receive_updates(1, verdict(9, known, by=9 if known is LEFT else 1, generation=3, claim=5))
    entry = story.entry(9)
    assert entry is not None
    assert (entry.status, entry.incarnation) == (known, KNOWN)
    story.swim._queue.forget(node_id(9))

    claim = _claim(9, claimed, incarnation, by=2)
    story.receive_updates(2, claim)

    after = (claimed, incarnation) if outcome is REPLACES else (known, KNOWN)
    assert (entry.status, entry.incarnation) == after
    assert story.queued_update(9) == (None if outcome is NOTHING else claim), "forwarded only if it changed the entry"


@each_case(("claimed", "incarnation", "outcome"), CASES_ABOUT_SELF)
def test_node_handles_claims_about_itself_by_table(
    claimed: Status, incarnation: Incarnation, outcome: UpdateOutcome
) -> None:
    assert weigh_own(incarnation, claimed, KNOWN) is outcome
    story = Story(generation=KNOWN.generation, claim=KNOWN.number).with_peers(1)
    story.receive_updates(1, _claim(0, claimed, incarnation, by=1))
    if outcome is REFUTED:
        assert story.swim.describe().self_info.incarnation > max(incarnation, KNOWN)
    else:
        assert story.swim.describe().self_info.incarnation == KNOWN


@pytest.mark.parametrize("claimed", list(Status))
def test_leaving_node_refutes_nothing(claimed: Status) -> None:
    story = Story(generation=3, claim=5).with_peers(1)
    story.step(LeaveRequested())
    story.receive_updates(1, _claim(0, claimed, Incarnation(3, 6), by=1))
    assert story.swim.describe().self_info.incarnation == KNOWN


def test_claim_order_is_total() -> None:
    """With a total order, all nodes end with the same claim."""
    claims = [(Incarnation(g, n), s) for g, n, s in product(range(3), range(3), Status)]
    for one, other in product(claims, claims):
        wins = weigh(*one, *other) is REPLACES
        loses = weigh(*other, *one) is REPLACES
        assert wins + loses == (one != other)


def test_same_claim_remains_in_any_order() -> None:
    claims = [(Incarnation(1, 0), s) for s in Status] + [(Incarnation(1, 1), ALIVE), (Incarnation(1, 1), SUSPECT)]
    for order in permutations(claims, 4):
        known = order[0]
        for claim in order[1:]:
            if weigh(*claim, *known) is REPLACES:
                known = claim
        assert known == max(order)


def _claim(number: int, status: Status, incarnation: Incarnation, by: int) -> Update:
    """Return a claim about node `number`. Only the node itself can claim that it is alive or has left."""
    generation, claim = incarnation.generation, incarnation.number
    if status is ALIVE:
        return AliveUpdate(info_of(number, generation, claim))
    return verdict(number, status, by=number if status is LEFT else by, generation=generation, claim=claim)
