"""Reads a table of settings and remembers everything that is wrong with it, so that an operator mends it in one go.

    Section.text/choice/integer/…(key)   takes a key out, or notes what is wrong and goes on with the default
    Section.finish()                     notes the keys that were not taken, with the one that may have been meant

Defaults and bounds are those of `bridge.node.settings.table`; a key that does not stand there cannot be read.

Problems are lines such as `gossip.capacity: 0 is not from 1 to 255`: the key's path and the fault. A default that is
used to go on after a fault is never seen, because a configuration with problems is refused as a whole.
"""

import re
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from bridge.node.settings.table import SETTINGS, Setting
from gossip import Address
from gossip.node import numeric, parse_endpoint

Choice = TypeVar("Choice", bound=Enum)
SHOWN_CHARACTERS = 60
_ITEM = re.compile(r"\[\d+\]")


class Section:
    """One table. `problems` is shared by all tables of a file; `path` is how the table is called in it."""

    def __init__(self, table: object, path: str, problems: list[str], directory: Path) -> None:
        self._path = path
        self._problems = problems
        self._directory = directory
        self._known: list[str] = []
        self._table: dict[str, Any] = {}
        if isinstance(table, dict):
            self._table = table
        else:
            problems.append(f"{path}: is {_shown(table)}, not a table; write [{path}] above its settings")

    def problem(self, key: str, fault: str) -> None:
        """Note that `key` is wrong."""
        self._problems.append(f"{self._name(key)}: {fault}")

    def _name(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def _take(self, key: str) -> Any:
        self._known.append(key)
        return self._table.get(key)

    def _declared(self, key: str) -> Setting:
        return SETTINGS[_ITEM.sub("", self._name(key))]

    @property
    def is_empty(self) -> bool:
        """Whether nothing stands in it."""
        return not self._table

    def has(self, key: str) -> bool:
        """Whether `key` is set, well or badly."""
        return key in self._table

    def refused(self, key: str, reason: str) -> None:
        """Note why `key`, which an operator may expect to exist, is no setting, if it is set."""
        if self._take(key) is not None:
            self.problem(key, reason)

    def text(self, key: str) -> str | None:
        """A text that is not empty."""
        self._declared(key)
        match self._take(key):
            case None:
                return None
            case str(found) if found.strip() and "\0" not in found:
                return found
            case found:
                self.problem(key, f"{_shown(found)} is not a text in quotes")
                return None

    def flag(self, key: str) -> bool:
        """True or false."""
        default = bool(self._declared(key).default)
        match self._take(key):
            case None:
                return default
            case bool(found):
                return found
            case found:
                self.problem(key, f"{_shown(found)} is neither true nor false (without quotes)")
                return default

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number within its bounds; `default` where it depends on other settings."""
        declared = self._declared(key)
        missing = int(declared.default or 0) if default is None else default
        match self._take(key):
            case None:
                return missing
            case int(found) if not isinstance(found, bool) and declared.least <= found <= declared.most:
                return found
            case found:
                self.problem(key, f"{_shown(found)} is not a whole number from {declared.least} to {declared.most}")
                return missing

    def choice(self, key: str, kind: type[Choice], default: Choice | None = None) -> Choice:
        """One of an enumeration's values; `default` where it depends on other settings."""
        declared = self._declared(key)
        missing = kind(declared.default) if default is None else default
        words = list(declared.words)
        match self._take(key):
            case None:
                return missing
            case str(found) if found in words:
                return kind(found)
            case found:
                self.problem(
                    key, f"{_shown(found)} is none of {', '.join(repr(word) for word in words)}{_meant(found, words)}"
                )
                return missing

    def path(self, key: str) -> Path | None:
        """A path; a relative one is relative to the file that holds the setting."""
        found = self.text(key)
        if found is None:
            return None
        try:
            return self._directory / Path(found).expanduser()
        except RuntimeError as error:
            self.problem(key, f"{_shown(found)}: {error}")
            return None

    def address(self, key: str, given: str | None = None) -> Address | None:
        """A numeric address and port; `given` on the command line, it wins over the file."""
        told = self.text(key)
        found = given or told
        if found is None:
            return None
        try:
            host, port = parse_endpoint(found)
        except ValueError as error:
            self.problem(key, str(error))
            return None
        canonical = numeric(host)
        if canonical is None:
            self.problem(key, f"{_shown(host)} is not a numeric address such as 192.168.1.10 or fd00::1")
            return None
        return Address(canonical, port)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts."""
        most = self._declared(key).most
        match self._take(key):
            case None:
                return ()
            case list(found) if len(found) <= most and all(isinstance(each, str) for each in found):
                return tuple(found)
            case found:
                self.problem(key, f"{_shown(found)} is not a list of at most {most} texts")
                return ()

    def section(self, key: str) -> "Section":
        """A table within this one; an absent one is empty."""
        found = self._take(key)
        return Section({} if found is None else found, self._name(key), self._problems, self._directory)

    def sections(self, key: str, most: int) -> "list[Section]":
        """A list of tables (`[[key]]`)."""
        match self._take(key):
            case None:
                return []
            case list(found) if len(found) <= most:
                return [
                    Section(table, f"{self._name(key)}[{number}]", self._problems, self._directory)
                    for number, table in enumerate(found)
                ]
            case found:
                self.problem(
                    key, f"{_shown(found)} is not a list of at most {most} tables; write [[{self._name(key)}]]"
                )
                return []

    def finish(self) -> None:
        """Note the keys that were not read."""
        for key in self._table:
            if key not in self._known:
                known = f"; there are {', '.join(self._known)}"
                self.problem(key[:SHOWN_CHARACTERS], f"no such setting{_meant(key, self._known) or known}")


def _meant(found: object, words: list[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - for a configuration that is wrong only

    close = get_close_matches(found, words, n=1) if isinstance(found, str) else []
    return f"; did you mean {close[0]!r}?" if close else ""


def _shown(found: object) -> str:
    text = repr(found)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
