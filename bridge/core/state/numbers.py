"""Each number of a farm's state, declared once: its range, its author, its step, and the effect of its maximum.

    FarmState.log_time_ms                   a field
    FarmState.servers.key, …costs.value     the keys and values of a mapping
    FarmState.removed.item                  the elements of a tuple

`bounds` checks each number of a snapshot against its range, and `recovery` resets all numbers of one kind in all
fields. Separate lists of fields in these modules missed later fields. For example, a recovered farm kept old terms in
the offsets of Kafka's groups. Therefore a number without a declaration is an error, and
`tests/spec/test_number_table.py` finds it.

A step limits how far one entry moves a number that other authors build on. A number that only its own author moves does
not have a step limit: if it reaches its maximum, only that author is affected. Times in the past have wide ranges: a
correction of log time may move them below zero, and they are used only in differences.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

from msgspec import Struct, structs
from msgspec.structs import replace

from bridge.core.log.figures import FIGURES
from bridge.core.log.weights import COST_MAX, OPERATOR_BOUNDS, PIPELINE_BOUNDS, UNHEALTHY_COST
from bridge.core.membership.eviction import LAST_ERA
from bridge.core.state.farm_state import LOG_TIME_LIMIT_MS, places_in
from bridge.core.state.kafka_clients import EPOCH_MAX, SEQUENCES
from consensus import MAX_NUMBER

NUMBER_MAX = 2**53 - 1
"""Limit of indexes and of clocks in milliseconds: the greatest integer that all JSON readers represent exactly."""
SECOND_MAX = 2**32 - 1
RAFT_ID_MAX = 2**30
"""Half of the ids that an entry can name. The next id must also fit, and ids are assigned one at a time."""
STORED_MIN, STORED_MAX = -(2**63), 2**63 - 1
"""The range of the integers of a snapshot."""


class NumberKind(Enum):
    """The meaning of a number, which alone determines the new value after a reset by a recovery."""

    TERM = "term"
    CLIENT_TERM = "client's term"
    """A term that a client sent; -1 if unknown."""
    INDEX = "index"
    NEXT_INDEX = "next index"
    """A position after an entry."""
    LOG_TIME = "log time"
    """Milliseconds of log time, now or in the past."""
    CLOCK = "clock"
    """Milliseconds by the clock of one server."""
    DURATION = "duration"
    SECOND = "second"
    """Timestamp of a publication, in seconds."""
    SECOND_MS = "second, in milliseconds"
    RAFT_ID = "Raft id"
    ERA = "era"
    LEVEL = "level"
    COUNT = "count"
    AUTHOR = "author's own number"
    FACTOR = "factor"
    FIGURE = "figure"
    """A router's figure about itself, replaced by its next report; no later entry builds on it."""


class Number(Struct, frozen=True):
    """The declaration of one number."""

    kind: NumberKind
    words: str
    least: float
    most: float
    moved_by: str
    """The author that moves the number, and the step."""
    at_end: str
    """The effect at `most`."""


def _figure(words: str, most: float = NUMBER_MAX) -> Number:
    return Number(NumberKind.FIGURE, words, 0, most, "its router, any value in range", "shown as it is")


def _past(words: str) -> Number:
    return Number(
        NumberKind.LOG_TIME, words, STORED_MIN, STORED_MAX, "set to log time, or moved with it", "unreachable"
    )


def _raft_id(words: str, least: int = 1) -> Number:
    return Number(NumberKind.RAFT_ID, words, least, RAFT_ID_MAX, "the leader, the next id only", "no more admissions")


def _index(words: str, least: int = 0) -> Number:
    return Number(NumberKind.INDEX, words, least, NUMBER_MAX, "the log, one per entry", "unreachable")


_ENTRY_FIGURES = {
    "leaf's uptime in ms": ("LeafStatus.uptime_ms",),
    "number of tunnels": ("LeafStatus.configured_tunnels", "LeafStatus.current_tunnels"),
    "bandwidth in bytes/s": (
        "LeafStatus.configured_bandwidth_bytes_per_s",
        "LeafStatus.current_bandwidth_bytes_per_s",
    ),
    "number of connections": ("LeafStatus.configured_connections", "LeafStatus.current_connections"),
    "time of a look-up in ms": ("Measurement.fetch_ms",),
    "age of a condition in ms": ("ConditionStatus.age_ms",),
    "number of failures": ("ConditionStatus.failures",),
}

