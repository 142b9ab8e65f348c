"""Settings that a test writes to a configuration file, and the errors of refused ones."""

from pathlib import Path

import pytest

from bridge.node.settings.configuration import ConfigurationError, NodeConfiguration, load_configuration
from bridge.node.settings.machine import Machine, Network
from gossip.node.discovery import LanInterface

LAN = LanInterface("eth0", "192.168.7.5", "192.168.7.255")


def load(tmp_path: Path, settings: str) -> NodeConfiguration:
    """Load a file with these settings and a farm key."""
    file = tmp_path / "node.toml"
    file.write_text(f'farm_key = "farm.key"\n{settings}')
    return load_configuration(file, None, Machine("router", tmp_path / "state", Network(lambda: [LAN], lambda: None)))


def problems(tmp_path: Path, settings: str) -> str:
    """Return the error about these settings without the path of the file."""
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, settings)
    return str(caught.value).replace(f"{tmp_path / 'node.toml'}: ", "")
