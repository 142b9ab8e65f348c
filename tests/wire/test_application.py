"""Application entries: JSON keys, round trips, limits, and hostile bytes. The decoder never raises.

`docs/reference/application-json.md` and `docs/reference/router-report.md` describe the keys.
"""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.core.log.fields import ENTRY_LIMIT_BYTES, ApplicationError
from bridge.core.log.figures import RouterStatus
from bridge.core.log.hashes import hash_of
from bridge.core.log.records import (
    Admission,
    Clock,
    ConditionStatus,
    CostFactor,
    Exclusion,
    Factors,
    Force,
    Foreign,
    LeafFault,
    LeafStatus,
    Measurement,
    MetaStatus,
    OperatorCommand,
    Publication,
    PublishConfig,
    Removal,
    Report,
    ReportedDirectory,
)
from bridge.wire.i2p.structures import destination_from_base64, ed25519_destination
from bridge.wire.log.entries import decode, encode, kinds_named
from bridge.wire.log.reports import DESTINATIONS_LIMIT, ERRORS_LIMIT, FAILURE_LIMIT
from tests.effort import each_case

DOCUMENTS = Path(__file__).parents[2] / "docs" / "reference"


def destination(number: int) -> str:
    return ed25519_destination(sha256(b"%d" % number).digest(), bytes(32)).base64


FULL = Report(
    cluster="farm",
    date_ms=1_767_225_600_000,
    server_id=2,
    router=RouterStatus(
        attached=True,
        uptime_ms=5_000,
        job_lag_ms=1.25,
        exploratory_tunnels=4,
        participating_tunnels=120,
        configured_bandwidth_bytes_per_s=1_000_000,
        current_bandwidth_bytes_per_s=40_000,
        cpu_percent=12.5,
        memory_percent=40.0,
        last_published_router_info="AAAA",
    ),
    masters=(
        MetaStatus(
            destination=destination(0),
            publish_config=PublishConfig.AUTO,
            publishing=True,
            last_published_time_ms=1_767_225_500_000,
            last_published_lease_set="BBBB",
            can_sign_until_s=1_769_900_000,
        ),
    ),
    destinations=(
        LeafStatus(destination(1), healthy=True, uptime_ms=4_000, configured_tunnels=3, current_tunnels=3),
        LeafStatus(
            destination(2),
            healthy=False,
            configured_bandwidth_bytes_per_s=10,
            current_bandwidth_bytes_per_s=0,
            configured_connections=5,
            current_connections=1,
        ),
    ),
    remote_destinations=(
        Measurement(hash_of(destination(3)), reachable=True, fetch_ms=812),
        Measurement(hash_of(destination(4)), reachable=False),
    ),
    remote_metas=(Measurement(hash_of(destination(0)), reachable=True, fetch_ms=5),),
    request="0011223344556677-3-0-9",
)


def test_report_is_written_with_keys_of_proposal() -> None:
    written = json.loads(encode(FULL, config={"reportingPeriod": 2000}))
    assert written == {
        "cluster": "farm",
        "date": 1_767_225_600_000,
        "id": 2,
        "request": "0011223344556677-3-0-9",
        "config": {"reportingPeriod": 2000},
        "meta": {
            "destination": destination(0),
            "lastPublishedLS": "BBBB",
            "lastPublishedTime": 1_767_225_500_000,
            "publishConfig": "auto",
            "publishing": True,
            "canSignUntil": 1_769_900_000,
        },
        "router": {
            "attached": True,
            "uptime": 5_000,
            "jobLag": 1.25,
            "exploratoryTunnels": 4,
            "participatingTunnels": 120,
            "configuredBandwidth": 1_000_000,
            "currentBandwidth": 40_000,
            "cpuPercent": 12.5,
            "memoryPercent": 40.0,
            "lastPublishedRI": "AAAA",
        },
        "destinations": [
            {
                "destination": destination(1),
                "healthy": True,
                "uptime": 4_000,
                "configuredTunnels": 3,
                "currentTunnels": 3,
            },
            {
                "destination": destination(2),
                "healthy": False,
                "configuredBandwidth": 10,
                "currentBandwidth": 0,
                "configuredConnections": 5,
                "currentConnections": 1,
            },
        ],
        "remoteDestinations": [
            {"hash": hash_of(destination(3)), "reachable": True, "fetchTime": 812},
            {"hash": hash_of(destination(4)), "reachable": False},
        ],
        "remoteMetas": [{"hash": hash_of(destination(0)), "reachable": True, "fetchTime": 5}],
    }


