"""Lifeguard's parts as switches: each does what it is for, and is gone entirely when it is off."""

from dataclasses import replace

import pytest

from gossip.core.member import Incarnation, Status
from gossip.core.messages import PingRequest, PingResponse, VerdictUpdate
from gossip.core.options import SwimOptions
from gossip.core.updates import Suspicion
from tests.simulation.gossip_network import address_of, node_id
from tests.spec.gossip_story import Story, sent, told, verdict

PLAIN = SwimOptions.lan().plain_swim()


def test_plain_swim_differs_from_its_preset_in_lifeguards_parts_only() -> None:
    parts = {"awareness_max", "nacks", "suspicion_max_multiplier", "buddy_notice", "standstill_grace"}
    for preset in (SwimOptions.lan(), SwimOptions.loopback()):
        plain = preset.plain_swim()
        differing = {name for name in SwimOptions.__slots__ if getattr(plain, name) != getattr(preset, name)}
        assert differing == parts
        assert replace(plain, **{name: getattr(preset, name) for name in parts}) == preset


@pytest.mark.parametrize("size", [3, 10, 1_000])
def test_without_the_shrinking_suspicion_its_length_is_fixed_and_confirmations_are_not_gossiped_further(
    size: int,
) -> None:
    fixed = replace(SwimOptions.lan(), suspicion_max_multiplier=1)
    suspicion = Suspicion(Incarnation(1, 0), node_id(1), size, fixed, 0)
    length = suspicion.deadline
    assert not suspicion.confirm(node_id(2))
    assert suspicion.deadline == length
    shrinking = Suspicion(Incarnation(1, 0), node_id(1), size, SwimOptions.lan(), 0)
    for accuser in range(2, 6):
        shrinking.confirm(node_id(accuser))
    assert shrinking.deadline == length, "as long as one that all members confirmed"


@pytest.mark.parametrize("with_nacks", [True, False])
def test_a_helper_nacks_only_if_nacks_are_on(with_nacks: bool) -> None:  # noqa: FBT001 - the case
    story = Story(options=replace(SwimOptions.lan(), nacks=with_nacks))
    story.befriend(1, 2)
    story.hear(1, story.ping(1, target=2, ttl=1))
    effects = story.pass_time(story.options.probe_period_ms, answering=[1, 2])
    assert any(response.nack for _, response in sent(effects, PingResponse)) == with_nacks


def test_without_nacks_a_failed_round_counts_once_whatever_the_helpers_did() -> None:
    story = Story(options=replace(SwimOptions.lan(), nacks=False))
    story.befriend(1, 2, 3, 4)
    story.quiet(1, 2, 3, 4)
    while not sent(story.pass_time(1), PingRequest):
        pass
    story.pass_time(story.options.probe_period_ms)
    assert story.swim.describe().health_score == 1


def test_with_the_health_multiplier_off_failed_rounds_stretch_nothing() -> None:
    story = Story(options=replace(SwimOptions.lan(), awareness_max=1))
    story.befriend(1, 2, 3)
    story.quiet(1, 2, 3)
    story.pass_time(3_000)
    assert story.swim.describe().health_score == 0
    assert story.swim._prober._next_round_at - story.now <= story.options.probe_period_ms


@pytest.mark.parametrize("with_notice", [True, False])
def test_a_suspect_learns_of_it_by_each_ping_only_if_the_buddy_notice_is_on(
    with_notice: bool,  # noqa: FBT001 - the case
) -> None:
    story = Story(options=replace(SwimOptions.lan(), buddy_notice=with_notice))
    story.befriend(1, 2, 3)
    story.hear_news(2, verdict(1, Status.SUSPECT, by=2))
    story.swim._queue.forget(node_id(1))
    effects = story.hear(1, story.ping(1))
    accusation = VerdictUpdate(node_id(1), Incarnation(1, 0), Status.SUSPECT, node_id(0))
    assert (accusation in told(effects)) == with_notice


def test_the_dead_are_told_so_whether_or_not_the_buddy_notice_is_on() -> None:
    story = Story(options=PLAIN)
    story.befriend(1, 2)
    story.hear_news(1, verdict(2, Status.DEAD, by=1))
    [(_, response)] = sent(story.hear(2, story.ping(2)), PingResponse)
    assert response.payload.updates[0] == verdict(2, Status.DEAD, by=0)


@pytest.mark.parametrize("with_grace", [True, False])
def test_a_node_that_stood_still_gives_suspects_that_time_back_only_with_grace(
    with_grace: bool,  # noqa: FBT001 - the case
) -> None:
    story = Story(options=replace(SwimOptions.lan(), standstill_grace=with_grace))
    story.befriend(1, 2, 3)
    story.hear_news(2, verdict(1, Status.SUSPECT, by=2))
    story.now += 60_000
    story.pass_time(0)
    assert (story.status(1) is Status.SUSPECT) == with_grace


def test_a_helper_without_nacks_still_passes_answers_back() -> None:
    story = Story(options=PLAIN)
    story.befriend(1, 2)
    request = story.ping(1, target=2, ttl=1)
    story.hear(1, request)
    answer = PingResponse(node_id(1), node_id(2), Incarnation(1, 0), request.seq, 0)
    assert sent(story.hear(2, answer), PingResponse) == [(address_of(1), answer)]
