"""The switches of Lifeguard's mechanisms: each mechanism works only if it is on."""

import pytest
from msgspec.structs import replace

from gossip.core.member import Incarnation, Status
from gossip.core.messages import PingRequest, PingResponse, VerdictUpdate
from gossip.core.options import SwimOptions
from gossip.core.updates import Suspicion
from tests.simulation.gossip_network import address_of, node_id
from tests.spec.gossip_story import Story, sent, updates_in, verdict

PLAIN = SwimOptions.lan().plain_swim()


def test_plain_swim_differs_only_in_lifeguard_parts() -> None:
    parts = {"awareness_max", "nacks", "suspicion_max_multiplier", "buddy_notice", "standstill_grace"}
    for preset in (SwimOptions.lan(), SwimOptions.loopback()):
        plain = preset.plain_swim()
        differing = {name for name in SwimOptions.__struct_fields__ if getattr(plain, name) != getattr(preset, name)}
        assert differing == parts
        assert replace(plain, **{name: getattr(preset, name) for name in parts}) == preset


@pytest.mark.parametrize("size", [3, 10, 1_000])
def test_suspicion_length_fixed_without_shrinking(size: int) -> None:
    fixed = replace(SwimOptions.lan(), suspicion_max_multiplier=1)
    suspicion = Suspicion(Incarnation(1, 0), node_id(1), size, fixed, 0)
    length = suspicion.deadline
    assert not suspicion.confirm(node_id(2))
    assert suspicion.deadline == length
    shrinking = Suspicion(Incarnation(1, 0), node_id(1), size, SwimOptions.lan(), 0)
    for accuser in range(2, 6):
        shrinking.confirm(node_id(accuser))
    assert shrinking.deadline == length, "equal to a suspicion confirmed by all members"


@pytest.mark.parametrize("with_nacks", [True, False])
def test_helper_nacks_only_if_nacks_are_on(with_nacks: bool) -> None:  # noqa: FBT001 - the case
    story = Story(options=replace(SwimOptions.lan(), nacks=with_nacks)).with_peers(1, 2)
    story.receive(1, story.ping(1, target=2, ttl=1))
    effects = story.pass_time(story.options.probe_period_ms, answering=[1, 2])
    assert any(response.nack for _, response in sent(effects, PingResponse)) == with_nacks


def test_failed_round_counts_once_without_nacks() -> None:
    story = Story(options=replace(SwimOptions.lan(), nacks=False)).with_peers(1, 2, 3, 4)
    story.drain_updates(1, 2, 3, 4)
    while not sent(story.pass_time(1), PingRequest):
        pass
    story.pass_time(story.options.probe_period_ms)
    assert story.swim.describe().health_score == 1


def test_failed_rounds_keep_period_without_multiplier() -> None:
    story = Story(options=replace(SwimOptions.lan(), awareness_max=1)).with_peers(1, 2, 3)
    story.drain_updates(1, 2, 3)
    story.pass_time(3_000)
    assert story.swim.describe().health_score == 0
    assert story.swim._prober._next_round_at - story.now <= story.options.probe_period_ms


@pytest.mark.parametrize("with_notice", [True, False])
def test_suspicion_on_each_ping_only_with_buddy_notice(
    with_notice: bool,  # noqa: FBT001 - the case
) -> None:
    story = Story(options=replace(SwimOptions.lan(), buddy_notice=with_notice)).with_peers(1, 2, 3)
    story.receive_updates(2, verdict(1, Status.SUSPECT, by=2))
    story.swim._queue.forget(node_id(1))
    effects = story.receive(1, story.ping(1))
    accusation = VerdictUpdate(node_id(1), Incarnation(1, 0), Status.SUSPECT, node_id(0))
    assert (accusation in updates_in(effects)) == with_notice


def test_dead_member_notified_without_buddy_notice() -> None:
    story = Story(options=PLAIN).with_peers(1, 2)
    story.receive_updates(1, verdict(2, Status.DEAD, by=1))
    [(_, response)] = sent(story.receive(2, story.ping(2)), PingResponse)
    assert response.payload.updates[0] == verdict(2, Status.DEAD, by=0)


@pytest.mark.parametrize("with_grace", [True, False])
def test_pause_extends_suspicion_only_with_grace(
    with_grace: bool,  # noqa: FBT001 - the case
) -> None:
    story = Story(options=replace(SwimOptions.lan(), standstill_grace=with_grace)).with_peers(1, 2, 3)
    story.receive_updates(2, verdict(1, Status.SUSPECT, by=2))
    story.now += 60_000
    story.pass_time(0)
    assert (story.status(1) is Status.SUSPECT) == with_grace


def test_helper_without_nacks_relays_replies() -> None:
    story = Story(options=PLAIN).with_peers(1, 2)
    request = story.ping(1, target=2, ttl=1)
    story.receive(1, request)
    answer = PingResponse(node_id(1), node_id(2), Incarnation(1, 0), request.seq, 0)
    assert sent(story.receive(2, answer), PingResponse) == [(address_of(1), answer)]
