r"""Text from others, made harmless for a terminal and a log file: invisible characters are written out.

    node, ESC, [2J  ─▶  node\x1b[2J          evil, an override, gnp.exe  ─▶  evil\u202egnp.exe

Names, request ids, versions, reasons and entries come from other machines. A control character in them moves the cursor
or forges a line. An override turns words around, and a character without width makes two names look alike. So all
characters that Unicode calls other or separator are escaped (control, format, surrogate, private, unassigned; line,
paragraph and every space but the ordinary one). The few letters and marks without a visible shape are escaped too.

Every way out escapes at its own end: `bridge.cli.printing` for terminals and logs, `bridge.tui.layout` for the live
view, `bridge.node.control.metrics` for labels, `pipeline.serve.printing` for the pipeline. JSON stays exact: there
these characters are JSON's own escapes (`bridge.cli.printing.json_text`).
"""

from typing import Final

_INVISIBLE: Final = frozenset(
    [
        0x034F,  # combining grapheme joiner
        *(0x115F, 0x1160, 0x3164, 0xFFA0),  # Hangul fillers
        *(0x17B4, 0x17B5),  # Khmer inherent vowels
        *range(0x180B, 0x1810),  # Mongolian variation selectors
        0x2800,  # an empty Braille pattern
        *range(0xFE00, 0xFE10),  # variation selectors
        *range(0xE0100, 0xE01F0),  # more of them
    ]
)
_BYTE, _SHORT = 0x100, 0x10000


def printable(text: str) -> str:
    """Return the text in one line, with an escape for each invisible letter."""
    if text.isprintable() and (text.isascii() or not any(ord(letter) in _INVISIBLE for letter in text)):
        return text
    return "".join(letter if is_printable(letter) else _escape(ord(letter)) for letter in text)


def one_line(text: str, limit: int) -> str:
    """Return at most `limit` characters of the text, with a question mark for each invisible letter."""
    shown = "".join(letter if is_printable(letter) else "?" for letter in text[:limit])
    return shown if len(text) <= limit else f"{shown[:-1]}…"


def is_printable(letter: str) -> bool:
    """Return True if one letter is drawn as itself."""
    return letter.isprintable() and ord(letter) not in _INVISIBLE


def _escape(point: int) -> str:
    if point < _BYTE:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point < _SHORT else f"\\U{point:08x}"
