"""The specification and the result of one client process, for any kind of server.

    parent ──specification (JSON)──▶ connect, warm up ──"ready"──▶ parent ──"go"──▶ load ──result (JSON)──▶ parent

The clients are closed loops: each submits, waits for the acknowledgment, and submits again. With N clients and one
entry each, at most N entries are pending. A latency is the time from the submission to its acknowledgment (the entry
is committed).
"""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from benchmarks.figures import percentile

GO = "go"
WARM_UP_S = 0.5


@dataclass(frozen=True, slots=True)
class Load:
    """The load of one client process. One submission has `batch` entries."""

    clients: int
    connections: int
    seconds: float
    entry_bytes: int
    batch: int = 1


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one client process: a latency for each acknowledged submission."""

    elapsed_s: float
    processor_s: float
    latencies_us: list[int]
    failures: dict[str, int]


@dataclass(slots=True)
class Loop:
    """The closed loops of one process: `submit` sends a client's submission by number and returns its error."""

    submit: Callable[[int, int], Awaitable[str]]
    """(client, number of the submission) → "" if acknowledged, else the reason."""
    clients: int
    latencies_us: list[int] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)

    async def one(self, client: int, seconds: float) -> None:
        """Run one client for `seconds`."""
        deadline = time.perf_counter() + seconds
        number = client
        while (began := time.perf_counter()) < deadline:
            number += self.clients
            reason = await self.submit(client, number)
            if reason:
                self.failures[reason] += 1
            else:
                self.latencies_us.append(round((time.perf_counter() - began) * 1e6))

    def result(self, began_s: float, processor_began_s: float) -> Result:
        """Return the result since these readings of `perf_counter` and `process_time`."""
        elapsed_s = time.perf_counter() - began_s
        return Result(elapsed_s, time.process_time() - processor_began_s, self.latencies_us, dict(self.failures))


@dataclass(frozen=True, slots=True)
class Rate:
    """The combined result of all client processes of one run."""

    entries_per_s: float
    p50_ms: float
    p99_ms: float
    processor_share: float
    """Processor time of the clients, as a share of one processor."""

    @classmethod
    def of(cls, results: Iterable[Result], batch: int) -> "Rate":
        """Combine the results of simultaneous processes. There must be an acknowledged submission."""
        found = list(results)
        ranked = sorted(latency for result in found for latency in result.latencies_us)
        elapsed_s = max(result.elapsed_s for result in found)
        return cls(
            entries_per_s=len(ranked) * batch / elapsed_s,
            p50_ms=percentile(ranked, 0.5) / 1000,
            p99_ms=percentile(ranked, 0.99) / 1000,
            processor_share=sum(result.processor_s for result in found) / elapsed_s,
        )
