"""Bytes from a terminal as keys and mouse events: letters unchanged, other keys by name.

    "q" "/" "ü"        printable characters
    "up" "down" "left" "right" "home" "end" "page-up" "page-down" "delete" "enter" "tab" "back-tab" "backspace" "escape"
    Mouse(column, row, button)    a press of the left button, or a step of the wheel, in the form SGR

A terminal sends arrows as ESC and some characters, all in one write. So an ESC at the end of the read bytes is the key
itself, without a timeout. A longer sequence without its end waits for the next bytes. This happens if a fast wheel
fills a read, and the digits of a mouse report must not become keys. Unknown sequences are skipped whole.
"""

import codecs
import re
from collections.abc import Iterator
from enum import Enum
from typing import Final, TypeAlias

from msgspec import Struct

_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~])")
_BEGUN: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)\Z")
_MOUSE: Final = re.compile(r"\x1b\[<(\d{1,4});(\d{1,5});(\d{1,5})M")
_SEQUENCE_MAX: Final = 64
"""Limit of a sequence's length: a longer one does not come from a terminal, and its beginning is dropped."""
_NAMES: Final = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1b[Z": "back-tab",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1bOC": "right",
    "\x1bOD": "left",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1bOH": "home",
    "\x1bOF": "end",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
    "\x1b[3~": "delete",
    "\x1b[5~": "page-up",
    "\x1b[6~": "page-down",
}
_CONTROLS: Final = {
    "\r": "enter",
    "\n": "enter",
    "\t": "tab",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x1b": "escape",
    "\x03": "ctrl-c",
    "\x04": "ctrl-d",
}


class Button(Enum):
    """The part of the mouse that moved."""

    LEFT = 0
    WHEEL_UP = 64
    WHEEL_DOWN = 65


class Mouse(Struct, frozen=True):
    """A press of a button at a cell of the screen; both places count from 0."""

    column: int
    row: int
    button: Button


Input: TypeAlias = str | Mouse
_MODIFIERS: Final = 0b11100
"""Bits of Shift, Alt and Ctrl in the number of a button."""
_BUTTONS: Final = {each.value: each for each in Button}


class KeyReader:
    """The keys in the bytes of a terminal; it keeps the beginning of a sequence for the next read."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._rest = ""

    def keys_in(self, data: bytes) -> Iterator[Input]:
        """Yield the pressed keys and the mouse events, in order."""
        text, self._rest = self._rest + self._decoder.decode(data), ""
        at = 0
        while at < len(text):
            sequence = _SEQUENCE.match(text, at)
            if sequence is not None:
                at = sequence.end()
                found = _named(sequence[0])
                if found is not None:
                    yield found
                continue
            if _BEGUN.match(text, at):
                self._rest = text[at:] if len(text) - at <= _SEQUENCE_MAX else ""
                return
            character = text[at]
            at += 1
            if character in _CONTROLS:
                yield _CONTROLS[character]
            elif character.isprintable():
                yield character


def _named(sequence: str) -> Input | None:
    """Return the key or the mouse event of a sequence; None for an unknown one, such as the release of a button."""
    report = _MOUSE.fullmatch(sequence)
    if report is None:
        return _NAMES.get(sequence)
    code, column, row = map(int, report.groups())
    button = _BUTTONS.get(code & ~_MODIFIERS)
    return None if button is None or not column or not row else Mouse(column - 1, row - 1, button)
