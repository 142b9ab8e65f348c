"""The interface of the world for its machines and clients."""

from collections.abc import Callable, Mapping
from typing import Protocol

from consensus.core.model import ServerId
from tests.simulation.consensus.machine import Machine


class Stage(Protocol):
    """Simulated time and all servers."""

    @property
    def now(self) -> int:
        """Return simulated time in milliseconds."""

    @property
    def trouble(self) -> bool:
        """Return True while faults are injected."""

    @property
    def machines(self) -> Mapping[ServerId, Machine]:
        """Return all servers."""

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Run `action` in `delay_ms`."""
