"""docs/reference/settings.md, generated from the declared settings."""

from itertools import groupby

from bridge.node.settings.configuration import LISTS, SETTINGS

HEAD = """# Settings

On a LAN, `garlicfarm run --farm-key FILE` is enough. `garlicfarm run --config FILE` reads a TOML file. Every setting
except `farm_key` has a default. Unknown keys and invalid values are errors, reported with their place. A relative path
is relative to the file. `garlicfarm config show --config FILE` prints all settings with their defaults.

See also: [key files](key-files.md), [routers](routers.md), [handshake and users](transports.md),
[control endpoint over TCP](control-endpoint.md#over-tcp), [several masters](../how-to/several-masters.md),
[over I2P](../how-to/over-i2p.md).
"""


def page() -> str:
    parts = [HEAD]
    for table, settings in groupby(SETTINGS.values(), key=lambda each: each.table):
        heading = "At the top of the file" if not table else f"`[[{table}]]`" if table in LISTS else f"`[{table}]`"
        parts += [f"\n## {heading}\n\n| key | type | default | meaning |\n|---|---|---|---|\n"]
        for each in settings:
            parts.append(f"| `{each.path}` | {each.kind_text} | {each.default_text} | {each.setting.meaning} |\n")
    return "".join(parts)
