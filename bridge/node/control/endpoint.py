"""The control endpoint of a node: one server for all views and actions.

    JoinedNode, CurrentFarm ──▶ ViewBuilder ──▶ FarmAdmin, IdentityAdmin, KeyAdmin ──▶ routes ──▶ ControlServer
                                         └──▶ VerdictWatch ──▶ events, alarms, /healthz, history

This module creates and connects the parts of this folder, as `bridge.node.app` does for the parts of the node.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio
from msgspec import Struct

from bridge.api.alarms import CONTROL_CERTIFICATE
from bridge.api.control_routes import (
    HISTORY,
    INVITATIONS,
    INVITATIONS_NEW,
    INVITATIONS_REVOKE,
    PAGE,
    VIEWS,
    Route,
)
from bridge.api.events import CONTROL_CERTIFICATE_RENEWED
from bridge.api.farm_facts import ContactWatch
from bridge.node.client_endpoints import ClientEndpoints
from bridge.node.control.access import RemoteAccess, open_remote_access
from bridge.node.control.debugging import Debugging
from bridge.node.control.farm_admin import FarmAdmin
from bridge.node.control.identity_admin import IdentityAdmin
from bridge.node.control.key_admin import key_admin
from bridge.node.control.routes import Handlers, new_counters
from bridge.node.control.server import ControlLimits, ControlServer
from bridge.node.control.verdict_watch import VerdictWatch
from bridge.node.control.view_builder import ViewBuilder
from bridge.node.events.event_log import clock_ms
from bridge.node.events.service_manager import ServiceManager
from bridge.node.founded_farm import CurrentFarm
from bridge.node.history.recorder import HistoryRecorder
from bridge.node.inviting.invitations import Invitations
from bridge.node.inviting.inviting import Inviting
from bridge.node.inviting.requests import InvitationRequests
from bridge.node.joined_node import JoinedNode
from bridge.node.local_node import LocalNode
from bridge.node.membership.perspectives import Perspectives
from bridge.node.security.certificates import watch_certificate
from bridge.node.security.control_socket import SOCKET_NAME
from consensus.net import NodeCertificate


class ControlEndpoint(Struct, frozen=True):
    """The server of a node's control endpoint, the watch of its verdict, and the history."""

    server: ControlServer
    verdicts: VerdictWatch
    history: HistoryRecorder
    service_manager: ServiceManager
    keep_certificate: Callable[[], Awaitable[None]] | None
    """Renews the node's own certificate for TCP clients, or watches an operator's; None without TCP."""

    inviting: Inviting
    """Invitations of new nodes."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until canceled; started when the socket accepts. Raise `ControlSocketError` on failure."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.server.run)
            task_status.started()
            self.service_manager.ready()
            if self.keep_certificate is not None:
                nursery.start_soon(self.keep_certificate)
            nursery.start_soon(self.inviting.run)
            nursery.start_soon(self.service_manager.run, self.verdicts.stuck, self.verdicts.text)
            nursery.start_soon(self.history.run)
            await self.verdicts.run()


async def control_endpoint(
    node: JoinedNode,
    current: CurrentFarm,
    leave: Callable[[], None],
    is_stopping: Callable[[], bool],
    clients: ClientEndpoints,
) -> ControlEndpoint:
    """Make the endpoint, not running yet. `leave` makes the node leave the farm and stop."""
    local, provider, directory, farm_keys = node.local, node.provider, node.member_directory, node.farm_keys
    counters = new_counters()
    state_dir = local.configuration.state_dir
    history = HistoryRecorder(local.configuration.name, state_dir, clock_ms, node.durations.commit)
    contact = ContactWatch()
    view = ViewBuilder(node, current, counters, is_stopping, clients, history.counters, contact)
    perspectives = Perspectives(node.own_perspective, node.user_messages, clock_ms, view.build_for_verdict)
    observers = (contact.observe, history.take, node.own_perspective.take)
    verdicts = VerdictWatch(
        view.build_for_verdict, lambda: _period_s(local, current), local.trace, local.alarms, observers
    )
    farm = FarmAdmin(
        make_view=view.build,
        encode_view=view.encode,
        trace=local.trace,
        leave=leave,
        withdrawal_refusal=node.forming.withdrawal_refusal,
        withdraw=node.forming.withdraw,
        confirm=node.forming.confirm,
        messages=node.user_messages,
        current_farm=current,
        durations=node.durations,
        stuck=verdicts.stuck,
        last_verdict=verdicts.last,
    )
    identities = IdentityAdmin(
        provider=provider,
        member_directory=directory,
        farm_keys=farm_keys,
        trace=local.trace,
        current=current,
        hand_over=farm.transfer,
    )
    keys = key_admin(provider, directory, farm_keys, view.build, local.trace, current, farm.catch_up)
    inviting = Inviting(
        node=node,
        current=current,
        invitations=await trio.to_thread.run_sync(Invitations, local.configuration.state_dir),
        approve=identities.approve_invited,
    )
    shares = node.connecting.transport.shares
    limits = ControlLimits(
        connections=shares.control_local,
        remote_connections=shares.control_remote,
        remote_unproven=shares.control_remote,
    )
    remote = await trio.to_thread.run_sync(open_remote_access, state_dir, local.configuration.control)
    handlers: dict[Route[Any], Any] = {}
    if local.configuration.control is not None and local.configuration.control.page:
        from bridge.node.control.page import show_page  # noqa: PLC0415 - most nodes do not need it

        handlers[PAGE] = show_page
    handlers |= {HISTORY: lambda call: history.page(call.numbers["hours"]), VIEWS: lambda _: perspectives.all()}
    for admin in (farm, identities, keys, Debugging(local.configuration)):
        handlers |= admin.handlers
    handlers |= _invitation_handlers(InvitationRequests(inviting))
    server = ControlServer(state_dir / SOCKET_NAME, handlers, limits, remote, counters)
    keep = None if remote is None else _certificate_keeper(local, current, remote)
    return ControlEndpoint(server, verdicts, history, local.service_manager, keep, inviting)


def _invitation_handlers(requests: InvitationRequests) -> Handlers:
    return {
        INVITATIONS: lambda _: requests.listing(),
        INVITATIONS_NEW: lambda call: requests.create(call.body),
        INVITATIONS_REVOKE: lambda call: requests.revoke(call.body),
    }


def _certificate_keeper(
    local: LocalNode, current: CurrentFarm, remote: RemoteAccess
) -> Callable[[], Awaitable[None]] | None:
    """Return the task that renews the node's own certificate, or watches the dates of an operator's certificate."""
    state_dir, settings = local.configuration.state_dir, local.configuration.control
    if settings is not None and settings.certificate is not None:
        signed = NodeCertificate(settings.certificate, b"")
        return partial(watch_certificate, signed, local.alarms, CONTROL_CERTIFICATE)

    from bridge.node.control.control_certificate import (  # noqa: PLC0415 - most nodes do not need it
        CERTIFICATE_FILE,
        keep_control_certificate,
    )

    def renewed() -> None:
        local.trace.append(CONTROL_CERTIFICATE_RENEWED, {"file": str(state_dir / CERTIFICATE_FILE)})

    return partial(keep_control_certificate, state_dir, remote.context, lambda: _clock_of(current), renewed)


def _clock_of(current: CurrentFarm) -> int:
    return clock_ms() if current.farm is None else current.farm.applied_state.date_ms()


def _period_s(local: LocalNode, current: CurrentFarm) -> float:
    """Return the farm's reporting period in seconds; this node's setting before it has the log."""
    farm = current.farm
    setting_ms = local.configuration.publishing.reporting_period_ms
    return (setting_ms if farm is None else farm.applied_state.farm.tuning.period_ms) / 1000
