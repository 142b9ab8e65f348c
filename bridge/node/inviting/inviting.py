"""The invitations of a running node: the port, the grants and the approvals together.

JoinedNode, CurrentFarm, IdentityAdmin ──▶ Inviting ──▶ InvitationListener   new nodes
                                                  └──▶ Approvals            the log
"""

import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio

from bridge.api.events import (
    INVITATION_CREATED,
    INVITATION_PORT_FAILED,
    INVITATION_REDEEMED,
    INVITATION_REFUSED,
    INVITED_NODE_FAILED,
    EventType,
)
from bridge.core.membership.admission import server_name
from bridge.node.founded_farm import CurrentFarm
from bridge.node.inviting.granting import Approvals, Granting
from bridge.node.inviting.invitations import Invitation, Invitations, Joiner, Use
from bridge.node.inviting.listener import LOOK_EVERY_S, PORT, InvitationListener, listener_certificate
from bridge.node.inviting.spare_keys import SpareKeys
from bridge.node.joined_node import JoinedNode
from bridge.node.settings.configuration import NodeConfiguration
from bridge.wire.keys.invitation import InviterAddress, RefusalCode, Token
from consensus import counted, integer_id
from consensus.net import CertificateError

CERTIFICATE_RETRY_S: Final = 10.0


class NotInvitingError(Exception):
    """This node cannot invite now; the text has the reason and the remedy."""


def listened_host(configuration: NodeConfiguration) -> str:
    """Return the host of the listener for invited nodes.

    Raise NotInvitingError if nodes reach each other only over I2P.
    """
    if configuration.gossip is None:
        raise NotInvitingError(
            'with transport = "i2p" nodes do not reach each other without I2P: copy the file of `garlicfarm keys'
            " export` to the new machine (`garlicfarm help servers`)"
        )
    return configuration.consensus.bind.host


def create_invitation(
    configuration: NodeConfiguration, invitations: Invitations, uses: int, lifetime_s: int
) -> tuple[Invitation, Token]:
    """Create an invitation and its token. Raise NotInvitingError, InvitationError, CertificateError and OSError."""
    host = listened_host(configuration)
    port = invitations.port or _free_port(host)
    fingerprint = listener_certificate(configuration.state_dir).fingerprint
    made, secret = invitations.create(uses, lifetime_s, port)
    return made, Token((InviterAddress(configuration.consensus.advertise.host, port),), fingerprint, secret)