NUMBERS: dict[str, Number] = {
    "FarmState.log_time_ms": Number(
        NumberKind.LOG_TIME,
        "log time in ms",
        0,
        LOG_TIME_LIMIT_MS,
        "clock entries, up to the clocks of a majority plus an allowance (`voter_clocks`)",
        "log time does not advance; a correction or `recover --reset time` sets it back",
    ),
    "FarmState.applied_index": _index("the applied index"),
    "FarmState.applied_term": Number(
        NumberKind.TERM,
        "the applied term",
        0,
        MAX_NUMBER,
        "Raft, 2^24 a message (`TERM_STEP_MAX`)",
        "no election; `recover --reset term`",
    ),
    "FarmState.level": Number(
        NumberKind.LEVEL, "the feature level", 1, NUMBER_MAX, "the leader, by one", "the node stops and names a version"
    ),
    "FarmState.servers.key": _raft_id("a Raft id"),
    "FarmState.admitted.key": _raft_id("a Raft id"),
    "FarmState.admitted_by.key": _raft_id("a Raft id"),
    "FarmState.removed.item": _raft_id("a Raft id"),
    "Report.server_id": _raft_id("a Raft id"),
    "Choice.server_id": _raft_id("a Raft id"),
    "VoterClocks.majorities.item.item": Number(
        NumberKind.RAFT_ID, "the Raft id of a voter", 0, STORED_MAX, "configurations of the group", "never admitted"
    ),
    "VoterClocks.readings.key": _raft_id("a Raft id"),
    "Publication.server_id": _raft_id("the Raft id of a publisher", 0),
    "ServerState.reported_ms": _past("the log time of a report"),
    "ServerState.lag_ms": Number(
        NumberKind.DURATION, "the lag of a clock", STORED_MIN, STORED_MAX, "the server, by its clock", "unreachable"
    ),
    "Report.date_ms": Number(
        NumberKind.CLOCK, "the date of a report", 0, NUMBER_MAX, "the server", "its clock counts as off"
    ),
    **{
        f"RouterStatus.{each.name}": _figure(f"a router's {each.label_and_unit}", each.maximum)
        for each in FIGURES.values()
    },
    **{place: _figure(f"a {words}") for words, places in _ENTRY_FIGURES.items() for place in places},
    "MetaStatus.last_published_time_ms": Number(
        NumberKind.SECOND_MS,
        "the time of a router's publication in ms",
        0,
        NUMBER_MAX,
        "the server; counts up to log time + 30 s (`UNFENCED_AHEAD_MS`)",
        "does not count",
    ),
    "MetaStatus.can_sign_until_s": _figure("the end of a signing key", SECOND_MAX),
    "MasterState.since_ms": _past("the log time of a master's first report"),
    "Choice.beaten": Number(
        NumberKind.COUNT,
        "the clock entries of a better publisher",
        0,
        NUMBER_MAX,
        "clock entries, by one",
        "it changes",
    ),
    "Leaf.cost": Number(
        NumberKind.FACTOR,
        "the cost of a leaf",
        0,
        COST_MAX + UNHEALTHY_COST,
        "computed, clamped",
        "the leaf is listed last",
    ),
    "Publication.published_s": Number(
        NumberKind.SECOND,
        "the timestamp of a publication",
        0,
        SECOND_MAX,
        "the publisher, up to log time + a period + 30 s (`latest_second`)",
        "no publication; `recover --reset second`",
    ),
    "Admitted.unseen_since_ms": _past("the log time of an admission"),
    "Weights.costs.value": Number(
        NumberKind.FACTOR, "an operator's factor", *OPERATOR_BOUNDS, "operators, any value in range", "clamped cost"
    ),
    "PipelineFactor.thousandths": Number(
        NumberKind.FACTOR, "a pipeline's factor", *PIPELINE_BOUNDS, "the pipeline, 10 % an entry", "it fades"
    ),
    "PipelineFactor.set_ms": _past("the log time of a factor"),
    "Weights.through_index": Number(
        NumberKind.INDEX,
        "the last index read by a pipeline",
        0,
        NUMBER_MAX,
        "the pipeline, below the index of its entry",
        "unreachable",
    ),
    "Rekeying.era": Number(
        NumberKind.ERA,
        "the era of the keys",
        0,
        LAST_ERA,
        "the leader, by one (from `BOUNDS_LEVEL` on)",
        "evictions leave the keys as they are; `recover --reset era`",
    ),
    "AuthorNumbers.highest": Number(
        NumberKind.AUTHOR,
        "the highest number of an author",
        0,
        NUMBER_MAX,
        "its author only, by signature",
        "further entries of that author are ignored",
    ),
    "AuthorNumbers.seen": Number(
        NumberKind.AUTHOR, "the numbers of an author below it", 0, 2**64 - 1, "its author alone", "a set of 64 bits"
    ),
    "AuthorNumbers.report": Number(
        NumberKind.AUTHOR, "the number of an author's report", 0, NUMBER_MAX, "its author alone", "as `highest`"
    ),
    "VoterClocks.vouched_ms": Number(
        NumberKind.CLOCK,
        "the time that clocks vouch for in ms",
        0,
        NUMBER_MAX,
        "a majority of the voters",
        "a correction or `recover` takes it back",
    ),
    "VoterClocks.clock_entries": Number(
        NumberKind.COUNT, "the number of clock entries", 0, NUMBER_MAX, "the leader, one per entry", "unreachable"
    ),
    "Reading.date_ms": Number(
        NumberKind.CLOCK, "a voter's clock in ms", 0, NUMBER_MAX, "the voter; one of a majority", "it is outvoted"
    ),
    "Reading.term": Number(
        NumberKind.TERM, "the term of a voter's clock", 0, MAX_NUMBER, "the applied term", "as the applied term"
    ),
    "Reading.clock_entries": Number(
        NumberKind.COUNT, "the clock entries before a reading", 0, NUMBER_MAX, "as `VoterClocks`", "unreachable"
    ),
    "KafkaClients.producers.key": _index("the id of a producer", 1),
    "KafkaClients.skipped.item": _index("a skipped index"),
    "Producer.used_ms": _past("the log time of a producer's entry"),
    "Producer.epoch": Number(
        NumberKind.AUTHOR,
        "the epoch of a producer",
        0,
        EPOCH_MAX,
        "its producer, any higher value",
        "it begins under a new id",
    ),
    "Producer.sequence": Number(
        NumberKind.AUTHOR, "the sequence of a producer", 0, SEQUENCES - 1, "its producer, by one", "begins at 0 again"
    ),
    "Run.sequence": Number(
        NumberKind.AUTHOR, "the sequence of a run", 0, SEQUENCES - 1, "its producer, by one", "begins at 0 again"
    ),
    "Run.index": _index("the index of a run"),
    "Run.count": Number(NumberKind.COUNT, "the length of a run", 1, NUMBER_MAX, "one per entry", "unreachable"),
    "NotedOffset.offset": Number(
        NumberKind.NEXT_INDEX,
        "the offset of a consumer group",
        0,
        NUMBER_MAX,
        "its clients, up to the end of the log (from `BOUNDS_LEVEL` on)",
        "the group does not read until it commits another offset",
    ),
    "NotedOffset.leader_epoch": Number(
        NumberKind.CLIENT_TERM,
        "the term of a consumer group",
        -1,
        2**31 - 1,
        "its clients, up to the applied term (from `BOUNDS_LEVEL` on)",
        "as the applied term",
    ),
    "NotedOffset.noted_ms": _past("the log time of an offset"),
}
"""All numbers of `FarmState`, by place."""


