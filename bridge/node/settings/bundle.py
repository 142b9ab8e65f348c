"""A farm's bundle: the shared settings and the key for many nodes, as the text of one secret file.

    {"kind": "garlicfarm-bundle", "version": 1, "farmKey": TEXT OF THE KEY FILE, "settings": {…}}

`settings` is a node's configuration without the settings of that node alone. The settings declared as `shared` are an
allow-list, so a new setting is not exported by default. A node's own name and addresses, paths, signing keys, passwords
and leaves are not in it. Masters are named by their destinations; each node gets its own signing key (`garlicfarm keys
offline`). The bundle contains the farm's key and is as secret as that key.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from bridge.node.settings.configuration import SETTINGS
from bridge.wire.keys.farm_key import FarmKey, FarmKeyError, farm_key_text, parse_farm_key

KIND: Final = "garlicfarm-bundle"
SHARED: Final = {path: each for path, each in SETTINGS.items() if each.setting.shared}


class BundleError(ValueError):
    """The text is not a bundle; the message contains the reason."""


class _Bundle(Struct, rename="camel", forbid_unknown_fields=True):
    kind: str
    version: int
    farm_key: str
    settings: dict[str, Any]

    def __repr__(self) -> str:
        """Return a text without the key and the settings: the repr of a Struct shows its fields."""
        return f"_Bundle(version {self.version})"


def shared_settings(table: Mapping[str, Any], masters: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Return the shared part of a node's configuration file; `masters` are destinations, each with its `publish`."""
    found: dict[str, Any] = {}
    for path, each in SHARED.items():
        source = table.get(each.table, {}) if each.table else table
        if each.key in source and not (masters and path == "publishing.publish"):
            kept = found.setdefault(each.table, {}) if each.table else found
            kept[each.key] = source[each.key]
    if masters:
        found["master"] = [{"destination": destination, "publish": publish} for destination, publish in masters]
    return found


def bundle_text(farm_key: FarmKey, settings: Mapping[str, Any]) -> str:
    """Return the text of a bundle's file, which is secret."""
    made = _Bundle(KIND, 1, farm_key_text(farm_key), dict(settings))
    return msgspec.json.format(msgspec.json.encode(made), indent=2).decode() + "\n"


def parse_bundle(text: str) -> tuple[FarmKey, dict[str, Any]]:
    """Return the farm's key and the settings; raise `BundleError` on a fault. The settings are validated later."""
    try:
        found = msgspec.json.decode(text.encode(), type=_Bundle)
        if found.kind != KIND or found.version != 1:
            raise BundleError(
                f"kind {found.kind[:40]!r}, version {found.version}; this version reads {KIND!r}, version 1"
            )
        _check_shared(found.settings)
        return parse_farm_key(found.farm_key), found.settings
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BundleError(f"not a bundle: {error}") from error
    except FarmKeyError as error:
        raise BundleError(f"the farm key in it: {error}") from error


def _check_shared(settings: Mapping[str, Any]) -> None:
    """Refuse a bundle with settings of one node: state directory, control access, signing keys."""
    for name, value in settings.items():
        if name == "master" and isinstance(value, list):
            if not all(isinstance(each, Mapping) for each in value):
                raise BundleError("its masters are not tables")
            strange = {key for each in value for key in each} - {"destination", "publish"}
        elif isinstance(value, Mapping) and any(name == each.table for each in SHARED.values()):
            strange = {key for key in value if f"{name}.{key}" not in SHARED}
        else:
            strange = set() if name in SHARED else {name}
        if strange:
            raise BundleError(f"it sets {min(map(str, strange))[:40]!r}, which is each node's own; export it again")


def toml_text(settings: Mapping[str, Any]) -> str:
    """Return settings as TOML: scalars and lists of texts first, then tables, then lists of tables."""
    lines = [f"{key} = {_value(value)}" for key, value in settings.items() if not _is_table(value)]
    for key, value in settings.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{key}]", *(f"{name} = {_value(each)}" for name, each in value.items())]
    for key, value in settings.items():
        if _is_table(value) and isinstance(value, list):
            for table in value:
                lines += ["", f"[[{key}]]", *(f"{name} = {_value(each)}" for name, each in table.items())]
    return "\n".join(lines) + "\n"


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list) and any(isinstance(each, Mapping) for each in value))


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            # JSON's escapes are also TOML's, except surrogate pairs. JSON leaves one control character unescaped. Bytes
            # outside UTF-8 in a path become an escape that a reader of TOML refuses.
            text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
            return text.encode(errors="backslashreplace").decode()
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case _:
            raise BundleError(f"a setting cannot be {str(value)[:40]!r}")
