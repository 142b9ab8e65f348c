"""The reason of the choice of a publisher, as one sentence for each candidate.

    its score 910 is the best of 3                    the publisher
    its score 910 is kept: the best of 3 is 934, …    the publisher, by the margin
    standby with a ready session: …                   other candidates
    not chosen: its score 834 is below …
    cannot publish: it does not have a router         not a candidate

`choose` in `bridge.core.publishing.candidates` decides; docs/reference/publishing-rules.md lists the rules. With a
quorum the sentences depend only on the log; without a quorum they depend on the members that this node reaches.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from bridge.core.publishing.candidates import Candidate, rank
from bridge.core.publishing.score import Inability, inability_text
from bridge.core.state.farm_state import Choice, FarmTuning


class ChoiceTexts(Struct, frozen=True):
    """The reasons for a choice by the log. `label` returns the name of a server.

    `causes` has the errors of routers, by server: the cause of an inability.
    """

    choice: Choice
    able: Sequence[Candidate]
    tuning: FarmTuning
    label: Callable[[int], str]
    causes: Mapping[int, str] = field(default_factory=dict)

    @property
    def publisher(self) -> Candidate | None:
        """The publisher; None if it cannot publish."""
        return next((each for each in self.able if each.server_id == self.choice.server_id), None)

    def of(self, candidate: Candidate) -> str:
        """Return the reason why the candidate is, or is not, the publisher."""
        publisher = self.publisher
        if candidate.inability is not None:
            return _inability_text(candidate.inability, self.causes.get(candidate.server_id))
        if publisher is None:
            return "it can publish; the next entry of the log chooses the publisher"
        return self._of_publisher(publisher) if candidate == publisher else self._of_other(candidate, publisher)

    def _of_publisher(self, publisher: Candidate) -> str:
        alike = [each for each in self.able if each.preferred == publisher.preferred]
        best = max(alike, key=rank)
        if len(self.able) == 1:
            return f"its score is {publisher.score}, and no other server can publish"
        if len(alike) == 1:
            return f'it has publish = "on", and its score is {publisher.score}'
        if publisher.score == best.score:
            return f"its score {publisher.score} is the best of {len(alike)}"
        kept = f"its score {publisher.score} is kept: the best of {len(alike)} is {best.score}, of {self._name(best)}"
        return f"{kept}; {self._condition_of_change(best, publisher)}"

    def _of_other(self, candidate: Candidate, publisher: Candidate) -> str:
        name = self._name(publisher)
        head = "standby with a ready session" if candidate.standby else "not chosen"
        if publisher.preferred and not candidate.preferred:
            return f'{head}: {name} has publish = "on"'
        best = max(self.able, key=rank)
        if candidate.score < publisher.score or candidate.score < best.score:
            above = publisher if candidate.score < publisher.score else best
            return f"{head}: its score {candidate.score} is below the {above.score} of {self._name(above)}"
        than = "equals" if candidate.score == publisher.score else "is above"
        change = self._condition_of_change(candidate, publisher)
        return f"{head}: its score {candidate.score} {than} the {publisher.score} of {name}; {change}"

    def _condition_of_change(self, best: Candidate, publisher: Candidate) -> str:
        margin = self.tuning.margin_points
        if best.score - publisher.score < margin:
            return f"a change needs a lead of {margin} points"
        missing = max(1, self.tuning.margin_clocks - self.choice.beaten)
        return (
            f"the publisher changes after {missing} more clock {'entry' if missing == 1 else 'entries'} with this lead"
        )

    def _name(self, candidate: Candidate) -> str:
        return self.label(candidate.server_id)


def _inability_text(inability: Inability, cause: str | None = None) -> str:
    is_of_router = inability in {Inability.UNATTACHED, Inability.FAILING}
    return f"cannot publish: {inability_text(inability.value)}" + (f": {cause}" if is_of_router and cause else "")


def reason_of_change(
    chosen_id: int | None, previous_id: int | None, candidates: Sequence[Candidate], label: Callable[[int], str]
) -> str | None:
    """Return why the publisher changed, as a clause, from the candidates after the change; None if unknown."""
    by_id = {each.server_id: each for each in candidates}
    chosen = None if chosen_id is None else by_id.get(chosen_id)
    if previous_id is None:
        able = [each for each in candidates if each.inability is None]
        return "no other server can publish" if [chosen] == able else None
    name, previous = label(previous_id), by_id.get(previous_id)
    if previous is None:
        return f"{name} no longer reports for this master"
    if previous.inability is not None:
        return f"{name} {_inability_text(previous.inability)}"
    if chosen is None:
        return None
    if chosen.preferred and not previous.preferred:
        return 'it has publish = "on"'
    return (
        f"its score {chosen.score} is above the {previous.score} of {name}" if chosen.score > previous.score else None
    )


def choice_texts_alone(
    acting: int | None, last_publisher: int | None, candidates: Sequence[Candidate], label: Callable[[int], str]
) -> Mapping[int, str]:
    """Return the reasons without a quorum: `acting` publishes alone, `last_publisher` published last."""

    def text(candidate: Candidate) -> str:
        if candidate.server_id == acting:
            return reason_alone(acting, last_publisher)
        if candidate.inability is not None:
            return _inability_text(candidate.inability)
        name = "no server" if acting is None else label(acting)
        return f"not chosen: without a quorum, {name} publishes"

    return {each.server_id: text(each) for each in candidates}


def reason_alone(acting: int | None, last_publisher: int | None) -> str:
    """Return the reason of the choice without a quorum."""
    if acting is None:
        return "without a quorum, and no server that this node reaches can publish"
    if acting == last_publisher:
        return "without a quorum: it published last"
    return "without a quorum: the first reachable server that can publish"


def no_publisher_text(candidates: Sequence[Candidate]) -> str:
    """Return `no server can publish`, with the reasons of the candidates."""
    reasons = sorted({inability_text(each.inability.value) for each in candidates if each.inability is not None})
    return "no server can publish" + (": " + "; ".join(reasons) if reasons else "")
