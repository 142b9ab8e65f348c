"""Takes over the keyrings that the group agrees on: into the codec at once, then onto the disk.

Used before they are kept: a node whose disk is full must not lose its group as well. It says so by an alarm, since a
restart would bring it back with the key of its configuration, which the group refuses by then.
"""

import trio

from gossip.core.effects import Alarm, AlarmKind
from gossip.core.keyring import Keyring
from gossip.node.identity import StateError
from gossip.node.settings import GroupSettings
from gossip.node.state_files import keep_keys
from gossip.wire.codec import Codec
from gossip.wire.seal import KeyRing


class KeyringStore:
    """The ring of one agent."""

    def __init__(self, config: GroupSettings, chain: Keyring | None) -> None:
        self._config = config
        ring = config.key_ring
        self.ring = None if ring is None or chain is None else ring.following(chain)

    async def take_over(self, chain: Keyring, codec: Codec) -> Alarm | None:
        """Seal and open with the chain's keys, and keep them; an alarm if that fails."""
        if self.ring is None:
            return None
        self.ring = ring = self.ring.following(chain)
        codec.use(ring)
        try:
            await trio.to_thread.run_sync(self._keep, ring, chain)
        except Exception as error:  # noqa: BLE001 - `ring_changed` is the application's, and may raise whatever it likes
            reason = str(error) if isinstance(error, OSError | StateError) else f"{type(error).__name__}: {error}"
            text = (
                f"the group's keys were changed and could not be kept ({reason}): after a restart this node would come "
                "with its old key and be refused. Make room for them, or copy the current key before a restart"
            )
            return Alarm(AlarmKind.KEYRING_NOT_STORED, text)
        return None

    def _keep(self, ring: KeyRing, chain: Keyring) -> None:
        if self._config.state_directory is not None:
            keep_keys(self._config.state_directory, ring.label, chain)
        if self._config.ring_changed is not None:
            self._config.ring_changed(ring)