def test_written_keys_are_documented() -> None:
    document = "".join((DOCUMENTS / name).read_text() for name in ("application-json.md", "router-report.md"))

    def keys(value: object) -> set[str]:
        if isinstance(value, dict):
            return set(value) | set().union(*(keys(inner) for inner in value.values()))
        return set().union(*(keys(inner) for inner in value)) if isinstance(value, list) else set()

    written = keys(json.loads(encode(FULL, config={})))
    assert {key for key in written if f"`{key}`" not in document} == set()


def test_report_round_trips() -> None:
    assert decode(encode(FULL)) == FULL


def test_unknown_router_figures_are_omitted() -> None:
    unknown = Report(cluster="farm", date_ms=0, server_id=0, router=RouterStatus(attached=False))
    assert json.loads(encode(unknown)) == {"cluster": "farm", "date": 0, "id": 0, "router": {"attached": False}}
    assert decode(encode(unknown)) == unknown


def test_clock_entry_round_trips() -> None:
    assert json.loads(encode(Clock(time_ms=17, server_id=3))) == {"clock": {"time": 17, "id": 3}}
    assert decode(b'{"clock":{"time":17,"id":3,"later":{}},"more":1}') == Clock(time_ms=17, server_id=3)


HASH = "a2" * 26


@each_case(
    ("command", "written"),
    [
        (Exclusion(HASH, excluded=True), {"exclusion": {"hash": HASH, "excluded": True}}),
        (CostFactor(HASH, 1.5, "me-1-1"), {"cost": {"hash": HASH, "factor": 1.5}, "request": "me-1-1"}),
        (Force(destination(0)), {"force": {"master": destination(0)}}),
        (
            Factors(7, "lag", {HASH: 1.25}, "spark-3-9"),
            {"factors": {"throughIndex": 7, "formula": "lag", "factors": {HASH: 1.25}}, "request": "spark-3-9"},
        ),
        (Removal(3, removed=True), {"removal": {"server": 3, "removed": True}}),
    ],
)
def test_command_round_trips(command: OperatorCommand, written: dict[str, Any]) -> None:
    assert json.loads(encode(command)) == written
    assert decode(encode(command)) == command


@each_case(
    ("written", "reason"),
    [
        ({"exclusion": {"hash": HASH}}, "missing required field `excluded`"),
        ({"exclusion": {"hash": HASH.upper(), "excluded": True}}, "regex"),
        ({"exclusion": {"hash": HASH + "\n", "excluded": True}}, "regex"),
        ({"cost": {"hash": HASH, "factor": "2"}}, "float"),
        ({"cost": {"hash": HASH, "factor": 1e10}}, "<= 1000000000"),
        ({"force": {"master": "a master"}}, "not I2P base64"),
        ({"factors": {"throughIndex": -1, "formula": "", "factors": {}}}, ">= 0"),
        ({"factors": {"throughIndex": 1, "formula": "x" * 201, "factors": {}}}, "length <= 200"),
        ({"factors": {"throughIndex": 1, "formula": "", "factors": {"short": 1}}}, "regex"),
        ({"force": {"master": destination(0)}, "cost": {"hash": HASH, "factor": 1}}, "more than one kind"),
    ],
)
def test_malformed_command_is_foreign_with_reason(written: dict[str, Any], reason: str) -> None:
    record = decode(json.dumps(written | {"request": "me-1-1"}).encode())
    assert isinstance(record, Foreign)
    assert reason in record.reason
    assert record.request == "me-1-1"


def two_masters() -> Report:
    [part] = FULL.masters
    other = replace(part, destination=destination(9), publish_config=PublishConfig.OFF)
    leaves = (replace(FULL.destinations[0], master_hash=HASH), FULL.destinations[1])
    return replace(FULL, masters=(part, other), destinations=leaves)


@pytest.mark.parametrize(
    ("failure", "written"),
    [
        ("nothing answers at 127.0.0.1:7654: Connection refused", "nothing answers at its port: Connection refused"),
        ("[fd00::1%eth0]:7654 does not respond", "its port does not respond"),
        ("the session ended after 12:30, code 1.2.3.4", "the session ended after 12:30, code 1.2.3.4"),
        ("x" * 195 + " 10.1.2.3:7654", "x" * 195 + " its "),
    ],
)
def test_reported_failure_lacks_addresses_of_node(failure: str, written: str) -> None:
    """Every reader of the log gets the report, so it lacks the address; the alarm on the node has the address."""
    [part] = FULL.masters
    report = replace(FULL, masters=(replace(part, publish_failure=failure),))
    assert json.loads(encode(report))["meta"]["publishFailure"] == written


