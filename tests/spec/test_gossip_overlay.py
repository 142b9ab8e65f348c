"""Options for groups with more members than a directory holds: a member relies on its own observations."""

from msgspec.structs import replace

from gossip.core.member import Address, Status
from gossip.core.messages import AliveUpdate, PingRequest, PingResponse
from gossip.core.options import SwimOptions
from tests.simulation.gossip_network import address_of, node_id
from tests.spec.gossip_story import Story, changes, info_of, sent, updates_in, verdict

OPTIONS = SwimOptions.for_overlay()
AGE_MS = OPTIONS.directory_age_ms


def story_with_peers(*numbers: int) -> Story:
    return Story(options=OPTIONS).with_peers(*numbers)


def introduce(story: Story, number: int) -> None:
    """Deliver a reply of node 1 whose sample contains a member: node 1 vouches for this member."""
    pings: list[PingRequest] = []
    while not pings:
        requests = sent(story.pass_time(100, answering=(2, 3)), PingRequest)
        pings = [ping for target, ping in requests if target == address_of(1) and ping.target_id == node_id(1)]
    answer = story.reply_to(pings[0])
    story.receive(1, replace(answer, payload=replace(answer.payload, sample=(info_of(number),))))


def probed_nodes(story: Story, duration_ms: int, *answering: int) -> list[int]:
    requests = sent(story.pass_time(duration_ms, answering=answering), PingRequest)
    return [int.from_bytes(request.target_id, "big") for _, request in requests if request.ttl == 0]


def test_peer_with_longest_idle_link_probed_next() -> None:
    story = story_with_peers(1, 2, 3)
    probed_nodes(story, 3_000, 1, 2, 3)
    story.now += 10
    for number in (1, 3):
        story.receive(number, story.ping(number))
    assert probed_nodes(story, 1_000, 1, 2, 3) == [2]


def test_members_introduced_by_sample_not_by_update() -> None:
    story = story_with_peers(1, 2, 3)
    story.receive_updates(1, AliveUpdate(info_of(8)))
    assert story.status(8) is None
    introduce(story, 9)
    assert story.status(9) is Status.ALIVE
    assert AliveUpdate(info_of(9)) not in updates_in(story.pass_time(3_000, answering=(1, 2, 3)))


def test_alive_update_with_higher_number_ends_suspicion() -> None:
    story = story_with_peers(1, 2)
    story.receive_updates(1, verdict(2, Status.SUSPECT, by=1))
    assert story.status(2) is Status.SUSPECT
    story.receive_updates(1, AliveUpdate(info_of(2, claim=1)))
    assert story.status(2) is Status.ALIVE


def test_member_missing_in_samples_dropped_despite_updates() -> None:
    story = story_with_peers(1, 2, 3)
    introduce(story, 9)
    for _ in range(AGE_MS // 1_000 + 2):
        story.receive_updates(1, AliveUpdate(info_of(9)))
        story.pass_time(1_000, answering=(1, 2, 3))
    assert story.status(9) is None
    assert story.status(1) is Status.ALIVE


def test_sample_has_only_recently_active_peers() -> None:
    story = Story(options=OPTIONS).with_peers(1, 2)
    (_, fresh), *_ = sent(story.receive(1, story.ping(1)), PingResponse)
    assert [info.node_id for info in fresh.payload.sample] == [node_id(2)]
    story.pass_time(AGE_MS + 1_000, answering=(1,))
    (_, later), *_ = sent(story.receive(1, story.ping(1)), PingResponse)
    assert later.payload.sample == ()


def test_suspect_probed_each_period() -> None:
    story = story_with_peers(1, 2, 3)
    story.receive_updates(1, verdict(2, Status.SUSPECT, by=1))
    assert probed_nodes(story, 3_000, 1, 3).count(2) >= 3
    assert story.status(2) is Status.SUSPECT


def test_overlay_suspicion_lasts_shortest_time_unconfirmed() -> None:
    story = story_with_peers(1, 2, 3)
    story.receive_updates(1, verdict(2, Status.SUSPECT, by=1))
    shortest_ms = OPTIONS.suspicion_multiplier * OPTIONS.probe_period_ms
    assert (node_id(2), Status.DEAD) not in changes(story.pass_time(shortest_ms - 1, answering=(1, 3)))
    assert (node_id(2), Status.DEAD) in changes(story.pass_time(2, answering=(1, 3)))


def test_dead_helpers_do_not_lower_health_if_one_nacks() -> None:
    story = story_with_peers(1, 2, 3, 4)
    helpers: list[tuple[Address, PingRequest]] = []
    while not helpers:
        helpers = [ping for ping in sent(story.pass_time(100), PingRequest) if ping[1].ttl > 0]
    assert len(helpers) == OPTIONS.helpers
    target, request = helpers[0]
    number = next(n for n in (1, 2, 3, 4) if address_of(n) == target)
    story.receive(number, story.reply_to(request, nack=True))
    story.pass_time(600)
    assert story.status(int.from_bytes(request.target_id, "big")) is Status.SUSPECT
    assert story.swim.describe().health_score == 0
