"""What a start found on the disk and had to repair, in words for whoever operates the node."""

from dataclasses import dataclass

from consensus.core.model import Index, LogId, SnapshotDescription


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What was found and what had to be repaired."""

    entries: int
    segments: int
    last: LogId
    torn_bytes: int = 0
    """Bytes of an unfinished write that were cut; nothing in them had been acknowledged."""
    torn_at: str = ""
    rewritten_bytes: int = 0
    truncation_finished: Index = 0
    hard_state_slot_repaired: bool = False
    created: bool = False
    snapshot: SnapshotDescription | None = None
    install_finished: bool = False

    def lines(self) -> list[str]:
        """For an operator: one sentence each."""
        if self.created:
            return ["a new, empty storage was made"]
        found = f"{self.entries} entries in {self.segments} segments, the last at index {self.last.index}"
        said = [f"{found} of term {self.last.term}; every checksum matches"]
        if self.snapshot is not None:
            last, size_bytes = self.snapshot.last, self.snapshot.size_bytes
            text = f"a snapshot of {size_bytes} bytes covers the log up to index {last.index} of term {last.term}"
            said.append(f"{text}; all its checksums match")
        if self.install_finished:
            said.append("the leader's snapshot, whose installation was interrupted by a stop, has replaced the log")
        if self.torn_bytes:
            said.append(f"an unfinished write of {self.torn_bytes} bytes was cut at {self.torn_at}: never acknowledged")
        if self.truncation_finished:
            said.append(f"a truncation from index {self.truncation_finished} on, interrupted by a stop, was finished")
        if self.hard_state_slot_repaired:
            said.append("one of the hard state's two slots was unfinished or damaged and was copied from the other")
        return said