def test_several_masters_are_written_as_list() -> None:
    written = json.loads(encode(two_masters()))
    assert [part["destination"] for part in written["meta"]] == [destination(0), destination(9)]
    assert [leaf.get("master") for leaf in written["destinations"]] == [HASH, None]
    assert decode(encode(two_masters())) == two_masters()
    one = written | {"meta": written["meta"][:1]}
    assert decode(json.dumps(one).encode()) == replace(two_masters(), masters=FULL.masters)


def test_invalid_master_list_is_foreign() -> None:
    part = json.loads(encode(FULL))["meta"]
    for parts, reason in (
        ([part, part], "twice"),
        ([part | {"destination": destination(each)} for each in range(9)], "length <= 8"),
        ([], "length >= 1"),
    ):
        record = decode(changed_report(meta=parts))
        assert isinstance(record, Foreign)
        assert reason in record.reason


def test_destination_hash_matches_its_address() -> None:
    for number in range(20):
        text = destination(number)
        assert f"{hash_of(text)}.b32.i2p" == destination_from_base64(text).address


def test_publication_entry_round_trips() -> None:
    publication = Publication(master=destination(0), server_id=1, published_s=1_767_225_600, content_hash="ab" * 32)
    assert json.loads(encode(publication)) == {
        "publication": {"master": destination(0), "id": 1, "published": 1_767_225_600, "contentHash": "ab" * 32}
    }
    assert decode(encode(publication)) == publication


def test_unknown_keys_are_ignored_at_every_level() -> None:
    entry = json.loads(encode(FULL))
    entry["later"] = entry["router"]["later"] = entry["meta"]["later"] = entry["destinations"][0]["later"] = [{}]
    assert decode(json.dumps(entry).encode()) == FULL


def test_report_with_only_proposal_keys_is_read() -> None:
    entry = {
        "cluster": "farm",
        "date": 1,
        "id": 1,
        "config": {},
        "meta": {"destination": destination(0), "lastPublishedTime": 0, "publishConfig": "on", "publishing": False},
        "router": {"uptime": 9},
        "destinations": [{"destination": destination(1), "uptime": 3}],
    }
    report = decode(json.dumps(entry).encode())
    assert isinstance(report, Report)
    assert report.router == RouterStatus(attached=True, uptime_ms=9)
    assert report.destinations == (LeafStatus(destination(1), healthy=False, uptime_ms=3),)
    assert [part.can_sign_until_s for part in report.masters] == [None]


def changed_report(**members: Any) -> bytes:
    return json.dumps(json.loads(encode(FULL)) | members).encode()


@each_case(
    ("data", "reason"),
    [
        (b"", "truncated"),
        (b"[]", "object"),
        (b"17", "object"),
        (b"{}", "unknown kind"),
        (b'{"kraft":1}', "unknown kind"),
        (b'{"clock":{"time":1,"id":1},"router":{}}', "more than one kind: router, clock"),
        (b'{"router":{}}', "missing required field `cluster`"),
        (b'{"clock":{"time":-1,"id":1}}', ">= 0"),
        (b'{"clock":{"time":1e999,"id":1}}', "out of range"),
        (b'{"clock":{"time":NaN,"id":1}}', "malformed"),
        (b'{"clock":{"time":1,"id":1}} {}', "trailing"),
        (b'{"clock":\xff\xfe}', ""),
        (b'{"clock":{"time":"\\ud800","id":1}}', ""),
        (changed_report(cluster=""), "length >= 1"),
        (changed_report(cluster="x" * 65), "length <= 64"),
        (changed_report(id=2**31), "2147483647"),
        (changed_report(id=True), "int"),
        (changed_report(date=2**53), "9007199254740991"),
        (changed_report(date=2**80), ""),
        (changed_report(request="x" * 129), "length <= 128"),
        (changed_report(destinations=[{"destination": "a leaf"}]), "not I2P base64"),
        (changed_report(destinations=[{"destination": destination(1)}] * 2), "twice"),
        (changed_report(destinations=[{"destination": destination(n)} for n in range(65)]), "length <= 64"),
        (changed_report(router={"cpuPercent": 100.1}), "<= 100"),
        (changed_report(router={"uptime": None, "jobLag": "much"}), "float"),
        (changed_report(meta={"destination": destination(0), "publishConfig": "maybe"}), "enum"),
        (changed_report(config=[]), "object"),
        (changed_report(later="x" * ENTRY_LIMIT_BYTES), "the limit is 65536"),
    ],
)
def test_invalid_entry_is_foreign_with_reason(data: bytes, reason: str) -> None:
    record = decode(data)
    assert isinstance(record, Foreign)
    assert reason.lower() in record.reason.lower()
    assert len(record.reason) <= 200


