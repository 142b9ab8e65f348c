"""One node: the composition root, which makes and connects the parts.

    LocalNode      settings, keys, router, trace, alarms                       from the start
      └▶ JoinedNode    membership, members, formation, handshakes              when others can discover this node
           └▶ FoundedFarm   replica, applied state, tasks                      while it is a server of a farm
    CurrentFarm ◀── listener, control endpoint, gossip: is there a FoundedFarm now?

A node that discovers an existing farm waits until the leader announces its admission and Raft id. From then on it is a
server like the founders: the leader makes it a learner, and a voter if there is room. A node whose address or name
changes restarts within the process, with other settings (`restarting`).

The node ends on request: a signal, `leave`, or a closed pipe of its parent. It also ends after an error: another
process uses its identity, its storage is damaged, or a task failed. After an error, the last line of the log contains
the reason. After the first signal the node may hand over its leadership; a second signal cancels the handover. In each
case the process has `CLOSE_SECONDS` to close its files and connections, even if a disk hangs.
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import trio

from bridge.api.events import (
    LEADERSHIP_HANDED_OVER,
    NODE_STARTED,
    NODE_STOPPING,
    RAFT_ID_CORRECTED,
    REMOVED_FROM_FARM,
)
from bridge.node.client_endpoints import ClientEndpoints, client_endpoints, serve_clients
from bridge.node.control.endpoint import control_endpoint
from bridge.node.events.alarms import NodeStopped
from bridge.node.founded_farm import CurrentFarm, open_founded_farm
from bridge.node.joined_node import JoinedNode, join, remembered_peers, settled_farm
from bridge.node.local_node import begin, load_local_node, start_facts
from bridge.node.membership.gossip_events import GossipEvents, sample_round_trips, wait_for_conflicts
from bridge.node.membership.own_raft_id import OwnRaftId
from bridge.node.membership.restarting import run_with_restarts
from bridge.node.raft.connecting import bound_port, load_transport
from bridge.node.raft.handover import hand_over_before_stop, until_removed
from bridge.node.raft.replica import RequestGateway
from bridge.node.settings.configuration import NodeConfiguration
from consensus.storage import PROCESS_STOP_SECONDS

END_SECONDS = 40.0
"""Limit for a node's last report, handover and wait for its removal."""
CLOSE_SECONDS = PROCESS_STOP_SECONDS
"""Limit for closing: longer than the server waits for its disk, so that the server can report the hanging part."""

EndsWithin = Callable[[float | None], None]
"""Sets the deadline of the process, in seconds from now; None removes it."""