class UndeclaredNumberError(Exception):
    """A number of the state without a declaration in `NUMBERS`."""


def numbers_in(value: Struct) -> Iterator[tuple[str, float]]:
    """Yield each number of a Struct, nested ones included, with its place."""
    for place, each in places_in(value):
        if isinstance(each, int | float) and not isinstance(each, bool):
            yield place, each


Changed = Callable[[Number, int], int]
"""The value of a number after a change."""


def with_numbers(value: Any, changed: Changed) -> Any:
    """Return a Struct with each of its integers changed, except mapping keys: these name servers and producers."""
    after = {
        name: _changed_field(f"{type(value).__name__}.{name}", each, changed)
        for name, each in structs.asdict(value).items()
    }
    return replace(value, **after) if any(after[name] is not getattr(value, name) for name in after) else value


def _changed_field(place: str, value: Any, changed: Changed) -> Any:
    if isinstance(value, Struct):
        return with_numbers(value, changed)
    if isinstance(value, Mapping):
        after = {key: _changed_field(f"{place}.value", each, changed) for key, each in value.items()}
        return after if any(after[key] is not value[key] for key in after) else value
    if isinstance(value, tuple):
        items = tuple(_changed_field(f"{place}.item", each, changed) for each in value)
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    if isinstance(value, int) and not isinstance(value, bool):
        return changed(declared(place), value)
    return value


def declared(place: str) -> Number:
    """Return the declaration of a number; raise `UndeclaredNumberError`."""
    try:
        return NUMBERS[place]
    except KeyError:
        raise UndeclaredNumberError(
            f"{place} is a number of the state without a range, an author and a step: declare it in"
            " bridge/core/state/numbers.py"
        ) from None