@each_case("where", [b'{"router":%s}', b'{"later":%s}', b'{"clock":{"time":1,"id":1},"later":%s}'])
@each_case("nested", [b"[" * 30_000 + b"]" * 30_000, b'{"a":' * 10_000 + b"1" + b"}" * 10_000])
def test_deep_nesting_is_foreign(where: bytes, nested: bytes) -> None:
    assert decode(where % nested) == Foreign("more than 256 opening brackets")


def test_allowed_nesting_is_read() -> None:
    assert decode(b'{"clock":{"time":1,"id":1},"later":%s}' % (b"[" * 250 + b"]" * 250)) == Clock(1, 1)


def test_encode_refuses_record_over_limits() -> None:
    with pytest.raises(ApplicationError, match="65536"):
        encode(FULL, config={"a": "x" * ENTRY_LIMIT_BYTES})
    with pytest.raises(ApplicationError, match="length <= 64"):
        encode(Report(cluster="x" * 65, date_ms=0, server_id=0, router=RouterStatus(attached=False)))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["router", "clock", "publication", "meta", "id"]), json_values))
def test_arbitrary_json_under_known_keys_decodes_to_record(entry: dict[str, Any]) -> None:
    assert isinstance(decode(msgspec.json.encode(entry)), Report | Clock | Publication | Foreign)


counts = st.none() | st.integers(min_value=0, max_value=2**53 - 1)


@settings(deadline=None)
@given(
    st.builds(
        RouterStatus,
        attached=st.booleans(),
        uptime_ms=counts,
        job_lag_ms=st.none() | st.floats(min_value=0, max_value=1e9),
        participating_tunnels=counts,
        cpu_percent=st.none() | st.floats(min_value=0, max_value=100),
    ),
    st.integers(min_value=0, max_value=2**31 - 1),
)
def test_router_status_round_trips(status: RouterStatus, server_id: int) -> None:
    report = Report(cluster="farm", date_ms=1, server_id=server_id, router=status)
    assert decode(encode(report)) == report


def test_admission_round_trips() -> None:
    admission = Admission(bytes(range(8)), "node-4", server_id=4)
    assert encode(admission) == b'{"admission":{"server":4,"node":"0001020304050607","name":"node-4"}}'
    assert decode(encode(admission)) == admission


@each_case(
    "content",
    [
        {"server": 4, "node": "0001020304050607"},
        {"server": 4, "name": "x"},
        {"server": 4, "node": "0001020304050607\n", "name": "x"},
        {"server": 4, "node": "000102030405060G", "name": "x"},
        {"server": 4, "node": "0001020304050607", "name": ""},
        {"server": 4, "node": "0001020304050607", "name": "-x"},
        {"server": 4, "node": "0001020304050607", "name": "x" * 33},
        {"server": 4, "node": "0001020304050607", "name": "x\n"},
        {"node": 1, "name": "x"},
    ],
)
def test_admission_without_valid_identity_is_foreign(content: dict[str, Any]) -> None:
    assert isinstance(decode(json.dumps({"admission": content}).encode()), Foreign)


@each_case("value", [5, None, {}, ["x"], "x" * 300, [5, "router", "later", "router"]])
def test_report_with_arbitrary_fault_or_failure_is_read(value: object) -> None:
    """Older versions ignore these members, so no value of them may make the entry foreign."""
    written = json.loads(encode(FULL))
    meta = written["meta"][0] if isinstance(written["meta"], list) else written["meta"]
    meta["publishFailure"] = meta["standby"] = written["destinations"][0]["faults"] = value
    read = decode(json.dumps(written).encode())
    assert isinstance(read, Report)
    assert len(read.masters[0].publish_failure or "") <= FAILURE_LIMIT
    assert read.masters[0].standby is False
    assert set(read.destinations[0].faults) <= {LeafFault.ROUTER}


@each_case(
    ("value", "expected"),
    [
        ({"hash": hash_of("x"), "problem": "no SAM"}, ReportedDirectory(hash_of("x"), "no SAM")),
        ({}, ReportedDirectory()),
        ({"problem": "x" * 300, "later": 1}, ReportedDirectory(None, "x" * FAILURE_LIMIT)),
        (None, None),
        (5, None),
        ([], None),
        ({"hash": "x"}, None),
        ({"hash": hash_of("x") + "\n"}, None),
        ({"problem": 5}, None),
    ],
)
def test_report_with_arbitrary_directory_is_read(value: object, expected: ReportedDirectory | None) -> None:
    """Older versions ignore this member, so no value of it may make the entry foreign."""
    written = {**json.loads(encode(FULL)), "directory": value}
    read = decode(json.dumps(written).encode())
    assert isinstance(read, Report)
    assert read.directory == expected


