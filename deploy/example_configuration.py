"""The configuration that the packages bring: every setting with its meaning and its default, from the settings' table.

Two settings are set, since a service keeps its files elsewhere than a user. Each other one stands behind a `#`, with
its default, or with an example where it has none. The names of tables are no comments, so that a line needs no more
than its `#` taken away. Only `[[master]]` and `[[leaf]]` are: each of these begins another master or leaf.
"""

import json
import re
import textwrap

from bridge.node.settings.table import SETTINGS, Kind, Setting

CONFIGURATION_DIRECTORY = "/etc/garlicfarm"
STATE_DIRECTORY = "/var/lib/garlicfarm"
WIDTH = 100
Value = bool | int | str | list[str] | None
HEAD = f"""\
# {CONFIGURATION_DIRECTORY}/node.toml: this machine's node. See also garlicfarm.toml(5), `garlicfarm help settings`.
#
# On a LAN nothing needs to be changed: the node finds the others by broadcast. What it does need is the farm's key,
# made on one node and copied to the others:
#     garlicfarm keys new-farm --expect 3 --output {CONFIGURATION_DIRECTORY}/farm.key
#     systemctl start garlicfarm
#
# A setting behind a "#" shows its default, or an example where it has none. After a change:
#     garlicfarm config show --config {CONFIGURATION_DIRECTORY}/node.toml && systemctl restart garlicfarm
"""
SET = {"farm_key": f"{CONFIGURATION_DIRECTORY}/farm.key", "state_dir": STATE_DIRECTORY}
REPEATED = ("master", "leaf")
EXAMPLES: dict[str, str | list[str]] = {
    "name": "router-1",
    "gossip.bind": "192.168.1.10:7668",
    "gossip.advertise": "192.168.1.10:7668",
    "gossip.seeds": ["192.168.1.11:7668", "192.168.1.12:7668"],
    "gossip.broadcast": "auto",
    "consensus.bind": "192.168.1.10:7669",
    "consensus.advertise": "192.168.1.10:7669",
    "consensus.seeds": ["name.b32.i2p:7669"],
    "proxy.address": "127.0.0.1:4444",
    "router.directory": f"{STATE_DIRECTORY}/published",
    "router.i2cp": "127.0.0.1:7654",
    "router.i2pcontrol": "http://127.0.0.1:7657",
    "control.listen": "192.168.1.10:7670",
    "leaf.destination": "base64 of the destination of a server tunnel",
    "leaf.probe": "127.0.0.1:8080",
    "master.destination": "base64 of the master's destination",
    "zmq.listen": "tcp://127.0.0.1:7671",
    "zmq.broadcast": "tcp://127.0.0.1:7672",
    "zmq.peers": ["tcp://192.168.1.11:7671"],
    "zmq.ident": "the cluster's name",
}
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")


def text() -> str:
    """The whole file."""
    parts, table = [HEAD], ""
    for key, setting in SETTINGS.items():
        own_table = key.rpartition(".")[0]
        if own_table != table:
            table = own_table
            parts.append(f"\n#[[{table}]]\n" if table in REPEATED else f"\n[{table}]\n")
        parts.append(_lines(key, setting))
    return "".join(parts)


def _lines(key: str, setting: Setting) -> str:
    meaning = _LINK.sub(r"\1", setting.meaning).replace("`", "")
    told = setting.told.replace("`", "") or _toml(setting.default)
    default = told if told == "required" else f"default: {told}"
    about = textwrap.wrap(f"{meaning} ({kind_of(setting)}; {default})", WIDTH)
    name = key.rpartition(".")[2]
    value = f"{name} = {_toml(SET.get(key, _example(key, setting)))}"
    return "\n" + "".join(f"# {line}\n" for line in about) + ("" if key in SET else "#") + f"{value}\n"


def kind_of(setting: Setting) -> str:
    """What may stand behind the equals sign, in words."""
    match setting.kind:
        case Kind.INTEGER:
            return f"{setting.least} to {setting.most}"
        case Kind.WORD:
            return " or ".join(f'"{word}"' for word in setting.words)
        case _:
            return str(setting.kind.value)


def _example(key: str, setting: Setting) -> Value:
    if setting.default is not None:
        return setting.default
    if key in EXAMPLES:
        return EXAMPLES[key]
    match setting.kind:
        case Kind.FILE:
            return f"{CONFIGURATION_DIRECTORY}/{key.replace('.', '-').replace('_', '-')}"
        case Kind.TEXTS:
            return []
        case _:
            return ""


def _toml(value: Value) -> str:
    """Of these kinds, JSON is TOML."""
    return json.dumps(value, ensure_ascii=False)
