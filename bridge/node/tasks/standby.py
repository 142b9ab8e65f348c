"""A member's part as the standby (the next publisher) of one master: it keeps a session at its router ready.

    `standby_of` names this node for 3 periods   ─▶ active: a session; `standby` in the report once it has tunnels
    another node for 3 periods                   ─▶ inactive: no session
    no valid structure for 3 periods             ─▶ inactive: no session
    this node publishes                          ─▶ inactive: the same session publishes

A router builds the tunnels of a new session for up to a minute before it can publish. The standby's router has tunnels
already, so a take-over reaches the floodfills within seconds.

The router ends a session without a structure, so the standby hands over the newest valid structure
(`bridge.node.tasks.known_structures`). The log may choose another server than the standby. Then the standby publishes
that server's first structure too, and clients need not wait for the tunnels of the new publisher.

A change of the role waits for some periods, so that a single bad report does not end a session. Without a quorum the
role does not change.
"""

import trio

from bridge.core.publishing.candidates import standby_of
from bridge.core.state.farm_state import FarmState
from bridge.node.router.router import RouterError
from bridge.node.security.signing_keys import PublishingKey
from bridge.node.tasks.task_context import TaskContext
from bridge.wire.i2p.structure_exchange import verified_structure

STEADY_PERIODS = 3
TROUBLE_AFTER_S = 180.0
"""Seconds without a ready session until an alarm."""

_InForce = tuple[int | None, bytes]
"""The publisher of the newest structure, None if it is unknown, and the structure."""


class Standby:
    """The role of this node for one master. Call `review` each second until the role settles.

    If `review` returns True, call `serve`.
    """

    def __init__(self, context: TaskContext, key: PublishingKey) -> None:
        self._context = context
        self._key = key
        self._newest: _InForce | None = None
        self._given: _InForce | None = None
        """The structure that the router received in the present role."""
        self._named: tuple[FarmState, bool] | None = None
        """The last state and its result of `_is_named`: most checks see the same immutable state."""
        self._called_s = 0.0
        self._ready_s = 0.0
        self._differs_since_s: float | None = None
        self.is_active = False
        self.is_ready = False
        """True if this standby is active and its router has tunnels; reports contain this."""

    def published(self, structure: bytes) -> None:
        """End the role, but not its session: this node publishes now."""
        self._newest = self._given = self._context.replica.server_id, structure
        self._change(active=False)

    def deposed(self) -> bool:
        """Return True if this node, which published until now, becomes the standby and keeps its session."""
        self._change(active=self._is_named())
        return self.is_active

    @property
    def is_settled(self) -> bool:
        """True if no change of the role is pending, and the session of an active standby is ready."""
        return self._differs_since_s is None and self.is_ready is self.is_active

    def review(self, *, is_allowed: bool) -> bool:
        """Change the role if it differs for `STEADY_PERIODS`. Return True if the caller must call `serve`."""
        now_s, is_named = trio.current_time(), is_allowed and self._is_named()
        if is_named or self.is_active:
            self._newest = self._structure_in_force()
        wanted = is_named and self._newest is not None
        if wanted is self.is_active:
            self._differs_since_s = None
        elif self._differs_since_s is None:
            self._differs_since_s = now_s
        elif now_s - self._differs_since_s >= STEADY_PERIODS * self._context.period_s:
            self._given = None
            self._change(active=wanted)
            return True
        if not self.is_active:
            return False
        is_known = self.is_ready and now_s - self._called_s < self._context.period_s
        return self._newest is not None and (self._newest != self._given or not is_known)

    async def serve(self) -> None:
        """Hand over the structure in force to the router; end the session after the role has ended."""
        router = self._context.router
        if not self.is_active:
            await router.stop_publishing_meta_lease_set(self._key.master_hash)
            return
        newest, self._called_s = self._newest, trio.current_time()
        if newest is None:
            return
        publisher, structure = newest
        # Urgent only if another publisher, which failed, signed the previous structure; a previous structure of this
        # node is still valid.
        no_hurry = {None, publisher, self._context.replica.server_id}
        urgent = self._given is not None and self._given[0] not in no_hurry
        self._given = newest
        try:
            trouble = await router.keep_ready(self._key.master_hash, structure, urgent=urgent)
        except RouterError as error:
            trouble = str(error)
        self.is_ready = trouble is None
        if trouble is None:
            self._ready_s = self._called_s
            self._context.router_alarm.clear(self._cause)
        elif self._called_s - self._ready_s >= TROUBLE_AFTER_S:
            text = f"this node is the standby of the publisher, but its session is not ready: {trouble}"
            self._context.router_alarm.set(self._cause, text)

    def _change(self, *, active: bool) -> None:
        self.is_active, self._differs_since_s, self._ready_s = active, None, trio.current_time()
        self.is_ready = False
        self._context.router_alarm.clear(self._cause)

    @property
    def _cause(self) -> str:
        return f"standby {self._key.address}"

    def _is_named(self) -> bool:
        farm = self._context.applied_state.farm
        if self._named is None or self._named[0] is not farm.state:
            standby = standby_of(farm.state, self._key.master, farm.tuning)
            self._named = farm.state, standby == self._context.replica.server_id
        return self._named[1]

    def _structure_in_force(self) -> _InForce | None:
        context, masters, name = self._context, self._context.applied_state.state.masters, self._key.master_hash
        now_s = context.clock_ms() // 1000
        found = context.structures.reply_for(name, masters, now_s).structure
        known = masters.get(self._key.master)
        if not found or known is None:
            return None
        publication = known.publication
        if publication is not None and verified_structure(name, found, now_s).published_s == publication.published_s:
            return publication.server_id, found
        # The structure belongs to an earlier publication, or to an outage.
        return None if self._newest is None else self._newest[0], found
