"""The reader of tables of settings, which notes every problem, so that an operator can correct a file in one pass.

    Section.read(kind, …)        makes an instance of a section's class from the table, by its declarations
    Section.values(kind, …)      the same as a mapping, for a class that also has other fields
    Section.finish()             notes the unknown keys, with the probably intended key

A problem is a line such as `consensus.voters_max: 0 is not a whole number from 1 to 9`, with the path of the key and
the fault. After a fault the reader continues with the default, or with a placeholder for a required setting, so that
later checks still run. The node never uses the result: a configuration with problems is refused completely.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any, TypeVar

from bridge.node.security.local_trust import with_home
from bridge.node.settings.declared import Declared, Form, Tables, settings_of
from gossip import Address
from gossip.node import dialed, numeric_address, parse_endpoint

SHOWN_CHARACTERS = 60
PLACEHOLDER = Address("127.0.0.1", 1)
Settings = TypeVar("Settings")
Parsed = TypeVar("Parsed")


class Section:
    """A table. `problems` and `files` are shared by all tables of a file; `path` is the name of the table in it.

    `files` receives each path that a setting names, with the name of the setting.
    """

    def __init__(
        self, table: object, path: str, problems: list[str], directory: Path, files: list[tuple[str, Path]]
    ) -> None:
        self._path = path
        self._files = files
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
        self._problems.append(f"{self.name(key)}: {fault}")

    def name(self, key: str) -> str:
        """Return the path of a key from the root of the file."""
        return f"{self._path}.{key}" if self._path else key

    def _take(self, key: str) -> Any:
        self._known.append(key)
        return self._table.get(key)

    @property
    def is_empty(self) -> bool:
        """True if the table is empty."""
        return not self._table

    def has(self, key: str) -> bool:
        """Return True if `key` is set, even to a wrong value."""
        return key in self._table

    def refused(self, key: str, reason: str) -> None:
        """If `key` is set, note the reason why it is not a setting in this table."""
        if self._take(key) is not None:
            self.problem(key, reason)

    def read(self, kind: type[Settings], defaults: Mapping[str, object] | None = None, /, **known: object) -> Settings:
        """Make an instance of `kind` from the whole table.

        `defaults` replace the declared defaults of settings whose default depends on other settings. The fields in
        `known` already have values and are not read here.
        """
        found = self.values(kind, defaults, **known)
        self.finish()
        return kind(**found)

    def values(self, kind: type, defaults: Mapping[str, object] | None = None, /, **known: object) -> dict[str, Any]:
        """Return the value of each setting of `kind` by the name of its field."""
        found = dict(known)
        for each in settings_of(kind):
            if each.name not in known:
                found[each.name] = self._value(each, (defaults or {}).get(each.name, each.value))
        return found

    def _value(self, declared: Declared, default: object) -> object:
        if default is MISSING:
            default = PLACEHOLDER if declared.type is Address else None
        if declared.setting.missing and not self.has(declared.key):
            self.problem(declared.key, declared.setting.missing)
        value = self._take(declared.key)
        if value is None:
            return default
        try:
            return self._converted(declared, value)
        except ValueError as error:
            self.problem(declared.key, str(error))
            return default

    def _converted(self, declared: Declared, value: Any) -> object:
        setting = declared.setting
        match declared.kind, value:
            case Form.FLAG, bool():
                return value
            case Form.INTEGER, int() if type(value) is int and setting.minimum <= value <= setting.maximum:
                return value
            case Form.WORD, str() if value in declared.words:
                return declared.type(value)
            case Form.TEXTS, list() if len(value) <= setting.maximum and all(isinstance(each, str) for each in value):
                items = _each_parsed(value, setting.parse or str)
                return frozenset(items) if isinstance(declared.value, frozenset) else items
            case ((Form.TEXT | Form.FILE | Form.ADDRESS), _):
                return self._from_text(declared, _text(value))
            case _:
                raise ValueError(f"{_shown(value)} {_expected(declared, value)}")

    def _from_text(self, declared: Declared, text: str) -> object:
        """Convert a text; a relative path is relative to the file that contains the setting."""
        if declared.kind is not Form.FILE:
            parse = numeric_address if declared.kind is Form.ADDRESS else str
            return (declared.setting.parse or parse)(text)
        path = self._directory / with_home(text)
        self._files.append((self.name(declared.key), path))
        return path

    def parsed(self, key: str, parse: Callable[[str], Parsed]) -> Parsed | None:
        """Return a text whose form depends on other settings; None if it is absent or wrong."""
        value = self._take(key)
        try:
            return None if value is None else parse(_text(value))
        except ValueError as error:
            self.problem(key, str(error))
            return None

    def section(self, key: str) -> "Section":
        """Return a table in this one; an absent table is empty."""
        found = self._take(key)
        return Section({} if found is None else found, self.name(key), self._problems, self._directory, self._files)

    def sections(self, tables: Tables) -> "list[Section]":
        """Return a list of tables (`[[key]]`)."""
        key, maximum = tables.key, tables.maximum
        match self._take(key):
            case None:
                return []
            case list(found) if len(found) <= maximum:
                paths = (f"{self.name(key)}[{number}]" for number in range(maximum))
                return [
                    Section(table, path, self._problems, self._directory, self._files)
                    for table, path in zip(found, paths, strict=False)
                ]
            case found:
                fault = f"{_shown(found)} is not a list of at most {maximum} tables; write [[{self.name(key)}]]"
                self.problem(key, fault)
                return []

    def finish(self) -> None:
        """Note the keys that were not read."""
        for key in self._table:
            if key not in self._known:
                known = f"; there are {', '.join(self._known)}"
                self.problem(key[:SHOWN_CHARACTERS], f"no such setting{_meant(key, self._known) or known}")


def named_address(text: str) -> Address:
    """Parse a host to connect to, which may be a name, and a port; raise ValueError for other texts."""
    return dialed(Address(*parse_endpoint(text)))


def dialed_address(text: str) -> Address:
    """Parse a numeric address to connect to, and a port; raise ValueError for other texts."""
    return dialed(numeric_address(text))


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError(f"{_shown(value)} is not a text in quotes, with at least one character")
    return value


def _expected(declared: Declared, value: object) -> str:
    """Return the problem of a value whose form does not fit its setting."""
    setting = declared.setting
    match declared.kind:
        case Form.FLAG:
            return "is neither true nor false (without quotes)"
        case Form.INTEGER:
            return f"is not a whole number from {setting.minimum} to {setting.maximum}"
        case Form.WORD:
            return f"is not one of {', '.join(map(repr, declared.words))}{_meant(value, declared.words)}"
        case _:
            return f"is not a list of at most {setting.maximum} texts"


def _each_parsed(texts: Sequence[str], parse: Callable[[str], object]) -> tuple[object, ...]:
    """Return all values; raise one ValueError for all wrong texts."""
    found, faults = [], []
    for text in texts:
        try:
            found.append(parse(text))
        except ValueError as error:
            faults.append(str(error))
    if faults:
        raise ValueError("; ".join(faults))
    return tuple(found)


def _meant(found: object, words: Sequence[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - for a configuration that is wrong only

    close = get_close_matches(found, words, n=1) if isinstance(found, str) else []
    return f"; did you mean {close[0]!r}?" if close else ""


def _shown(found: object) -> str:
    text = repr(found)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
