"""The parts of a picture that a click acts on. The style of a text carries its target, which does not change the look.

    Canvas.line((text, style, target)) ─▶ moved, cut, stacked with its line ─▶ target_at(lines, column, row)

So the code that arranges lines does not know about the mouse, and a click always acts on the drawn text below it.
"""

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from typing import Final, TypeAlias

from msgspec import Struct
from rich.cells import cell_len
from rich.style import Style
from rich.text import Span, Text


class Sort(Enum):
    """The column that sorts the members."""

    NAME = "name"
    STATUS = "status"
    RTT = "rtt"
    LAG = "lag"
    RAFT = "raft"


class OnMember(Struct, frozen=True):
    """The row of a member, by NodeId."""

    node_id: str


class OnEvent(Struct, frozen=True):
    """An event, by its number in the story."""

    number: int


class OnEntry(Struct, frozen=True):
    """An entry of the log, by its index."""

    index: int


class OnFarm(Struct, frozen=True):
    """The row of a farm in the overview, by name."""

    name: str


class OnHeading(Struct, frozen=True):
    """The heading of a column."""

    sort: Sort


class OnKey(Struct, frozen=True):
    """A text that names a key; a click presses it."""

    key: str


Target: TypeAlias = OnMember | OnEvent | OnEntry | OnFarm | OnHeading | OnKey
_META: Final = "target"


@lru_cache(maxsize=4096)
def aimed_style(target: Target) -> Style:
    """Return a style that carries a target, and does not change the look."""
    return Style.from_meta({_META: target})


def aimed(line: Text, target: Target) -> Text:
    """Return the line; its cells belong to a target, unless a part has its own."""
    line.spans = [Span(0, len(line), aimed_style(target)), *line.spans]
    return line


def targets_of(line: Text) -> list[Span]:
    """Return the parts of a line that have targets."""
    return [each for each in line.spans if isinstance(each.style, Style) and _META in each.style.meta]


def target_at(lines: Sequence[Text], column: int, row: int) -> Target | None:
    """Return the target of the text at a cell, if there is one."""
    if not 0 <= row < len(lines):
        return None
    line, cells = lines[row], 0
    for offset, letter in enumerate(line.plain):
        cells += cell_len(letter)
        if column < cells:
            found = next((each for each in reversed(targets_of(line)) if each.start <= offset < each.end), None)
            return None if found is None or isinstance(found.style, str) else found.style.meta[_META]
    return None
