"""Data of a node for fault finding: settings, versions, a profile, stacks and memory.

The data contain names of functions, types and threads, and no values of variables. Settings contain the paths of key
and password files, never the content of these files.
"""

from collections.abc import Mapping
from typing import Any

from bridge.api.json import Document, Record


class SampledStack(Record, frozen=True):
    """A position of the process while it used processor time."""

    frames: tuple[str, ...]
    """`module:function:line`, the outermost first."""
    samples: int
    """Number of samples at this position."""


class ProcessorProfile(Record, frozen=True):
    """The distribution of the processor time. Samples are taken by processor time, so waiting does not appear."""

    seconds: float
    """Length of the measurement."""
    processor_s: float
    """Processor time that the process used during the measurement."""
    interval_s: float
    """Processor time between two samples; the system may take them more rarely."""
    stacks: tuple[SampledStack, ...]
    """The stacks of the main thread, the most frequent first."""
    others: int
    """Samples in further stacks, which are left out."""


class RunningStack(Record, frozen=True):
    """A thread or a task with its current position."""

    name: str
    """Name of the thread, or of the task's function."""
    depth: int
    """Number of nurseries between a task and the first one; 0 for a thread."""
    frames: tuple[str, ...]
    """`module:function:line`, the outermost first."""


class TypeCount(Record, frozen=True):
    """Number of objects of one type."""

    type: str
    """The name of the type, with its module."""
    count: int
    """Number of objects, except objects of modules loaded before the node started."""


class MemorySnapshot(Record, frozen=True):
    """Memory of the process."""

    resident_bytes: int
    """Resident memory."""
    shared_bytes: int
    """Part of the resident memory that belongs to files which other processes may share: programs and libraries."""
    allocated_blocks: int
    """Blocks of memory that Python has allocated."""
    modules: int
    """Number of loaded modules."""
    types: tuple[TypeCount, ...]
    """The types with the most objects."""


class DebugAnswer(Document, frozen=True):
    """Data of a node for fault finding."""

    node: str
    """The name of the node."""
    versions: Mapping[str, str]
    """Versions of this project, of Python, of the installed libraries, and of the system."""
    settings: Mapping[str, Any]
    """All settings of the node; names of users are replaced, and keys and passwords appear as the names of their
    files."""
    profile: ProcessorProfile
    """The distribution of the processor time."""
    threads: tuple[RunningStack, ...]
    """Threads of the node."""
    tasks: tuple[RunningStack, ...]
    """Tasks of the node, in the order of their nurseries."""
    memory: MemorySnapshot
    """Memory of the process."""


class DebugAnswered(Record, frozen=True):
    """A node with data in the file."""

    address: str
    """Address of the node."""
    name: str
    """Name of the node."""
    directory: str
    """Directory of the node's data in the file."""
    missing: tuple[str, ...]
    """Requests that it refused or did not answer, with the reason."""


class DebugSilent(Record, frozen=True):
    """A node, or a member of the farm, without data in the file."""

    address: str | None
    """Address of the node; null if it was not requested."""
    name: str | None
    """Name of the node; null if it is not known."""
    reason: str
    """The reason."""


class DebugOutput(Document, frozen=True):
    """`debug`; `summary.json` in the file is the same, with `bytes` 0."""

    file: str
    """The path of the file."""
    bytes: int
    """Size of the file."""
    version: str
    """Version of the command that made it."""
    made_at: str
    """Time of its creation by this machine's clock, UTC."""
    answered: tuple[DebugAnswered, ...]
    """The nodes that answered."""
    silent: tuple[DebugSilent, ...]
    """The nodes and members without data."""
