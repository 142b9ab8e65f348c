"""A machine resumed from an old snapshot does not repeat a nonce: the agent detects it, and seals with a new salt."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from gossip.node.resumption import BOOT_ID_EVERY_NS, STEP_NS, Clocks, ResumptionWatch, system_clocks
from gossip.wire.seal import HEADER_BYTES, SALT_BYTES
from tests.effort import each_case
from tests.node.gossip_farm import in_simulated_time, running_farm, sees, until, until_all_see_all
from tests.node.gossip_network import MemoryNetwork

SECOND_NS = 1_000_000_000


@dataclass
class Machine:
    """A machine whose clocks a test sets."""

    wall_ns: int = 1_700_000_000 * SECOND_NS
    monotonic_ns: int = 500 * SECOND_NS
    boot_ns: int = 500 * SECOND_NS
    boot_id: bytes = b"first boot"

    def clocks(self) -> Clocks:
        return Clocks(
            lambda: self.wall_ns, lambda: self.monotonic_ns, boot=lambda: self.boot_ns, boot_id=lambda: self.boot_id
        )

    def pass_time(self, duration_ns: int) -> None:
        """Advance all clocks equally."""
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


@each_case("resume", RESUMPTIONS)
def test_resumption_is_reported_once_per_sign(resume: Callable[[Machine], None]) -> None:
    machine = Machine()
    watch = ResumptionWatch(machine.clocks())
    machine.pass_time(SECOND_NS)
    assert not watch.resumed()
    resume(machine)
    assert watch.resumed()
    assert not watch.resumed()


def test_equal_or_slewed_clocks_are_not_a_resumption() -> None:
    machine = Machine()
    watch = ResumptionWatch(machine.clocks())
    for _ in range(1_000):
        machine.pass_time(100_000_000)
        machine.wall_ns += STEP_NS // 100
        assert not watch.resumed()


def test_clocks_of_this_machine_do_not_show_resumption() -> None:
    watch = ResumptionWatch(system_clocks())
    assert not any(watch.resumed() for _ in range(100))


def test_fresh_secrets_differ_after_restored_random_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.urandom", bytes)
    machine = Machine()
    watch = ResumptionWatch(machine.clocks())
    before = watch.fresh_secrets(48)
    resume_an_hour_later(machine)
    after = watch.fresh_secrets(48)
    assert len(before) == len(after) == 48
    assert before[:16] != after[:16]


@in_simulated_time
async def test_resumed_agent_seals_with_new_salt() -> None:
    # Given a group with one member on a virtual machine
    network, machine = MemoryNetwork(), Machine()
    async with running_farm(network) as farm:
        seed = await farm.start()
        guest = await farm.start(seed, clocks=machine.clocks())
        await until_all_see_all([seed, guest])
        before = {salt_of(datagram) for source, _, datagram in network.sent if source == guest.info.address}
        # When the machine is resumed an hour after its snapshot
        resume_an_hour_later(machine)
        network.sent.clear()
        guest.set_metadata(b"changed after the resumption")
        await until(seed, lambda: seed.members()[0].info.metadata == b"changed after the resumption")
        # Then none of its datagrams has the previous salt, and the other member still accepts them
        after = [datagram for source, _, datagram in network.sent if source == guest.info.address]
        assert len(before) == 1
        assert len({salt_of(datagram) for datagram in after}) == 1
        assert not before & {salt_of(datagram) for datagram in after}
        assert guest.describe().wire.resumptions == 1
        assert sees(seed, guest)


def salt_of(datagram: bytes) -> bytes:
    return datagram[HEADER_BYTES - 8 - SALT_BYTES : HEADER_BYTES - 8]
