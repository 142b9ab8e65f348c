"""A client of a farm that submits marked entries continuously and records the acknowledged ones."""

import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from bridge.api.control import SubmitOutcome
from bridge.node.control.client import ControlError
from tests.end_to_end.farm import POLL_S, Farm, Node
from tests.processes import END_S


class Submitter:
    """A thread that submits marked entries to the nodes in rotation, and records each acknowledgment."""

    def __init__(self, farm: Farm, nodes: Iterable[Node], prefix: str) -> None:
        self._farm = farm
        self._nodes = list(nodes)
        self._prefix = prefix
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"submitter {prefix}")
        self.acknowledged: dict[int, str] = {}
        self.errors: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(END_S)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            node = self._nodes[number % len(self._nodes)]
            number += 1
            mark = f"{self._prefix}-{number}"
            try:
                answer = node.submit({"mark": mark})
            except ControlError:
                time.sleep(POLL_S)
                continue
            if answer.outcome is SubmitOutcome.COMMITTED and answer.index is not None:
                if answer.index in self.acknowledged:
                    self.errors.append(f"index {answer.index} was acknowledged twice")
                self.acknowledged[answer.index] = mark

    def wait_for(self, more: int, timeout_s: float) -> None:
        """Wait until `more` further submissions are acknowledged."""
        target = len(self.acknowledged) + more
        self._farm.wait_until(
            lambda: len(self.acknowledged) >= target, timeout_s, f"{more} more acknowledged submissions"
        )
