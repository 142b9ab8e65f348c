"""Declarations of settings: a setting is an annotated field in the class of its section, and all uses derive from it.

    class LogSettings:
        level: Annotated[LogLevel, Setting("the lowest severity that is logged")] = LogLevel.INFO

    name of the field      the key in the table
    type of the field      how the value is read and written, and its type in the reference
    default of the field   the value of an absent key; without a default, the reader of the section decides

`reader.read` fills such a class from a file, and `written` is the inverse. The reference page, the manual page, the
example configuration, and the allow-list of a bundle derive from `Declared`.
"""

import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

from bridge.node.router.link import Link
from gossip import Address
from gossip.node import endpoint

Example = str | tuple[str, ...]


class Form(Enum):
    """The form of a value in a file."""

    TEXT = "text"
    FLAG = "true or false"
    INTEGER = "whole number"
    WORD = "word"
    FILE = "path"
    ADDRESS = "address:port"
    TEXTS = "list of texts"


_KINDS = {bool: Form.FLAG, int: Form.INTEGER, Path: Form.FILE, Address: Form.ADDRESS, Link: Form.ADDRESS}
"""The kinds of these types; other types are words or texts."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The properties of a setting that its field does not have."""

    meaning: str
    minimum: int = 0
    maximum: int = 0
    """The largest number, or the length of the longest list."""
    default: str = ""
    """The default as text, if it depends on other settings."""
    missing: str = ""
    """The problem to report if the key is absent; the setting is then required."""
    shared: bool = False
    """True if nodes share the value, so that a bundle exports it; never for a node's own name, addresses, paths and
    keys."""
    reported: str = ""
    """The key in the node's reports (`config`); all members read them, so a setting is not reported by default."""
    example: Example = ""
    words: tuple[str, ...] = ()
    """The accepted words, if only some values of the enumeration are accepted."""
    key: str = ""
    """The key, if it is not the name of the field."""
    parse: Callable[[str], object] | None = None
    """Makes the value from a text; raises ValueError."""
    show: Callable[[Any], object] | None = None
    """Makes the text from a value, if `shown` is not the inverse of `parse`."""
    none: str = ""
    """The text that represents None, if an absent key has another meaning."""


class Tables(Struct, frozen=True):
    """A field with a list of tables, `[[key]]`."""

    key: str
    maximum: int


class Declared(Struct, frozen=True):
    """A setting together with the properties of its field."""

    table: str
    name: str
    """The name of the field."""
    type: Any
    """The type of the value, or of each item of a list."""
    kind: Form
    value: object
    """The default; `dataclasses.MISSING` if the reader of the section decides."""
    setting: Setting

    @property
    def key(self) -> str:
        """The key in its table."""
        return self.setting.key or self.name

    @property
    def path(self) -> str:
        """The path from the root of the file, such as `gossip.capacity`."""
        return f"{self.table}.{self.key}" if self.table else self.key

    @property
    def words(self) -> tuple[str, ...]:
        """The accepted words of an enumeration."""
        return self.setting.words or tuple(each.value for each in self.type)

    @property
    def kind_text(self) -> str:
        """The form of a value, as documents show it."""
        match self.kind:
            case Form.INTEGER:
                return f"{self.setting.minimum:,} to {self.setting.maximum:,}"
            case Form.WORD:
                return ", ".join(f'`"{word}"`' for word in self.words)
            case Form.TEXTS:
                return f"{self.kind.value}, at most {self.setting.maximum}"
            case _:
                return str(self.kind.value)

    @property
    def default_text(self) -> str:
        """The default, as documents show it."""
        if self.setting.default or self.setting.missing:
            return self.setting.default or "required"
        match shown(self.value):
            case None | []:
                return "none"
            case bool(value):
                return f"`{str(value).lower()}`"
            case str(value) if self.kind is not Form.ADDRESS:
                return f'`"{value}"`'
            case str(value):
                return f"`{value}`"
            case value:
                return f"{value}"


def declared_in(section: type, table: str = "") -> Iterator[Declared]:
    """Yield the settings of a class, then the settings of its tables, in the order of the fields."""
    yield from settings_of(section, table)
    for key, kinds in tables_of(section).values():
        found: dict[str, Declared] = {}
        for each in (each for kind in kinds for each in declared_in(kind, key)):
            found.setdefault(each.key, each)
        yield from found.values()


@cache
def settings_of(section: Any, table: str = "") -> tuple[Declared, ...]:
    """Return the settings among the fields of a class."""
    hints = get_type_hints(section, include_extras=True)
    found = ((each, _annotation(hints[each.name])) for each in fields(section))
    return tuple(
        Declared(table, each.name, *_kind_of(hint), each.default, setting)
        for each, (hint, setting) in found
        if isinstance(setting, Setting)
    )


@cache
def tables_of(section: Any) -> dict[str, tuple[str, tuple[type, ...]]]:
    """Return the tables among the fields of a class: their key, and the classes that the table can be."""
    found = {}
    for name, annotated in get_type_hints(section, include_extras=True).items():
        hint, tables = _annotation(annotated)
        kinds = tuple(
            each for each in _alternatives(hint) if isinstance(each, type) and is_dataclass(each) and settings_of(each)
        )
        if isinstance(tables, Tables):
            found[name] = (tables.key, get_args(hint)[:1])
        elif kinds and tables is None:
            found[name] = (name, kinds)
    return found


def written(settings: object) -> dict[str, Any]:
    """Return settings as the table of a file; absent values are left out."""
    found: dict[str, Any] = {}
    section: Any = type(settings)
    for each in settings_of(section):
        show, value = each.setting.show or shown, getattr(settings, each.name)
        match value:
            case None:
                found[each.key] = each.setting.none or None
            case frozenset():
                found[each.key] = sorted(map(show, value))
            case tuple() if each.kind is Form.TEXTS:
                found[each.key] = list(map(show, value))
            case _:
                found[each.key] = show(value)
    tables = [(key, getattr(settings, name)) for name, (key, _) in tables_of(section).items()]
    found |= {key: written(table) for key, table in tables if table is not None and not isinstance(table, tuple)}
    found |= {key: [written(each) for each in table] for key, table in tables if isinstance(table, tuple)}
    return {key: value for key, value in found.items() if value is not None and value not in ([], {})}


def shown(value: object) -> Any:
    """Return a value as a file has it."""
    match value:
        case None | bool() | int():
            return value
        case Enum():
            return value.value
        case Address():
            return endpoint(value)
        case tuple() | frozenset():
            return [shown(each) for each in value]
        case _:
            return str(value)


def _annotation(hint: Any) -> tuple[Any, object]:
    """Split a hint into the type and its annotation."""
    return get_args(hint)[:2] if get_origin(hint) is Annotated else (hint, None)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    found = get_args(hint) if get_origin(hint) in {Union, types.UnionType} else (hint,)
    return tuple(each for each in found if each is not types.NoneType)


def _kind_of(hint: Any) -> tuple[Any, Form]:
    """Return the type and the kind of a field's value."""
    (value,) = _alternatives(hint)
    if value in _KINDS:
        return value, _KINDS[value]
    if get_origin(value) is frozenset or get_args(value)[1:] == (...,):
        return get_args(value)[0], Form.TEXTS
    return value, Form.WORD if isinstance(value, type) and issubclass(value, Enum) else Form.TEXT
