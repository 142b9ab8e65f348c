"""Restarts of a node in its process, because another node has its name or because its address has changed.

    stored name     ──▶ live(settings, written) ──▶ returns: the node has ended
                              ▲             └─▶ NameTakenError      store the other name and use it
                              │             └─▶ AddressChangedError use the settings with the other address
                              │             └─▶ AddressNotHereError only after a change: wait, then look again
                              └── other settings ──┘

Without a restart, gossip, Raft, the control endpoint, ØMQ and Kafka would each need code for the change. A missed part
would keep the old name or address. Name and address may change at the same time; then the settings of the next run
contain both changes. A new address may be unavailable when the node listens (IPv6 first checks for duplicates). So
after the first change of address, the node waits and tries again. Before the first change, an unavailable address ends
the node with an error.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Final

import trio

from bridge.node.events.alarms import AddressNotHereError
from bridge.node.membership.address_watch import LOOK_EVERY_S, AddressChangedError, chosen_anew
from bridge.node.membership.own_name import NameTakenError, note_name, remembered_name
from bridge.node.settings.configuration import NodeConfiguration
from consensus.net import Backoff

LOG = logging.getLogger("garlicfarm")

RETRY_FIRST_S: Final = 0.25

Live = Callable[[NodeConfiguration, NodeConfiguration], Awaitable[None]]
"""Runs a node until it ends. Arguments: its settings, and its settings before any change of the address."""


async def run_with_restarts(configuration: NodeConfiguration, live: Live, begins: Callable[[], None]) -> None:
    """Run `live` until it returns. `begins` is called before each further run."""
    written = configuration = await trio.to_thread.run_sync(remembered_name, configuration)
    has_moved = False
    pauses = Backoff(RETRY_FIRST_S, LOOK_EVERY_S)
    while True:
        reasons: list[BaseException] = []
        try:
            await live(configuration, written)
        except* (NameTakenError, AddressChangedError) as group:
            reasons += _leaves_of(group)
        except* AddressNotHereError as group:
            if not has_moved:
                raise
            reasons += _leaves_of(group)
        if not reasons:
            return
        begins()
        for reason in reasons:
            LOG.warning("%s", reason)
            if isinstance(reason, NameTakenError):
                await trio.to_thread.run_sync(note_name, configuration.state_dir, reason.name)
                configuration = replace(configuration, name=reason.name)
            elif isinstance(reason, AddressChangedError):
                configuration = replace(reason.configuration, name=configuration.name)
                has_moved = True
                pauses.reset()
            else:
                await trio.sleep(pauses.next_s())
                configuration = await trio.to_thread.run_sync(chosen_anew, configuration)


def _leaves_of(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """Yield the exceptions in a group and in its subgroups."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves_of(error)
        else:
            yield error