@each_case("value", [5, -1, 2**53, 1.0, True, None, {}, ["x"], "x" * 300, "a [b] {c}"])
def test_report_with_arbitrary_conditions_is_read(value: object) -> None:
    """Older versions ignore these members, so no value of them may make the entry foreign."""
    written = json.loads(encode(FULL))
    for condition in ("router", "leaseSet", "service"):
        for part in ("Age", "Failures", "Error"):
            written["destinations"][0][condition + part] = value
    read = decode(json.dumps(written).encode())
    assert isinstance(read, Report)
    error = value[:FAILURE_LIMIT] if isinstance(value, str) else None
    number = value if value == 5 else None
    known = tuple(ConditionStatus(each, number, number or 0, error) for each in LeafFault)
    assert read.destinations[0].conditions == (known if (number, error) != (None, None) else ())


def test_conditions_of_leaves_round_trip() -> None:
    conditions = (
        ConditionStatus(LeafFault.ROUTER, 5),
        ConditionStatus(LeafFault.LEASE_SET, None, 2, "2 look-ups in a row did not find it"),
        ConditionStatus(LeafFault.SERVICE, 0, 2**53 - 1, "[Errno 111] {x}"),
    )
    report = replace(FULL, destinations=(replace(FULL.destinations[0], conditions=conditions),))
    assert decode(encode(report)) == report
    assert b'"routerAge":5,"leaseSetFailures":2' in encode(report)


def test_report_with_largest_errors_is_accepted() -> None:
    """An entry may have at most 256 opening brackets, and those in texts count."""
    leaves = [ed25519_destination(bytes([n]) * 32, bytes(32)).base64 for n in range(DESTINATIONS_LIMIT)]
    for text in ("[" * 300, '{"\\' * 100, "\x00" * 300, "\U0001f600" * 300, "\udcff" * 300):
        conditions = tuple(ConditionStatus(each, 2**53 - 1, 2**53 - 1, text) for each in LeafFault)
        report = replace(
            FULL,
            masters=tuple(replace(each, publish_failure=text) for each in FULL.masters),
            destinations=tuple(
                LeafStatus(each, healthy=False, faults=tuple(LeafFault), conditions=conditions) for each in leaves
            ),
            directory=ReportedDirectory(None, text),
        )
        read = decode(encode(report))
        assert isinstance(read, Report)
        errors = [each.last_error for leaf in read.destinations for each in leaf.conditions]
        assert 0 < sum(len(each or "") for each in errors) <= ERRORS_LIMIT
        assert read.masters[0].publish_failure == text[:FAILURE_LIMIT].replace("\udcff", "?")


def test_errors_of_foreign_sender_are_bounded() -> None:
    written = json.loads(encode(FULL))
    leaf = written["destinations"][0]
    written["destinations"] = [
        leaf | {"destination": ed25519_destination(bytes([n]) * 32, bytes(32)).base64, "serviceError": "x" * 300}
        for n in range(DESTINATIONS_LIMIT)
    ]
    read = decode(json.dumps(written).encode())
    assert isinstance(read, Report)
    errors = [each.last_error or "" for leaf in read.destinations for each in leaf.conditions]
    assert [len(each) for each in errors[: ERRORS_LIMIT // FAILURE_LIMIT]] == [FAILURE_LIMIT] * 10
    assert set(errors[10:]) <= {""}


def test_directory_of_report_round_trips() -> None:
    for directory in (None, ReportedDirectory(), ReportedDirectory(hash_of("x")), ReportedDirectory(None, "no SAM")):
        report = replace(FULL, directory=directory)
        assert decode(encode(report)) == report
    assert b"directory" not in encode(FULL)


@pytest.mark.parametrize("value", [b"1e999", b"1" * 400, b'"\xff\xfe"'])
def test_undecodable_fault_is_ignored(value: bytes) -> None:
    # Older versions skip the member, and skipping accepts this value.
    written = json.loads(encode(FULL))
    written["destinations"][0]["faults"] = "replaced"
    read = decode(json.dumps(written).encode().replace(b'"replaced"', value))
    assert isinstance(read, Report)
    assert read.destinations[0].faults == ()


def test_kinds_of_deeply_nested_object_are_empty() -> None:
    assert kinds_named(b'{"level":' + b"[" * 30_000 + b"]" * 30_000 + b"}") == ()
