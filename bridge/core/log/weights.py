"""Weights on the reported loads of leaves: exclusions and factors by operators, factors by the pipeline.

    exclusion   operator    the leaf is in no structure, healthy or not, until it is included again
    cost        operator    factor 0.1 … 10 on the leaf's cost, until the next one
    factors     pipeline    factor 0.5 … 2, made from the history of the log up to `throughIndex`

    cost = (load + 20) x operator x pipeline - 20,  within 0 … 100

The factors multiply load + 20: with load alone, an idle leaf would have cost 0 for any factor. An operator's weight
counts immediately and in full. The pipeline is a slow feedback loop outside of the farm, so its factors are bounded and
damped, and they fade. An entry is refused if its `throughIndex` is not above the `throughIndex` of the last accepted
entry, or not below the entry's index. So a repeated entry, or an entry of a second, slower pipeline, does not have an
effect. docs/reference/publishing-rules.md ("Commands of operators and the pipeline") has the figures.

From the feature level `BOUNDS_LEVEL` on, an author may fill a quarter of each table (docs/reference/limits.md). So one
script or one hostile member cannot keep an operator from excluding a leaf. Factors are rounded once to whole
thousandths, and all later arithmetic is in integers: the result must be equal on every machine.
"""

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from bridge.core.log.records import FACTORS_MAX, CostFactor, Exclusion, Factors

EXCLUSIONS_MAX = 256
COST_FACTORS_MAX = 256
"""`EXCLUSIONS_MAX` and `COST_FACTORS_MAX` limit the rows of one author; below `BOUNDS_LEVEL`, the rows of all
authors."""
EXCLUSIONS_OF_ALL_MAX = 4 * EXCLUSIONS_MAX
COST_FACTORS_OF_ALL_MAX = 4 * COST_FACTORS_MAX
FACTORS_OF_ALL_MAX = 4 * FACTORS_MAX
COST_MAX = 100
UNHEALTHY_COST = 100
"""Added to the weighed cost of an unhealthy leaf."""
FACTOR_BASE = 20
THOUSANDTHS = 1_000
OPERATOR_BOUNDS = (100, 10_000)
PIPELINE_BOUNDS = (500, 2_000)
DAMPING_PERCENT = 10
FACTOR_HOLDS_MS = 300_000
FACTOR_ENDS_MS = 600_000


class PipelineFactor(Struct, frozen=True):
    """A factor in thousandths, and the log time of the entry that set it."""

    thousandths: int
    set_ms: int = field(name="said_ms")
    author: bytes = b""
    """The NodeId of the key that signed the entry; empty below `BOUNDS_LEVEL`."""

    def at(self, log_time_ms: int) -> int:
        """Return the factor in thousandths at this log time."""
        age_ms = log_time_ms - self.set_ms
        if age_ms <= FACTOR_HOLDS_MS:
            return self.thousandths
        left_ms = max(0, FACTOR_ENDS_MS - age_ms)
        return THOUSANDTHS + (self.thousandths - THOUSANDTHS) * left_ms // (FACTOR_ENDS_MS - FACTOR_HOLDS_MS)


class Weights(Struct, frozen=True):
    """All weights, by hash of the leaf (`bridge.core.log.hashes`)."""

    excluded: tuple[str, ...] = ()
    """Sorted."""
    costs: Mapping[str, int] = field(default_factory=dict)
    """Operators' factors other than 1, in thousandths."""
    factors: Mapping[str, PipelineFactor] = field(default_factory=dict)
    through_index: int = 0
    """The last index of the log that the pipeline had read before its last accepted entry."""
    formula: str = ""
    excluded_by: Mapping[str, bytes] = field(default_factory=dict)
    """The author of each exclusion, by hash of the leaf. An exclusion from below `BOUNDS_LEVEL` does not have one."""
    costs_by: Mapping[str, bytes] = field(default_factory=dict)
    """The author of each operator's factor, by hash of the leaf."""


class ExclusionChanged(Struct, frozen=True):
    """A leaf is excluded, or included again."""

    leaf_hash: str
    excluded: bool


class CostFactorChanged(Struct, frozen=True):
    """An operator's factor on a leaf, in thousandths."""

    leaf_hash: str
    thousandths: int


class FactorsAccepted(Struct, frozen=True):
    """The pipeline's factors were accepted, and damped."""

    through_index: int
    leaves: int


class CommandRefused(Struct, frozen=True):
    """A command without effect, and the reason."""

    kind: str
    reason: str


WeightsChange = ExclusionChanged | CostFactorChanged | FactorsAccepted | CommandRefused


