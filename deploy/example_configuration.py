"""The configuration in the packages: every setting with its meaning and its default, from their declarations.

Two settings are set, since a service has other directories than a user. All other settings are commented out by a `#`,
with their default or an example. The names of tables are not commented out, so that enabling a line only requires
removing its `#`. The exceptions are `[[master]]` and `[[leaf]]`: each of these lines adds a master or a leaf.
"""

import json
import re
import textwrap
from dataclasses import MISSING

from bridge.node.settings.configuration import LISTS, SETTINGS
from bridge.node.settings.declared import Declared, Form, shown

CONFIGURATION_DIRECTORY = "/etc/garlicfarm"
STATE_DIRECTORY = "/var/lib/garlicfarm"
WIDTH = 100
HEAD = f"""\
# {CONFIGURATION_DIRECTORY}/node.toml: this machine's node. See also garlicfarm.toml(5), `garlicfarm help settings`.
#
# On a LAN the defaults suffice. On the first machine of a farm, `sudo garlicfarm init` makes the farm key, starts the
# service and prints the command for the other machines.
#
# A setting after a "#" shows its default, or an example if it does not have a default. After a change:
#     garlicfarm config show --config {CONFIGURATION_DIRECTORY}/node.toml && systemctl restart garlicfarm
"""
SET = {"farm_key": f"{CONFIGURATION_DIRECTORY}/farm.key", "state_dir": STATE_DIRECTORY}
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")


def text() -> str:
    """Return the whole file."""
    parts, table = [HEAD], ""
    for setting in SETTINGS.values():
        if setting.table != table:
            table = setting.table
            parts.append(f"\n#[[{table}]]\n" if table in LISTS else f"\n[{table}]\n")
        parts.append(_lines(setting))
    return "".join(parts)


def _lines(setting: Declared) -> str:
    meaning = _LINK.sub(r"\1", setting.setting.meaning)
    about = f"{meaning} ({kind_and_default(setting)})".replace("`", "")
    value = f"{setting.key} = {json.dumps(SET.get(setting.path, _example(setting)), ensure_ascii=False)}"
    comments = "".join(f"# {line}\n" for line in textwrap.wrap(about, WIDTH))
    return f"\n{comments}{'' if setting.path in SET else '#'}{value}\n"


def kind_and_default(setting: Declared) -> str:
    """Return the form of a value and the default, as text."""
    default = setting.default_text
    return f"{setting.kind_text}; {default if default == 'required' else f'default: {default}'}"


def _example(setting: Declared) -> object:
    """Return the default, or an example for a setting without one. Of these types, JSON is TOML."""
    default = None if setting.value is MISSING else shown(setting.value)
    if default not in (None, []):
        return default
    if setting.setting.example or setting.kind is Form.TEXTS:
        return setting.setting.example or []
    path = f"{CONFIGURATION_DIRECTORY}/{setting.path.replace('.', '-').replace('_', '-')}"
    return path if setting.kind is Form.FILE else ""
