"""Changes to a configuration file that keep the operator's comments, order, spaces and other settings.

    [router]                                    [router]
    #kind = "file"      # a comment     ──▶     #kind = "file"      # a comment
    directory = "/srv"                          kind = "i2cp"
                                                #directory = "/srv"

The editor works line by line. So it may misread a table in an unusual form (dotted keys, inline tables, a header inside
a multi-line string). Therefore it decodes its result and compares it with the wanted content. If they differ, it raises
`EditError`, and the file stays as it is.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bridge.node.settings.bundle import toml_text

_HEADER = re.compile(r"\s*\[")
_COMMENTED_HEADER: Final = re.compile(r"#\s*\[[\w.\[\]-]+\]\s*")
_ASSIGNMENT: Final = r"(\s*)({key}|\"{key}\"|'{key}')(\s*=\s*)(\"[^\"]*\"|'[^']*'|.*?)(\s+#.*|\s*)"


class EditError(ValueError):
    """The file cannot be changed safely; the text contains the place and the reason."""


def set_table(text: str, table: str, values: Mapping[str, Any], absent: Sequence[str] = ()) -> str:
    """Return the text with these values in `[table]`; each key of `absent` becomes a comment."""
    content = _decoded(text)
    wanted = {key: each for key, each in content.get(table, {}).items() if key not in absent} | dict(values)
    lines = text.split("\n")
    place = next(iter(_header_lines(lines, f"[{table}]")), None)
    if place is None:
        if table in content:
            raise EditError(
                f"it does not have a line [{table}], although it sets {table}: write the table in that form"
            )
        made = _with_more(lines, {table: dict(values)})
    else:
        made = _with_section(lines, place, values, absent)
    return _checked(made, content | {table: wanted}, f"line {(place or 0) + 1}, [{table}]")


def set_listed_table(text: str, table: str, number: int, values: Mapping[str, Any], absent: Sequence[str]) -> str:
    """Return the text with these values in table `number` (from 0) of `[[table]]`; `absent` as in `set_table`."""
    content = _decoded(text)
    wanted = list(content[table])
    wanted[number] = {key: each for key, each in wanted[number].items() if key not in absent} | dict(values)
    lines = text.split("\n")
    places = _header_lines(lines, f"[[{table}]]")
    if len(places) != len(wanted):
        raise EditError(f"it does not have a line [[{table}]] for each {table}: write the tables in that form")
    made = _with_section(lines, places[number], values, absent)
    return _checked(made, content | {table: wanted}, f"line {places[number] + 1}, [[{table}]]")


def add_tables(text: str, table: str, added: Sequence[Mapping[str, Any]]) -> str:
    """Return the text with more tables `[[table]]` at its end."""
    if not added:
        return text
    content = _decoded(text)
    before = content.get(table, [])
    if not isinstance(before, list):
        raise EditError(f"it sets {table}, which is not a list of tables [[{table}]]")
    wanted = content | {table: [*before, *map(dict, added)]}
    made = _with_more(text.split("\n"), {table: [dict(each) for each in added]})
    return _checked(made, wanted, f"its list {table}")


def _decoded(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise EditError(f"it is not TOML: {error}") from None


def _checked(made: str, wanted: Mapping[str, Any], place: str) -> str:
    try:
        if tomllib.loads(made) == wanted:
            return made
    except (tomllib.TOMLDecodeError, RecursionError):
        pass
    raise EditError(f"{place} has a form that cannot be changed safely: put each value on a separate line")


def _with_more(lines: Sequence[str], tables: Mapping[str, Any]) -> str:
    """Return the lines without empty ones at the end, and these tables after them."""
    last = next((at for at in range(len(lines), 0, -1) if lines[at - 1].strip()), 0)
    return "\n".join([*lines[:last], *toml_text(tables).split("\n")]).lstrip("\n")


def _header_lines(lines: Sequence[str], header: str) -> list[int]:
    return [at for at, line in enumerate(lines) if line.partition("#")[0].strip() == header]


def _with_section(lines: Sequence[str], place: int, values: Mapping[str, Any], absent: Sequence[str]) -> str:
    """Return the lines with the changed table below the header at `place`."""
    end = next((at for at in range(place + 1, len(lines)) if _HEADER.match(lines[at])), len(lines))
    section = _changed(lines[place + 1 : end], values, absent)
    return "\n".join([*lines[: place + 1], *section, *lines[end:]])


def _changed(section: Sequence[str], values: Mapping[str, Any], absent: Sequence[str]) -> list[str]:
    made = list(section)
    for key in absent:
        place = _assignment(made, key)
        if place is not None:
            made[place] = f"#{made[place]}"
    for key, value in values.items():
        _set(made, key, toml_text({"value": value}).strip().removeprefix("value = "))
    return made


def _set(section: list[str], key: str, value: str) -> None:
    """Replace a value, or insert a line: below the commented line of the key, or after the last value."""
    place = _assignment(section, key)
    if place is not None:
        found = re.fullmatch(_ASSIGNMENT.format(key=re.escape(key)), section[place])
        if found is not None:
            section[place] = f"{found[1]}{found[2]}{found[3]}{value}{found[5]}"
        return
    # Below a header in a comment, such as `#[[master]]`, are the keys of another table.
    end = next((at for at, line in enumerate(section) if _COMMENTED_HEADER.fullmatch(line)), len(section))
    commented = [at for at, line in enumerate(section[:end]) if re.match(rf"#\s*{re.escape(key)}\s*=", line)]
    last = next((at for at in range(len(section) - 1, -1, -1) if _is_assignment(section[at])), -1)
    section.insert((commented[-1] if commented else last) + 1, f"{key} = {value}")


def _assignment(section: Sequence[str], key: str) -> int | None:
    pattern = re.compile(_ASSIGNMENT.format(key=re.escape(key)))
    return next((at for at, line in enumerate(section) if pattern.fullmatch(line)), None)


def _is_assignment(line: str) -> bool:
    return "=" in line and not line.lstrip().startswith("#")
