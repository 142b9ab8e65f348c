"""The world, as the machines and clients in it see it."""

from collections.abc import Callable, Mapping
from typing import Protocol

from consensus.core.model import ServerId
from tests.simulation.consensus.machine import Machine


class Stage(Protocol):
    """Simulated time and the servers in it."""

    @property
    def now(self) -> int:
        """Simulated time in milliseconds."""

    @property
    def trouble(self) -> bool:
        """Whether things go wrong still."""

    @property
    def machines(self) -> Mapping[ServerId, Machine]:
        """All servers."""

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Do `action` in `delay_ms`."""
