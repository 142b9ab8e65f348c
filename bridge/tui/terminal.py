"""The terminal while a live view is on it: the alternate screen, keys without echo, mouse reports; and the way back.

    enter()   alternate screen, cursor hidden, mouse reports on (SGR)    ─▶ draw(lines): changed lines only
    leave()   all of it undone, in the reverse order: at the end, at a fault, and before the process is suspended

Mouse reports replace the terminal's selection of text. Terminals still select while Shift is held, and a key of the
view switches the reports off. Only presses and the wheel are requested: reports of each movement would wake the
process.
"""

import os
import termios
import tty
from contextlib import suppress
from typing import IO, Any, Final, Self

ENTER_SCREEN: Final = "\x1b[?1049h\x1b[?25l"
LEAVE_SCREEN: Final = "\x1b[?25h\x1b[?1049l"
MOUSE_ON: Final = "\x1b[?1000h\x1b[?1006h"
MOUSE_OFF: Final = "\x1b[?1006l\x1b[?1000l"


class Terminal:
    """A context manager. `descriptor` is the terminal of the keys; without one, the mouse is not used."""

    def __init__(self, output: IO[str], descriptor: int | None) -> None:
        self._output = output
        self._descriptor = descriptor
        self._before: list[Any] | None = None
        self._lines: list[str] = []
        self._reports = False

    def __enter__(self) -> Self:
        self.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def enter(self) -> None:
        """Take the terminal; the next picture is drawn whole."""
        if self._descriptor is not None:
            self._before = self._before or termios.tcgetattr(self._descriptor)
            tty.setcbreak(self._descriptor, termios.TCSANOW)
        self._lines, self._reports = [], False
        self._write(ENTER_SCREEN)

    def leave(self) -> None:
        """Give the terminal back as it was."""
        # After the end of an SSH session the terminal is gone.
        with suppress(OSError):
            self._write(MOUSE_OFF + LEAVE_SCREEN)
        if self._descriptor is not None and self._before is not None:
            with suppress(OSError, termios.error):
                termios.tcsetattr(self._descriptor, termios.TCSANOW, self._before)
            self._before = None

    def draw(self, lines: list[str], *, mouse: bool, whole: bool = False) -> None:
        """Show lines that are as wide as the screen; write only the changed lines."""
        if whole or len(lines) != len(self._lines):
            self._lines = []
        parts = []
        if self._descriptor is not None and mouse is not self._reports:
            parts.append(MOUSE_ON if mouse else MOUSE_OFF)
            self._reports = mouse
        for number, line in enumerate(lines):
            if number >= len(self._lines) or line != self._lines[number]:
                parts.append(f"\x1b[{number + 1};1H{line}")
        self._lines = lines
        if parts:
            self._write("".join(parts))

    def _write(self, text: str) -> None:
        self._output.write(text)
        self._output.flush()


def keys_descriptor(descriptor: int) -> int | None:
    """Return the descriptor if it is a terminal that keys can be read from."""
    return descriptor if os.isatty(descriptor) else None