def weighed(load: int, leaf_hash: str, weights: Weights, log_time_ms: int) -> int:
    """Return the cost of a leaf whose load is 0 … 100."""
    pipeline = weights.factors.get(leaf_hash)
    product = weights.costs.get(leaf_hash, THOUSANDTHS) * (
        THOUSANDTHS if pipeline is None else pipeline.at(log_time_ms)
    )
    return min(COST_MAX, max(0, (load + FACTOR_BASE) * product // THOUSANDTHS**2 - FACTOR_BASE))


def exclude(
    weights: Weights, exclusion: Exclusion, author: bytes | None = None
) -> tuple[Weights, WeightsChange | None]:
    """Return the weights after an exclusion, and the change, if any.

    Callers pass `author` only from `BOUNDS_LEVEL` on.
    """
    known = exclusion.leaf_hash in weights.excluded
    if known == exclusion.excluded:
        return weights, None
    others = {each for each in weights.excluded if each != exclusion.leaf_hash}
    by = {leaf: each for leaf, each in weights.excluded_by.items() if leaf != exclusion.leaf_hash}
    if exclusion.excluded:
        full = _full(len(others), by, author, (EXCLUSIONS_MAX, EXCLUSIONS_OF_ALL_MAX))
        if full is not None:
            return weights, CommandRefused("exclusion", f"{full} leaves are excluded already: include one first")
        others.add(exclusion.leaf_hash)
        by |= {} if author is None else {exclusion.leaf_hash: author}
    after = replace(weights, excluded=tuple(sorted(others)), excluded_by=by)
    return after, ExclusionChanged(exclusion.leaf_hash, exclusion.excluded)


def set_cost(weights: Weights, cost: CostFactor, author: bytes | None = None) -> tuple[Weights, WeightsChange | None]:
    """Return the weights after an operator's factor, and the change, if any.

    Callers pass `author` only from `BOUNDS_LEVEL` on.
    """
    thousandths = _thousandths(cost.factor, OPERATOR_BOUNDS)
    if thousandths is None:
        return weights, CommandRefused("cost", f"the factor {cost.factor:g} is not within {_bounds(OPERATOR_BOUNDS)}")
    if weights.costs.get(cost.leaf_hash, THOUSANDTHS) == thousandths:
        return weights, None
    costs = {leaf: each for leaf, each in weights.costs.items() if leaf != cost.leaf_hash}
    by = {leaf: each for leaf, each in weights.costs_by.items() if leaf != cost.leaf_hash}
    if thousandths != THOUSANDTHS:
        full = _full(len(costs), by, author, (COST_FACTORS_MAX, COST_FACTORS_OF_ALL_MAX))
        if full is not None:
            return weights, CommandRefused("cost", f"{full} leaves have a factor already: set one back to 1 first")
        costs[cost.leaf_hash] = thousandths
        by |= {} if author is None else {cost.leaf_hash: author}
    return replace(weights, costs=costs, costs_by=by), CostFactorChanged(cost.leaf_hash, thousandths)


def take_factors(
    weights: Weights, entry: Factors, index: int, log_time_ms: int, author: bytes | None = None
) -> tuple[Weights, WeightsChange]:
    """Return the weights after the pipeline's entry at `index`: it is accepted or refused as a whole.

    Callers pass `author` only from `BOUNDS_LEVEL` on.
    """
    refusal = _refusal(weights, entry, index)
    if refusal is not None:
        return weights, CommandRefused("factors", refusal)
    factors = dict(fading(weights, log_time_ms).factors)
    for leaf_hash, factor in entry.factors.items():
        before = factors.get(leaf_hash)
        now = THOUSANDTHS if before is None else before.at(log_time_ms)
        damped = _damped(now, _thousandths(factor, PIPELINE_BOUNDS) or now)
        factors[leaf_hash] = PipelineFactor(damped, log_time_ms, author or b"")
    own = len(factors) if author is None else sum(each.author == author for each in factors.values())
    if own > FACTORS_MAX or len(factors) > FACTORS_OF_ALL_MAX:
        most = FACTORS_MAX if own > FACTORS_MAX else FACTORS_OF_ALL_MAX
        return weights, CommandRefused("factors", f"{max(own, len(factors))} leaves would have factors: at most {most}")
    weights = replace(weights, factors=factors, through_index=entry.through_index, formula=entry.formula)
    return weights, FactorsAccepted(entry.through_index, len(entry.factors))


def fading(weights: Weights, log_time_ms: int) -> Weights:
    """Return the weights without the factors that have faded out."""
    if all(log_time_ms - each.set_ms < FACTOR_ENDS_MS for each in weights.factors.values()):
        return weights
    left = {leaf: each for leaf, each in weights.factors.items() if log_time_ms - each.set_ms < FACTOR_ENDS_MS}
    return replace(weights, factors=left)


def _refusal(weights: Weights, entry: Factors, index: int) -> str | None:
    if entry.through_index <= weights.through_index:
        return f"made from the log up to {entry.through_index}; the last accepted ones: up to {weights.through_index}"
    if entry.through_index >= index:
        return f"made from the log up to {entry.through_index}, but the index of this entry is {index}"
    for leaf_hash, factor in entry.factors.items():
        if _thousandths(factor, PIPELINE_BOUNDS) is None:
            return f"the factor {factor:g} of {leaf_hash[:8]} is not within {_bounds(PIPELINE_BOUNDS)}"
    return None


def _damped(now: int, target: int) -> int:
    # Rounded toward `now`, so that a change never exceeds the damping.
    lowest = -(-now * (100 - DAMPING_PERCENT) // 100)
    return min(max(target, lowest), now * (100 + DAMPING_PERCENT) // 100)


def _thousandths(factor: float, bounds: tuple[int, int]) -> int | None:
    """Return the factor in thousandths; None if it is out of bounds or a NaN."""
    lowest, highest = bounds
    return round(factor * THOUSANDTHS) if lowest <= factor * THOUSANDTHS <= highest else None


def _full(rows: int, by: Mapping[str, bytes], author: bytes | None, limits: tuple[int, int]) -> str | None:
    """Return the reached limit as text, or None if this author may add another row.

    `limits` are the limit of one author and the limit of all. Below `BOUNDS_LEVEL` `author` is unknown, and the first
    limit applies to all rows.
    """
    of_author, of_all = limits
    if author is None:
        return str(of_author) if rows >= of_author else None
    if sum(each == author for each in by.values()) >= of_author:
        return f"{of_author} (the limit of one author, {author.hex()})"
    return str(of_all) if rows >= of_all else None


def _bounds(bounds: tuple[int, int]) -> str:
    lowest, highest = (each / THOUSANDTHS for each in bounds)
    return f"{lowest:g} to {highest:g}"
