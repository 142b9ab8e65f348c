"""Each figure of a report above its maximum, negative or NaN: the report stays valid and lacks only that figure."""

import math
from typing import Any, get_args, get_type_hints

from msgspec.structs import fields, replace

from bridge.core.log.figures import FIGURES, RouterStatus
from bridge.core.log.records import LeafStatus, Measurement, MetaStatus, PublishConfig, Report
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.i2p.i2pcontrol import (
    BANDWIDTH_IN,
    BANDWIDTH_OUT,
    EXPLORATORY_IN,
    EXPLORATORY_OUT,
    LIMIT_IN,
    LIMIT_OUT,
    PARTICIPATING,
    UPTIME,
    facts_of,
)
from bridge.wire.log.entries import decode, encode
from bridge.wire.log.reports import within_ranges
from tests.destinations import new_demo_leaf
from tests.effort import each_case

HASH = "a" * 52
WHOLE = Report(
    cluster="demo",
    date_ms=1,
    server_id=1,
    router=RouterStatus(attached=True),
    masters=(
        MetaStatus(
            new_master_key(demo=True).destination.base64, PublishConfig.AUTO, publishing=False, last_published_time_ms=0
        ),
    ),
    destinations=(LeafStatus(new_demo_leaf().base64, healthy=True),),
    remote_destinations=(Measurement(HASH, reachable=True),),
    remote_metas=(Measurement(HASH, reachable=True),),
)
PARTS = ("router", "masters", "destinations", "remote_destinations", "remote_metas")
WRONG: dict[str, float | None] = {
    "maximum + 1": None,
    "2^53": 2**53,
    "2^63": 2**63,
    "2^64": 2**64,
    "10^400": 10**400,
    "negative": -1,
}
WRONG |= {"NaN": math.nan, "infinity": math.inf}


def part_of(report: Report, name: str) -> Any:
    """Return the router, or the first element of a list."""
    found = getattr(report, name)
    return found[0] if isinstance(found, tuple) else found


def with_value(report: Report, part: str, figure: str, value: object) -> Report:
    found = replace(part_of(report, part), **{figure: value})
    changes: dict[str, Any] = {part: (found,) if isinstance(getattr(report, part), tuple) else found}
    return replace(report, **changes)


def numbers() -> list[tuple[str, str]]:
    """Return all numbers of all parts, as the records declare them."""
    found = []
    for part in PARTS:
        hints = get_type_hints(type(part_of(WHOLE, part)))
        for field in fields(part_of(WHOLE, part)):
            kinds = {hints[field.name], *get_args(hints[field.name])}
            if kinds & {int, float}:
                found.append((part, field.name))
    return found


@each_case("wrong", WRONG)
@each_case(("part", "figure"), numbers())
def test_report_lacks_only_its_invalid_figure(part: str, figure: str, wrong: str) -> None:
    maximum = FIGURES[figure].maximum if part == "router" else 2**32 - 1 if figure.endswith("_s") else 2**53 - 1
    maximum = 2**53 - 1 if figure.endswith("bytes_per_s") else maximum
    value = maximum + 1 if WRONG[wrong] is None else WRONG[wrong]
    kept, dropped = within_ranges(with_value(WHOLE, part, figure, value))
    assert dropped == (figure,)
    assert kept == WHOLE
    assert decode(encode(kept)) == WHOLE


@each_case(("part", "figure"), numbers())
def test_report_keeps_figure_at_its_maximum(part: str, figure: str) -> None:
    maximum = FIGURES[figure].maximum if part == "router" else 2**32 - 1
    report = with_value(WHOLE, part, figure, maximum)
    assert within_ranges(report) == (report, ())
    assert decode(encode(report)) == report


@each_case("value", [2**53 - 1, 2**53, 2**63, 1e300, 1e9 + 1, -1, math.nan, "9007199254740991", "nan"])
def test_report_of_arbitrary_i2pcontrol_figure_is_valid(value: object) -> None:
    keys = (UPTIME, PARTICIPATING, EXPLORATORY_IN, EXPLORATORY_OUT, BANDWIDTH_IN, BANDWIDTH_OUT)
    facts = facts_of(dict.fromkeys(keys, value), {LIMIT_IN: value, LIMIT_OUT: value}, {"Result": value})
    kept, _ = within_ranges(replace(WHOLE, router=facts.report))
    assert decode(encode(kept)) == kept
