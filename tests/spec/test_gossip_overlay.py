"""What changes for a member of a group far larger than its directory: it trusts what it sees for itself."""

from dataclasses import replace

from gossip.core.member import Address, Status
from gossip.core.messages import AliveUpdate, PingRequest, PingResponse
from gossip.core.options import SwimOptions
from tests.simulation.gossip_network import address_of, node_id
from tests.spec.gossip_story import Story, changes, info_of, sent, told, verdict

OPTIONS = SwimOptions.for_overlay()
AGE_MS = OPTIONS.directory_age_ms


def story_with_peers(*numbers: int) -> Story:
    story = Story(options=OPTIONS)
    story.befriend(*numbers)
    return story


def name(story: Story, number: int) -> None:
    """Let node 1 name a member in an answer, as one for which it vouches."""
    asked: list[PingRequest] = []
    while not asked:
        pings = sent(story.pass_time(100, answering=(2, 3)), PingRequest)
        asked = [ping for target, ping in pings if target == address_of(1) and ping.target_id == node_id(1)]
    answer = story.answer_to(asked[0])
    story.hear(1, replace(answer, payload=replace(answer.payload, sample=(info_of(number),))))


def probed(story: Story, duration_ms: int, *answering: int) -> list[int]:
    requests = sent(story.pass_time(duration_ms, answering=answering), PingRequest)
    return [int.from_bytes(request.target_id, "big") for _, request in requests if request.ttl == 0]


def test_the_peer_that_was_silent_for_longest_is_probed_next() -> None:
    story = story_with_peers(1, 2, 3)
    probed(story, 3_000, 1, 2, 3)
    story.now += 10
    for number in (1, 3):
        story.hear(number, story.ping(number))
    assert probed(story, 1_000, 1, 2, 3) == [2]


def test_news_introduces_no_member_and_a_sample_does() -> None:
    story = story_with_peers(1, 2, 3)
    story.hear_news(1, AliveUpdate(info_of(8)))
    assert story.status(8) is None
    name(story, 9)
    assert story.status(9) is Status.ALIVE
    assert AliveUpdate(info_of(9)) not in told(story.pass_time(3_000, answering=(1, 2, 3)))


def test_news_of_a_later_claim_of_a_listed_member_is_heard() -> None:
    story = story_with_peers(1, 2)
    story.hear_news(1, verdict(2, Status.SUSPECT, by=1))
    assert story.status(2) is Status.SUSPECT
    story.hear_news(1, AliveUpdate(info_of(2, claim=1)))
    assert story.status(2) is Status.ALIVE


def test_a_member_that_no_peer_names_any_more_is_forgotten_and_repeating_old_news_does_not_help() -> None:
    story = story_with_peers(1, 2, 3)
    name(story, 9)
    for _ in range(AGE_MS // 1_000 + 2):
        story.hear_news(1, AliveUpdate(info_of(9)))
        story.pass_time(1_000, answering=(1, 2, 3))
    assert story.status(9) is None
    assert story.status(1) is Status.ALIVE


def test_a_member_names_only_peers_that_spoke_to_it_lately() -> None:
    story = Story(options=OPTIONS)
    story.befriend(1, 2)
    (_, fresh), *_ = sent(story.hear(1, story.ping(1)), PingResponse)
    assert [info.node_id for info in fresh.payload.sample] == [node_id(2)]
    story.pass_time(AGE_MS + 1_000, answering=(1,))
    (_, later), *_ = sent(story.hear(1, story.ping(1)), PingResponse)
    assert later.payload.sample == ()


def test_a_suspect_is_asked_itself_each_period_until_it_answers() -> None:
    story = story_with_peers(1, 2, 3)
    story.hear_news(1, verdict(2, Status.SUSPECT, by=1))
    assert probed(story, 3_000, 1, 3).count(2) >= 3
    assert story.status(2) is Status.SUSPECT


def test_an_unconfirmed_suspicion_has_its_shortest_length() -> None:
    story = story_with_peers(1, 2, 3)
    story.hear_news(1, verdict(2, Status.SUSPECT, by=1))
    shortest_ms = OPTIONS.suspicion_multiplier * OPTIONS.probe_period_ms
    assert (node_id(2), Status.DEAD) not in changes(story.pass_time(shortest_ms - 1, answering=(1, 3)))
    assert (node_id(2), Status.DEAD) in changes(story.pass_time(2, answering=(1, 3)))


def test_helpers_that_died_too_are_not_held_against_this_node_while_one_answers() -> None:
    story = story_with_peers(1, 2, 3, 4)
    helpers: list[tuple[Address, PingRequest]] = []
    while not helpers:
        helpers = [ping for ping in sent(story.pass_time(100), PingRequest) if ping[1].ttl > 0]
    assert len(helpers) == OPTIONS.helpers
    target, request = helpers[0]
    number = next(n for n in (1, 2, 3, 4) if address_of(n) == target)
    story.hear(number, story.answer_to(request, nack=True))
    story.pass_time(600)
    assert story.status(int.from_bytes(request.target_id, "big")) is Status.SUSPECT
    assert story.swim.describe().health_score == 0
