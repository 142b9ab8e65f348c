"""docs/reference/settings.md out of the table of settings."""

from bridge.node.settings.table import SETTINGS, Kind, Setting

HEAD = """# Settings

`garlicfarm run --farm-key FILE` needs nothing else on a LAN. `garlicfarm run --config FILE` reads a TOML file. Every
setting but `farm_key` has a default. An unknown key or a bad value is refused and named with its place. A relative path
is relative to the file. `garlicfarm config show --config FILE` prints all settings with their defaults.

See also: [key files](key-files.md), [routers](routers.md), [handshake and users](transports.md),
[control endpoint over TCP](control-endpoint.md#over-tcp), [several masters](../how-to/several-masters.md),
[over I2P](../how-to/over-i2p.md).
"""
TABLES = {
    "": "At the top of the file",
    "gossip": "`[gossip]`",
    "consensus": "`[consensus]`",
    "proxy": "`[proxy]`",
    "publishing": "`[publishing]`",
    "master": "`[[master]]`",
    "router": "`[router]`",
    "leaf": "`[[leaf]]`",
    "control": "`[control]`",
    "log": "`[log]`",
    "zmq": "`[zmq]`",
    "kafka": "`[kafka]`",
}


def page() -> str:
    """The document."""
    parts = [HEAD]
    for table, heading in TABLES.items():
        rows = [each for key, each in SETTINGS.items() if key.rpartition(".")[0] == table]
        parts += [f"\n## {heading}\n\n| key | type | default | meaning |\n|---|---|---|---|\n", *map(_row, rows)]
    return "".join(parts)


def _row(setting: Setting) -> str:
    return f"| `{setting.key}` | {_type(setting)} | {_default(setting)} | {setting.meaning} |\n"


def _type(setting: Setting) -> str:
    match setting.kind:
        case Kind.INTEGER:
            return f"{setting.least:,} to {setting.most:,}"
        case Kind.WORD:
            return ", ".join(f'`"{word}"`' for word in setting.words)
        case Kind.TEXTS:
            return f"{setting.kind.value}, at most {setting.most}"
        case _:
            return str(setting.kind.value)


def _default(setting: Setting) -> str:
    if setting.told:
        return setting.told
    match setting.default:
        case bool(value):
            return f"`{str(value).lower()}`"
        case int(value):
            return str(value)
        case value:
            return f'`"{value}"`'
