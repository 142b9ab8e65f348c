"""The content that a new node gets for its token, and its approval afterwards.

    configuration, farm key, spare keys ──▶ Granted      the same bundle as of `garlicfarm config export`
    redeemed tokens ──▶ node seen by gossip, not admitted ──▶ approved at the leader, as by `garlicfarm node approve`

Before the farm is created, the bundle lacks a cluster id, and the new node becomes a founder by discovery. After that
the bundle names the cluster, and the new node needs an approval, which only the leader writes. If this node does not
lead, it first requests leadership; a voter may do so at any time (`garlicfarm transfer`). An invitation never gives a
node the name of another identity: an operator decides about that.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from typing import Any, Final

import trio
from msgspec import Struct

from bridge.api.control import Refused
from bridge.core.log.records import PublishConfig
from bridge.core.membership.admission import raft_id_of
from bridge.node.founded_farm import CurrentFarm, FoundedFarm
from bridge.node.inviting.invitations import Invitations, Joiner, Use
from bridge.node.inviting.spare_keys import SpareKeys
from bridge.node.joined_node import JoinedNode
from bridge.node.settings.bundle import SHARED, bundle_text, shared_settings
from bridge.node.settings.configuration import NodeConfiguration
from bridge.node.settings.declared import shown, written
from bridge.wire.keys.invitation import Granted
from gossip.node import endpoint

LOOK_EVERY_S: Final = 1.0
APPROVE_EVERY_S: Final = 3.0
"""Seconds between attempts to approve one node; each attempt may transfer leadership."""
SEEDS_MAX: Final = 8
_APART: Final = frozenset({"router.kind", "gossip.seeds", "publishing.publish"})
"""Shared settings that an invitation's bundle does not copy: the bundle or `garlicfarm router detect` sets them."""


def settings_for(configuration: NodeConfiguration, masters: Sequence[str]) -> dict[str, Any]:
    """Return the settings that a new node shares with this one, without default values."""
    table: dict[str, Any] = {}
    for path, value in _differing(written(configuration)).items():
        section, _, key = path.rpartition(".")
        (table.setdefault(section, {}) if section else table)[key] = value
    return shared_settings(table, tuple((each, PublishConfig.AUTO.value) for each in masters))


def _differing(table: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for path, each in SHARED.items():
        section = table.get(each.table, {}) if each.table else table
        default = None if each.value is MISSING else shown(each.value)
        if path not in _APART and each.key in section and section[each.key] != default:
            found[path] = section[each.key]
    return found


class Granting(Struct, frozen=True):
    """The grants of one node."""

    node: JoinedNode
    spare_keys: SpareKeys
    current: CurrentFarm

    def masters(self) -> tuple[str, ...]:
        """Return each master of this node in base64; without one, each master of the spare keys.

        `keys master` adds spare keys while the node runs. The node reads the changed configuration at its next start.
        """
        masters = self.node.local.masters
        own = (*(each.master for each in masters.keys), *(each.destination for each in masters.keyless))
        return own or self.spare_keys.masters()

    async def grant(self, joiner: Joiner) -> Granted:
        """Return the content for an identity whose redemption is durable; raise OSError or `Refused`."""
        local, masters = self.node.local, await trio.to_thread.run_sync(self.masters)
        settings = settings_for(local.configuration, masters)
        settings.setdefault("gossip", {})["seeds"] = self.seeds()
        if self.node.forming.cluster_id is not None:
            farm = self.current.required()
            await farm.catch_up()
            await farm.wait_keys()
        with trio.CancelScope(shield=True):
            keys = await trio.to_thread.run_sync(self.spare_keys.assign, joiner.node_id, masters)
        return Granted(bundle_text(self.node.farm_keys.exported, settings), local.configuration.name, keys)

    def seeds(self) -> list[str]:
        """Return the gossip addresses of this node and of some members, at most `SEEDS_MAX`."""
        gossip = self.node.local.configuration.gossip
        own = [] if gossip is None else [endpoint(gossip.advertise or gossip.bind)]
        others = [endpoint(each.info.address) for each in self.node.provider.members()]
        return list(dict.fromkeys([*own, *others]))[:SEEDS_MAX]


@dataclass(slots=True, kw_only=True)
class Approvals:
    """The approvals of redeemed invitations. `run` it once."""

    invitations: Invitations
    farm: Callable[[], FoundedFarm | None]
    is_present: Callable[[bytes], bool]
    """Returns True if gossip reaches an identity."""
    approve: Callable[[bytes], Awaitable[None]]
    """Takes leadership if necessary, and approves an identity; raises Refused."""
    failed: Callable[[Use, str], None] = lambda *_: None
    _approve_after_s: dict[Use, float] = field(default_factory=dict, init=False)
    _reported: dict[Use, str] = field(default_factory=dict, init=False)

    async def run(self, lock: trio.Lock) -> None:
        """Approve until canceled. `lock` guards the invitations."""
        while True:
            waiting = tuple(self.invitations.waiting())
            for noted in (self._approve_after_s, self._reported):
                for former in noted.keys() - set(waiting):
                    del noted[former]
            for use in waiting:
                # An operator may revoke this use while another one is approved.
                if use in self.invitations.waiting() and await self._is_done(use):
                    await self._settle(use, lock)
            await trio.sleep(LOOK_EVERY_S)

    async def _settle(self, use: Use, lock: trio.Lock) -> None:
        async with lock:
            with trio.CancelScope(shield=True):
                try:
                    await trio.to_thread.run_sync(self.invitations.settle, use)
                except OSError as error:
                    self._report(use, f"the disk of this node: {error.strerror or error}")

    async def _is_done(self, use: Use) -> bool:
        node_id, farm = bytes.fromhex(use.node_id), self.farm()
        if farm is None:
            return False  # Without a farm, the new node becomes a founder, or is approved later.
        if raft_id_of(farm.state.admitted, node_id) is not None:
            return True
        if self.invitations.is_late(use):
            self._report(use, "it was not admitted in time: approve it with `garlicfarm node approve`")
            return True
        if not self.is_present(node_id) or trio.current_time() < self._approve_after_s.get(use, 0.0):
            return False
        self._approve_after_s[use] = trio.current_time() + APPROVE_EVERY_S
        try:
            await self.approve(node_id)
        except Refused as refused:
            self._report(use, str(refused))
        return False

    def _report(self, use: Use, reason: str) -> None:
        if self._reported.get(use) != reason:
            self._reported[use] = reason
            self.failed(use, reason)
