"""States built from type hints alone. Every field of every class is filled, so no field can be missed."""

import types
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

Choose = Callable[[str], float]
"""Function that returns the number for a place, named as in `bridge.core.state.numbers`."""


def filled_instance(cls: type[Struct], choose: Choose) -> Any:
    """Return an instance with one element in each table, and the chosen numbers."""
    hints = get_type_hints(cls)
    return cls(**{name: _value(hints[name], f"{cls.__name__}.{name}", choose) for name in cls.__struct_fields__})


def _value(hint: Any, place: str, choose: Choose) -> Any:  # noqa: PLR0911 - one case per form of a type
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in {Union, types.UnionType}:
        return _value(next(each for each in arguments if each is not type(None)), place, choose)
    if origin is not None and issubclass(origin, Mapping):
        key, value = arguments
        return {_value(key, f"{place}.key", choose): _value(value, f"{place}.value", choose)}
    if origin is tuple:
        return (_value(arguments[0], f"{place}.item", choose),)
    if hint is bool:
        return True
    if hint in {int, float}:
        return choose(place)
    if hint is str:
        return "x" * 8
    if hint is bytes:
        return bytes(8)
    if issubclass(hint, Enum):
        return next(iter(hint))
    assert issubclass(hint, Struct), f"{place} has a type that this test does not support: {hint}"
    return filled_instance(hint, choose)


def places_of(cls: type[Struct]) -> Iterator[str]:
    """Iterate over every place of a number in a class and in all classes of its fields."""
    seen: dict[str, None] = {}

    def note(place: str) -> float:
        seen[place] = None
        return 1

    filled_instance(cls, note)
    return iter(seen)
