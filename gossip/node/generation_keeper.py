"""Makes the generation durable that the core adopts, before a word is said under it.

    adopted ──▶ kept ───────────────────────────────────────────▶ the owner goes on
        └─▶ the disk refuses ─▶ alarm ─▶ tried again, each time after a longer pause ─▶ kept ─▶ alarm over

The owner of the core waits meanwhile, so that the node is mute: a word under a generation that a restart would not know
of lets the node's next life speak under the same one, and peers could not tell the two apart. It is deaf as well, which
costs nothing more: whoever does not answer is buried, and refutes that under the generation kept at last. Ending the
node instead would turn a disk that is full for a minute into an outage that needs a human.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from gossip.core.effects import Alarm, AlarmKind
from gossip.core.member import NodeId
from gossip.node.identity import StateError, keep_generation

RETRY_FIRST_S: Final = 1.0
RETRY_LAST_S: Final = 60.0


class GenerationKeeper:
    """The generation of one agent: `current` is the last that is durable, or the only one without a directory."""

    def __init__(self, directory: Path | None, node_id: NodeId, generation: int) -> None:
        self._directory = directory
        self._node_id = node_id
        self.current = generation

    async def adopt(self, generation: int, publish: Callable[[Alarm], None]) -> None:
        """Return as soon as the generation is durable, however long that takes."""
        pause_s, failed = RETRY_FIRST_S, False
        while self._directory is not None:
            try:
                await trio.to_thread.run_sync(keep_generation, self._directory, self._node_id, generation)
                break
            except StateError as error:
                if not failed:
                    failed = True
                    publish(Alarm(AlarmKind.GENERATION_NOT_STORED, self._text(generation, error)))
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_LAST_S)
        self.current = generation
        if failed:
            text = f"generation {generation} of this node is kept now: it speaks again"
            publish(Alarm(AlarmKind.GENERATION_NOT_STORED, text, over=True))

    @staticmethod
    def _text(generation: int, error: StateError) -> str:
        return (
            f"{error}. Peers remember an earlier life of this node, and it may not say a word before generation "
            f"{generation} is kept: to the others it is dead. Make room on that disk; the node tries again by itself, "
            f"at least every {RETRY_LAST_S:.0f} s"
        )