def _free_port(host: str) -> int:
    """Return the usual port, or another one if a program of this machine uses it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in (PORT, 0):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
                return int(probe.getsockname()[1])
            except OSError as error:
                failure = error
    raise failure


def _limit_text(expect: int, invited: int) -> str:
    """Return the reason and the remedy if too many nodes would be invited before the farm is created."""
    if expect == 1:
        return "this node creates the farm alone: repeat the command when the farm exists"
    limit = expect - 1
    remedy = (
        f"repeat the command with `--uses {limit - invited}`"
        if invited < limit
        else "revoke an invitation (`garlicfarm invite list`)"
    )
    return (
        f"{counted(expect, 'node creates', 'nodes create')} this farm, so at most {limit} can be invited before that."
        f" The number of invited nodes is {invited} already: {remedy}"
    )


@dataclass(slots=True, kw_only=True)
class Inviting:
    """The invitations of one node: port and approvals. Call `run` once."""

    node: JoinedNode
    current: CurrentFarm
    invitations: Invitations
    approve: Callable[[bytes], Awaitable[None]]
    lock: trio.Lock = field(default_factory=trio.Lock, init=False)
    _news: trio.Event = field(default_factory=trio.Event, init=False)
    _port_failure: str | None = field(default=None, init=False)

    async def create(self, uses: int, lifetime_s: int) -> tuple[Invitation, Token]:
        """Create an invitation. Raise NotInvitingError, InvitationError, CertificateError and OSError."""
        configuration = self.node.local.configuration
        async with self.lock:
            self._check(uses)
            with trio.CancelScope(shield=True):
                make = partial(create_invitation, configuration, self.invitations, uses, lifetime_s)
                made, token = await trio.to_thread.run_sync(make)
        self._news.set()
        self._append(INVITATION_CREATED, {"invitation": made.id, "uses": uses, "lifetimeS": lifetime_s})
        return made, token

    def _check(self, uses: int) -> None:
        farm, expect = self.current.farm, self.node.local.farm_key.expect
        if farm is None and self.node.forming.cluster_id is not None:
            raise NotInvitingError(
                "this node is not a server of the farm yet: wait if it has just started, or run the command on a voter"
            )
        if farm is None:
            waiting = {use.node_id for use in self.invitations.waiting()}
            invited = self.invitations.open_uses + len(waiting)
            if invited + uses > expect - 1:
                raise NotInvitingError(_limit_text(expect, invited))
        else:
            voters = sorted(map(integer_id, farm.replica.server.describe().raft.configuration.voter_ids))
            if farm.replica.server_id not in voters:
                names = ", ".join(server_name(farm.state.admitted, each) for each in voters)
                raise NotInvitingError(f"this node does not vote. Run the command at a voter: {names}")

    async def run(self) -> None:
        """Listen for invited nodes and approve them while an invitation is active, until canceled.

        Return immediately if nodes reach each other only over I2P.
        """
        while self.node.local.configuration.gossip is not None:
            if not self.invitations.is_active:
                await trio.to_thread.run_sync(self._spare_keys.forget_assigned)
                self._news = trio.Event()
                await self._news.wait()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._invite)
                nursery.start_soon(self._stop_when_inactive, nursery.cancel_scope)

    @property
    def _spare_keys(self) -> SpareKeys:
        return SpareKeys(self.node.local.configuration.state_dir)

    async def _stop_when_inactive(self, scope: trio.CancelScope) -> None:
        while True:
            await trio.sleep(LOOK_EVERY_S)
            if not self.invitations.is_active:
                scope.cancel()
                return

    async def _invite(self) -> None:
        approvals = Approvals(
            invitations=self.invitations,
            farm=lambda: self.current.farm,
            is_present=self._is_present,
            approve=self.approve,
            failed=self._approval_failed,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_port)
            nursery.start_soon(approvals.run, self.lock)

    async def _keep_port(self) -> None:
        """Listen until canceled; an unusable certificate is read again, because the operator may replace it."""
        state_dir = self.node.local.configuration.state_dir
        while True:
            try:
                certificate = await trio.to_thread.run_sync(listener_certificate, state_dir)
                listener = InvitationListener(
                    host=listened_host(self.node.local.configuration),
                    invitations=self.invitations,
                    certificate=certificate,
                    grant=Granting(self.node, self._spare_keys, self.current).grant,
                    is_name_taken=self._is_name_taken,
                    redeemed=self._redeemed,
                    refused=self._refused,
                    failed=self._port_failed,
                )
                await listener.run(self.lock)
            except (CertificateError, OSError) as error:
                self._port_failed(str(error))
            await trio.sleep(CERTIFICATE_RETRY_S)

    def _is_name_taken(self, joiner: Joiner) -> bool:
        others = self.node.member_directory.members()
        names = (each.name for each in others if each.reachable and each.node_id != joiner.node_id)
        return joiner.name in (self.node.local.configuration.name, *names)

    def _is_present(self, node_id: bytes) -> bool:
        return any(bytes(each.node_id) == node_id and each.reachable for each in self.node.member_directory.members())

    # -- events --------------------------------------------------------------------------------------------------------

    def _append(self, event_type: EventType, facts: dict[str, str | int]) -> None:
        self.node.local.trace.append(event_type, dict(facts))

    def _redeemed(self, invitation: Invitation, joiner: Joiner) -> None:
        facts = {"invitation": invitation.id, "name": joiner.name, "id": joiner.node_id.hex()}
        self._append(INVITATION_REDEEMED, dict(facts))

    def _refused(self, address: str, code: RefusalCode) -> None:
        self._append(INVITATION_REFUSED, {"address": address, "reason": code.value})

    def _approval_failed(self, use: Use, reason: str) -> None:
        self._append(INVITED_NODE_FAILED, {"name": use.name, "id": use.node_id, "reason": reason})

    def _port_failed(self, reason: str | None) -> None:
        """Report a failure, but not each repetition."""
        before, self._port_failure = self._port_failure, reason
        if reason is not None and reason != before:
            self._append(INVITATION_PORT_FAILED, {"reason": reason})
