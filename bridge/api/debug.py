"""What a node tells of itself for those who look for a fault in it: settings, versions, a profile, stacks and memory.

Names of functions, types and threads only: no value of a variable is in it, and settings name the files of keys and
passwords, never what is in them.
"""

from collections.abc import Mapping
from typing import Any

from bridge.api.json import Document, Record


class SampledStack(Record, frozen=True):
    """Where the process was when it used its processor time."""

    frames: tuple[str, ...]
    """`module:function:line`, the outermost first."""
    samples: int
    """How many samples found it there."""


class ProcessorProfile(Record, frozen=True):
    """What the process spent its processor time on; samples are taken by processor time, so waiting has none."""

    seconds: float
    """How long it was watched."""
    processor_s: float
    """How much processor time the process used meanwhile."""
    interval_s: float
    """After so much processor time a sample is taken; the system may take them more rarely."""
    stacks: tuple[SampledStack, ...]
    """The stacks of the main thread, the most frequent first."""
    others: int
    """Samples in further stacks, which are left out."""


class RunningStack(Record, frozen=True):
    """A thread or a task, and where it is now."""

    name: str
    """Of the thread; of the task the name of its function."""
    depth: int
    """Of a task, how many nurseries it is below the first; 0 of a thread."""
    frames: tuple[str, ...]
    """`module:function:line`, the outermost first."""


class TypeCount(Record, frozen=True):
    """How many objects of one type there are."""

    type: str
    """The name of the type, with its module."""
    count: int
    """How many the collector of garbage knows."""


class MemorySnapshot(Record, frozen=True):
    """What the process holds."""

    resident_bytes: int
    """In memory now."""
    shared_bytes: int
    """Of these, of files that other processes may share: programs and libraries."""
    allocated_blocks: int
    """Blocks of memory that Python has allocated."""
    modules: int
    """Modules that are loaded."""
    types: tuple[TypeCount, ...]
    """The types with the most objects."""


class DebugAnswer(Document, frozen=True):
    """What a node tells of itself for those who look for a fault in it."""

    node: str
    """What operators call the node."""
    versions: Mapping[str, str]
    """Of this project, of Python, of the libraries that are installed, and of the system."""
    compiled: bool
    """Whether modules of this project are compiled, as in the wheel for this platform."""
    settings: Mapping[str, Any]
    """The node's settings, complete; names of users are replaced, keys and passwords are the names of files."""
    profile: ProcessorProfile
    """What it spent its time on."""
    threads: tuple[RunningStack, ...]
    """Its threads."""
    tasks: tuple[RunningStack, ...]
    """Its tasks, in the order of their nurseries."""
    memory: MemorySnapshot
    """What it holds."""


class DebugAnswered(Record, frozen=True):
    """A node of which the file has something."""

    address: str
    """How it was asked."""
    name: str
    """What operators call it."""
    directory: str
    """Its directory in the file."""
    missing: tuple[str, ...]
    """What it refused or did not answer, with the reason."""


class DebugSilent(Record, frozen=True):
    """A node, or a member of the farm, of which the file has nothing."""

    address: str | None
    """How it was asked; null if it was not."""
    name: str | None
    """What operators call it; null if that is not known."""
    reason: str
    """Why, in words."""


class DebugOutput(Document, frozen=True):
    """`debug`; `summary.json` in the file is the same, with `bytes` 0."""

    file: str
    """The file that was written."""
    bytes: int
    """Its size."""
    version: str
    """Of the command that made it."""
    made_at: str
    """When, by this machine's clock, UTC."""
    answered: tuple[DebugAnswered, ...]
    """The nodes that answered."""
    silent: tuple[DebugSilent, ...]
    """The others."""
