"""A machine that is resumed from an old snapshot repeats no nonce: the agent notices, and seals under a new salt."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from gossip.node.resumption import BOOT_ID_EVERY_NS, STEP_NS, Clocks, ResumptionWatch, system_clocks
from gossip.wire.seal import HEADER_BYTES, SALT_BYTES
from tests.node.gossip_farm import in_simulated_time, running_farm, sees, until, until_all_see_all
from tests.node.gossip_network import MemoryNetwork

SECOND_NS = 1_000_000_000


@dataclass
class Machine:
    """A machine of which the test turns the clocks."""

    wall_ns: int = 1_700_000_000 * SECOND_NS
    monotonic_ns: int = 500 * SECOND_NS
    boot_ns: int = 500 * SECOND_NS
    boot_id: bytes = b"first boot"

    def clocks(self) -> Clocks:
        """As an agent reads them."""
        return Clocks(
            lambda: self.wall_ns, lambda: self.monotonic_ns, boot=lambda: self.boot_ns, boot_id=lambda: self.boot_id
        )

    def pass_time(self, duration_ns: int) -> None:
        """All clocks run alike."""
        self.wall_ns += duration_ns
        self.monotonic_ns += duration_ns
        self.boot_ns += duration_ns


def resume_an_hour_later(machine: Machine) -> None:
    machine.wall_ns += 3600 * SECOND_NS


def resume_with_a_clock_set_back(machine: Machine) -> None:
    machine.wall_ns -= STEP_NS


def wake_from_suspension(machine: Machine) -> None:
    machine.boot_ns += 60 * SECOND_NS
    machine.wall_ns += 60 * SECOND_NS


def go_back_to_an_earlier_reading(machine: Machine) -> None:
    machine.pass_time(-SECOND_NS)


def restore_the_process_after_another_boot(machine: Machine) -> None:
    machine.pass_time(BOOT_ID_EVERY_NS)
    machine.boot_id = b"second boot"


RESUMPTIONS: list[Callable[[Machine], None]] = [
    resume_an_hour_later,
    resume_with_a_clock_set_back,
    wake_from_suspension,
    go_back_to_an_earlier_reading,
    restore_the_process_after_another_boot,
]


@pytest.mark.parametrize("resume", RESUMPTIONS)
def test_each_sign_of_a_resumption_is_reported_once(resume: Callable[[Machine], None]) -> None:
    machine = Machine()
    watch = ResumptionWatch(machine.clocks())
    machine.pass_time(SECOND_NS)
    assert not watch.resumed()
    resume(machine)
    assert watch.resumed()
    assert not watch.resumed()


def test_clocks_that_run_alike_or_are_slewed_by_a_time_service_are_no_sign() -> None:
    machine = Machine()
    watch = ResumptionWatch(machine.clocks())
    for _ in range(1_000):
        machine.pass_time(100_000_000)
        machine.wall_ns += STEP_NS // 100
        assert not watch.resumed()


def test_the_clocks_of_this_machine_show_no_resumption_while_nothing_happens() -> None:
    watch = ResumptionWatch(system_clocks())
    assert not any(watch.resumed() for _ in range(100))


def test_fresh_secrets_differ_where_the_random_source_was_restored_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.urandom", bytes)
    machine = Machine()
    watch = ResumptionWatch(machine.clocks())
    before = watch.fresh_secrets(48)
    resume_an_hour_later(machine)
    after = watch.fresh_secrets(48)
    assert len(before) == len(after) == 48
    assert before[:16] != after[:16]


@in_simulated_time
async def test_an_agent_that_was_resumed_seals_under_a_new_salt_from_the_next_datagram_on() -> None:
    # Given: a group of which one member lies on a virtual machine.
    network, machine = MemoryNetwork(), Machine()
    async with running_farm(network) as farm:
        seed = await farm.start()
        guest = await farm.start(seed, clocks=machine.clocks())
        await until_all_see_all([seed, guest])
        before = {salt_of(datagram) for source, _, datagram in network.sent if source == guest.info.address}
        # When: the machine is resumed an hour after its snapshot was taken.
        resume_an_hour_later(machine)
        network.sent.clear()
        guest.set_metadata(b"said after the resumption")
        await until(seed, lambda: seed.members()[0].info.metadata == b"said after the resumption")
        # Then: no datagram is sealed under the salt of before, and the others go on to understand it.
        after = [datagram for source, _, datagram in network.sent if source == guest.info.address]
        assert len(before) == 1
        assert len({salt_of(datagram) for datagram in after}) == 1
        assert not before & {salt_of(datagram) for datagram in after}
        assert guest.describe().wire.resumptions == 1
        assert sees(seed, guest)


def salt_of(datagram: bytes) -> bytes:
    """The boot salt in a sealed datagram's header, in front of the counter."""
    return datagram[HEADER_BYTES - 8 - SALT_BYTES : HEADER_BYTES - 8]
