"""The farm's keys where no gossip carries changes of them: what the farm key file holds, on each node by itself.

`garlicfarm keys list` and `export` show the file's ring. A change of keys needs somebody who tells it to all; with
`transport = "i2p"` that is the operator, who distributes the file, and the refusal says in which steps.
"""

from collections.abc import Callable

from bridge.api.control import FarmKeyState, FarmKeyView, KeysAnswer, Refused
from bridge.api.view import FarmView
from bridge.node.control.key_admin import KeyAdmin
from bridge.node.control.routes import KeyPort
from bridge.node.events.event_log import EventLog
from bridge.node.membership.member_directory import MemberDirectory
from bridge.node.membership.membership_provider import MembershipProvider
from bridge.node.security.farm_keys import FarmKeys
from bridge.wire.keys.farm_key import farm_key_text
from gossip import Group, key_id

_BY_HAND = (
    'with transport = "i2p" no gossip carries keys: put the new key behind the others in `gossip_keys` of the farm key '
    "file of every node and restart each; then put it first everywhere; then take the old one out everywhere"
)


def key_port(
    company: MembershipProvider,
    member_directory: MemberDirectory,
    farm_keys: FarmKeys,
    make_view: Callable[[], FarmView],
    trace: EventLog,
) -> KeyPort:
    """The node's hand on the farm's keys."""
    if isinstance(company, Group):
        return KeyAdmin(company, member_directory, farm_keys, make_view, trace)
    return StaticKeyAdmin(farm_keys)


class StaticKeyAdmin:
    """The `KeyPort` of a node without gossip."""

    def __init__(self, farm_keys: FarmKeys) -> None:
        self._farm_keys = farm_keys

    async def listing(self) -> KeysAnswer:
        """The file's ring."""
        current = self._farm_keys.current
        keys = []
        for number, name in enumerate(key_id(key).hex() for key in current.gossip_keys):
            state = FarmKeyState.PRIMARY if number == 0 else FarmKeyState.INSTALLED
            keys.append(FarmKeyView(name, state, current.epoch, opened_by=1, sealed_by=int(number == 0)))
        return KeysAnswer(
            farm=current.label.hex(),
            epoch=current.epoch,
            primary=keys[0].key_id,
            members=1,
            file=str(self._farm_keys.path),
            file_epoch=current.epoch,
            keys=tuple(keys),
        )

    async def install(self) -> str:
        """Refused."""
        raise _by_hand()

    async def use(self, name: str, *, force: bool) -> None:
        """Refused."""
        del name, force
        raise _by_hand()

    async def remove(self, name: str, *, force: bool) -> None:
        """Refused."""
        del name, force
        raise _by_hand()

    async def export(self) -> str:
        """The text of the farm key file. Secret."""
        return farm_key_text(self._farm_keys.exported)


def _by_hand() -> Refused:
    return Refused(409, "no-gossip", _BY_HAND)