class Node:
    """One node while it runs."""

    def __init__(self, configuration: NodeConfiguration, written: NodeConfiguration, ends_within: EndsWithin) -> None:
        """Read the files in the settings. `written` is the configuration before this process changed its address."""
        self._local = load_local_node(configuration)
        self._written = written
        self._ends_within = ends_within
        self._current = CurrentFarm()
        self._stop = trio.Event()
        self._unfinished = trio.CancelScope()
        """The cancel scope of the part that a signal cancels: the start of the node, later its orderly end."""
        self._leaving = False
        self._reason = ""
        """The reason of an unrequested end; empty otherwise."""

    # -- the run of a node ---------------------------------------------------------------------------------------------

    async def run(self, *, stop_with_stdin: bool) -> None:
        """Run until stopped. Raise NodeStopped, and errors of parts that cannot start."""
        local, settings = self._local, self._local.configuration
        beginning = await begin(settings)
        transport = await trio.to_thread.run_sync(load_transport, settings)
        peers = await remembered_peers(local, beginning)
        gateway = RequestGateway(self._current.replica, peers.is_server_out)
        async with AsyncExitStack() as stack:
            raft_port = await stack.enter_async_context(bound_port(settings.consensus.bind))
            clients = await stack.enter_async_context(client_endpoints(local, self._current))
            nursery = await stack.enter_async_context(trio.open_nursery())
            self._unfinished = nursery.cancel_scope
            nursery.start_soon(self._bound_close)
            await nursery.start(self._wait_for_signals)
            if stop_with_stdin:
                nursery.start_soon(self._wait_for_parent)
            nursery.start_soon(local.run)
            async with join(local, beginning, transport, peers, gateway, self._current.offer_keys) as node:
                await self._live(node, raft_port, clients)
            nursery.cancel_scope.cancel()
        if self._reason:
            raise NodeStopped(self._reason)

    async def _live(self, node: JoinedNode, raft_port: Sequence[trio.SocketListener], clients: ClientEndpoints) -> None:
        local, current = node.local, self._current
        events = GossipEvents(
            agent=node.provider,
            member_directory=node.member_directory,
            forming=node.forming,
            offered=current.keys_offered,
            farm_keys=node.farm_keys,
            user_messages=node.user_messages,
            trace=local.trace,
            alarms=local.alarms,
            detections=node.durations.detection,
        )
        control = await control_endpoint(node, current, self._leave, self._stop.is_set, clients)
        local.trace.append(NODE_STARTED, {**start_facts(local), "generation": node.provider.generation})
        self._unfinished = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._bound_close)
            await node.connecting.listen(nursery, local.configuration.consensus.bind, raft_port)
            nursery.start_soon(node.connecting.watch, local.alarms)
            nursery.start_soon(node.refused.run)
            nursery.start_soon(node.introduce, current.connected)
            await nursery.start(control.run)
            nursery.start_soon(events.follow)
            nursery.start_soon(sample_round_trips, node.provider, node.durations.probe)
            nursery.start_soon(serve_clients, clients)
            nursery.start_soon(node.forming.run)
            nursery.start_soon(node.farm_keys.watch_file, local.alarms)
            nursery.start_soon(self._belong_to_a_farm, node)
            nursery.start_soon(node.watch, self._written, lambda: None if current.farm is None else current.farm.state)
            await self._stop.wait()
            with trio.move_on_after(END_SECONDS) as self._unfinished:
                await self._end(node)
            nursery.cancel_scope.cancel()

    async def _belong_to_a_farm(self, node: JoinedNode) -> None:
        local, peers = node.local, node.peers
        known, belonging = await settled_farm(node)
        cluster_id = known.founding.cluster_id.hex()
        dialer = node.connecting.client(cluster_id)
        search = OwnRaftId(known, node.member_directory, dialer, peers.is_out, local.alarms)
        while True:
            peers.farm = known
            raft_id = await search.until_known()
            local.trace.append(belonging, {"cluster": cluster_id, "raftId": raft_id})
            await wait_for_conflicts(node.provider, node.member_directory, local.configuration)
            async with open_founded_farm(node, known, raft_id, self._halt) as farm:
                with self._current.of(farm):
                    await search.until_corrected(raft_id, farm.applied_state, farm.replica.has_stored)
            belonging = RAFT_ID_CORRECTED

    # -- the end -------------------------------------------------------------------------------------------------------

    async def _end(self, node: JoinedNode) -> None:
        """Hand over leadership, if this node has it.

        If this node leaves the farm, it first stops publishing, and then announces its departure.
        """
        trace, farm = node.local.trace, self._current.farm
        node.local.service_manager.stopping()
        trace.append(NODE_STOPPING, {"leaving": self._leaving})
        if self._leaving and farm is not None:
            await farm.background_tasks.resign()
        handed_over = None if farm is None else await hand_over_before_stop(farm.replica, farm.notices.name_of)
        if handed_over is not None:
            trace.append(LEADERSHIP_HANDED_OVER, handed_over)
        if self._leaving:
            await node.provider.leave()
            if farm is not None and await until_removed(farm.replica, node.local.farm_key.expect):
                trace.append(REMOVED_FROM_FARM, {})

    async def _bound_close(self) -> None:
        """Set the deadline of the process when the tasks of the node are canceled, for any reason."""
        try:
            await trio.sleep_forever()
        finally:
            self._ends_within(CLOSE_SECONDS)

    def _leave(self) -> None:
        self._leaving = True
        self._stop.set()

    def _halt(self, reason: str) -> None:
        """End the node in order, because an entry of the log requires it."""
        self._reason = reason
        self._stop.set()

    async def _wait_for_signals(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                self._unfinished.cancel()
                self._stop.set()

    async def _wait_for_parent(self) -> None:
        async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as pipe:
            while await pipe.receive_some(64):
                pass
        self._stop.set()


async def run_node(configuration: NodeConfiguration, *, stop_with_stdin: bool = False, ends_within: EndsWithin) -> None:
    """Run one node until it is stopped; see the module."""

    async def live(settings: NodeConfiguration, written: NodeConfiguration) -> None:
        node = await trio.to_thread.run_sync(Node, settings, written, ends_within)
        await node.run(stop_with_stdin=stop_with_stdin)

    await run_with_restarts(configuration, live, lambda: ends_within(None))
