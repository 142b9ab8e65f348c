"""The places of the node of this machine: its configuration, farm key and state, with the package's unit or without.

    root, and the unit of the Debian package      /etc/garlicfarm/node.toml, farm.key; /var/lib/garlicfarm
    any other user or installation                ~/.config/garlicfarm/node.toml, farm.key; ~/.local/state/garlicfarm

`init`, `join` and `router detect` write there, and `run` and `doctor` read the configuration there without an option.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from bridge.node.security.local_trust import ROOT, SYSTEM_STATE_DIRECTORY, default_state_directory, user_directory

UNIT: Final = "garlicfarm.service"
CONFIGURATION_NAME: Final = "node.toml"
FARM_KEY_NAME: Final = "farm.key"
SYSTEM_CONFIGURATION_DIRECTORY: Final = Path("/etc/garlicfarm")
_UNIT_DIRECTORIES: Final = ("lib/systemd/system", "usr/lib/systemd/system", "etc/systemd/system")


class Places(Struct, frozen=True):
    """The files of one node."""

    directory: Path
    state_dir: Path
    is_service: bool = False
    """True if the unit of the package runs the node."""

    @property
    def configuration(self) -> Path:
        """The configuration."""
        return self.directory / CONFIGURATION_NAME

    @property
    def farm_key(self) -> Path:
        """The farm's key file."""
        return self.directory / FARM_KEY_NAME


def node_places(
    environment: Mapping[str, str] = os.environ, system: Path = Path("/"), user_id: int | None = None
) -> Places:
    """Return the places for this user; `system` is the root of the file system."""
    is_root = (os.geteuid() if user_id is None else user_id) == ROOT
    if is_root and has_service(system):
        below = (each.relative_to("/") for each in (SYSTEM_CONFIGURATION_DIRECTORY, SYSTEM_STATE_DIRECTORY))
        directory, state_dir = (system / each for each in below)
        return Places(directory, state_dir, is_service=True)
    return Places(user_directory("XDG_CONFIG_HOME", ".config", environment), default_state_directory(environment))


def has_service(system: Path = Path("/")) -> bool:
    """Return True if the unit of the package is installed."""
    return any((system / each / UNIT).exists() for each in _UNIT_DIRECTORIES)


def default_configuration() -> Path | None:
    """Return the configuration of this machine's node, if there is one."""
    found = node_places().configuration
    try:
        return found if found.is_file() else None
    except OSError:
        return None
