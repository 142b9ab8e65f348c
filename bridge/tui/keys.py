"""Bytes from a terminal as keys: letters unchanged, others by name.

    "q" "/" "ü"        printable characters
    "up" "down" "left" "right" "home" "end" "page-up" "page-down" "delete" "enter" "tab" "backspace" "escape" "ctrl-c"

A terminal sends arrows as ESC and some characters, all in one write. So an ESC at the end of the read bytes is the key
itself, and no time is measured. Unknown sequences are skipped whole: their letters are not keys.
"""

import re
from collections.abc import Iterator
from typing import Final

_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~])")
_NAMES: Final = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
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


def keys_in(data: bytes) -> Iterator[str]:
    """Yield the pressed keys, in order."""
    text = data.decode(errors="ignore")
    at = 0
    while at < len(text):
        sequence = _SEQUENCE.match(text, at)
        if sequence is not None:
            at = sequence.end()
            if sequence[0] in _NAMES:
                yield _NAMES[sequence[0]]
            continue
        character = text[at]
        at += 1
        if character in _CONTROLS:
            yield _CONTROLS[character]
        elif character.isprintable():
            yield character
