"""Counters: the view, the exposition and the reference page contain exactly the declared counters."""

import re
from collections import Counter
from collections.abc import Iterator

from msgspec.structs import replace
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from bridge.api.view import FarmView
from bridge.node.control.counters import FAMILIES, Counted, Family, ViewPart, by_key, identifier
from bridge.node.control.metrics import exposition
from bridge.node.events.durations import Durations
from consensus import CountedReason, Histogram
from consensus.protocols.garlic_farm import Fault
from consensus.protocols.zmq_raft import counters as zmq
from gossip import CountedDrop, SealFault
from tests.effort import each_case
from tests.operator_views import farm_view
from tests.reference.metrics import OF_CLIENT, OF_LIBRARIES, page

WORDS_LEAST = 6
MEMBERS = [(family, member) for family in FAMILIES for member in family.members]


def counting_view(*, has_endpoints: bool = True) -> FarmView:
    """Return a view with a different number in each declared counter."""
    view = farm_view()
    numbers = {part: dict[str, int]() for part in ViewPart}
    for number, (family, member) in enumerate(MEMBERS):
        numbers[family.part] |= by_key([(member, number)])
    return replace(
        view,
        counters=numbers[ViewPart.NODE],
        gossip=replace(view.gossip, counters=numbers[ViewPart.GOSSIP]),
        raft=replace(view.raft, counters=numbers[ViewPart.RAFT]),
        node=replace(
            view.node,
            kafka_address="kafka://127.0.0.1:9092" if has_endpoints else None,
            zmq_address="tcp://127.0.0.1:7667" if has_endpoints else None,
        ),
    )


def exposed(view: FarmView) -> dict[str, Metric]:
    """Return the counters of a view by name, parsed from Prometheus' format."""
    found = text_string_to_metric_families(exposition(view, Durations(Histogram())).decode())
    return {metric.name: metric for metric in found if metric.type == "counter"}


def series(metrics: dict[str, Metric]) -> Iterator[tuple[str, dict[str, str], float]]:
    for name, metric in metrics.items():
        yield from ((name, sample.labels, sample.value) for sample in metric.samples)


def declared(family: Family, member: Counted) -> tuple[str, dict[str, str]]:
    return f"garlicfarm_{family.name(member)}", {family.label: identifier(member)} if family.metric else {}


def test_exposition_has_each_declared_counter_with_its_number() -> None:
    expected = [(*declared(family, member), float(number)) for number, (family, member) in enumerate(MEMBERS)]
    assert sorted(map(str, series(exposed(counting_view())))) == sorted(map(str, expected))


def test_exposition_of_empty_view_has_each_counter_at_zero() -> None:
    view = counting_view()
    empty = replace(view, counters={}, gossip=replace(view.gossip, counters={}), raft=replace(view.raft, counters={}))
    assert [(name, labels, 0.0) for name, labels, _ in series(exposed(view))] == list(series(exposed(empty)))


def test_exposition_ignores_undeclared_counter() -> None:
    view = counting_view()
    gossip = replace(view.gossip, counters={**view.gossip.counters, "dropped_by_a_stranger": 7})
    assert list(series(exposed(replace(view, gossip=gossip)))) == list(series(exposed(view)))


def test_exposition_without_endpoints_omits_their_counters() -> None:
    names = exposed(counting_view(has_endpoints=False)).keys()
    assert [name for name in names if re.match("garlicfarm_(kafka|zmq)_", name)] == []
    assert names < exposed(counting_view()).keys()


@each_case("family", FAMILIES, ids=lambda family: family.name(family.members[0]))
def test_reference_has_each_declared_counter(family: Family) -> None:
    text = page()
    section = text.partition(f"\n### {family.metric}\n")[2].partition("\n#")[0]
    if family.metric and not family.keys:
        assert f": `{family.prefix}` and the {family.label}." in section or not family.prefix
    for member in family.members:
        key = f"`{family.key(member)}` | " if family.keys else ""
        assert f"| `{family.name(member)}` |" in text
        assert member.meaning in text
        assert not family.metric or f"| `{identifier(member)}` | {key}{member.meaning} |" in section


def test_metric_help_texts_are_distinct_sentences() -> None:
    meanings = {name: metric.documentation for name, metric in exposed(counting_view()).items()}
    for name, meaning in meanings.items():
        words = set(re.findall(r"[a-z]+", meaning.lower())) - set(name.split("_"))
        assert len(words) >= WORDS_LEAST, f"{name}: {meaning}"
        assert re.fullmatch(r"[A-Z0-9].*[^.][.]", meaning), f"{name}: {meaning}"
    assert len(set(meanings.values())) == len(meanings), "two metrics have one meaning"


def test_label_meanings_are_distinct_phrases() -> None:
    for family in FAMILIES:
        meanings = [member.meaning for member in family.members]
        assert len(set(meanings)) == len(meanings), family.metric
        for meaning in meanings if family.metric else []:
            assert meaning[-1] != "."
            assert len(meaning.split()) >= 2


def test_series_follow_naming_of_prometheus() -> None:
    for name, labels, _ in series(exposed(counting_view())):
        assert re.fullmatch(r"garlicfarm_[a-z0-9]+(_[a-z0-9]+)*", name)
        assert not re.search(r"_(ms|milliseconds|minutes|kb|mb)(_|$)", name)
        assert all(re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", text) for text in (*labels, *labels.values()))


def test_counters_do_not_share_keys_or_series() -> None:
    keys = Counter((family.part, family.key(member)) for family, member in MEMBERS)
    names = Counter(str(declared(family, member)) for family, member in MEMBERS)
    assert {each for each, count in (keys | names).items() if count > 1} == set()


def test_counters_in_one_mapping_have_different_identifiers() -> None:
    """Members with equal values are equal, even across classes; in one mapping they would share a key."""
    for endpoint in ("kafka", "zmq"):
        values = [member.value for family, member in MEMBERS if family.endpoint == endpoint]
        assert len(set(values)) == len(values)
    assert len({each.value for each in (*zmq.PeerEvent, *zmq.SocketDrop, *zmq.EndpointDrop)}) == sum(
        map(len, (zmq.PeerEvent, zmq.SocketDrop, zmq.EndpointDrop))
    )


def test_counter_classes_belong_to_families() -> None:
    declared_classes = {*CountedReason.__subclasses__(), *CountedDrop.__subclasses__()}
    assert declared_classes - {type(member) for _, member in MEMBERS} == {*OF_LIBRARIES, *OF_CLIENT}


def test_view_keeps_published_keys() -> None:
    published = {
        "ignored_keyring_would_split",
        "dropped_bad_seal",
        "garlic_farm_wrong_credentials",
        "garlic_farm_connections_hung_up",
        "without_effect_unknown_author",
        "reports",
        "control_requests",
        "kafka_closed_no_request_of_kafka_s",
        "kafka_produced_refused_out_of_scope",
        "kafka_offsets_written",
        "zmq_keys_accepted",
        "zmq_dropped_since_it_is_too_large",
        "zmq_updates_committed",
    }
    assert published <= {family.key(member) for family, member in MEMBERS}


def test_by_key_prefixes_members_with_their_class() -> None:
    assert by_key([(Fault.MALFORMED, 1)], [(SealFault.MALFORMED, 2)]) == {
        "garlic_farm_malformed": 1,
        "dropped_malformed": 2,
    }


def test_equal_members_of_two_families_have_different_keys() -> None:
    assert len({str(member) for _, member in MEMBERS}) < len(MEMBERS)
    assert [set(by_key([(member, 1)])) for _, member in MEMBERS] == [{family.key(member)} for family, member in MEMBERS]
