"""Each declared setting is read by some configuration, and a configuration of all of them is the table."""

from pathlib import Path

import pytest

from bridge.node.settings.configuration import ConfigurationError, load_configuration
from bridge.node.settings.reader import Section
from bridge.node.settings.table import SETTINGS

CONFIGURATIONS = (
    'farm_key = "k"',
    'farm_key = "k"\ntransport = "i2p"\n[proxy]\naddress = "127.0.0.1:4444"',
    'farm_key = "k"\n[router]\nkind = "i2cp"\n[[master]]\n[[leaf]]',
)
SECTIONS = {"gossip", "consensus", "proxy", "publishing", "router", "control", "master", "leaf", "log", "zmq", "kafka"}
REFUSED = {"consensus.plain"}
"""A key that the reader knows only to say why it is no setting."""


def test_every_declared_setting_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[str] = set()
    take = Section._take

    def noted(section: Section, key: str) -> object:
        read.add(section._name(key).replace("[0]", ""))
        return take(section, key)

    monkeypatch.setattr(Section, "_take", noted)
    for number, text in enumerate(CONFIGURATIONS):
        path = tmp_path / f"{number}.toml"
        path.write_text(text)
        try:
            load_configuration(path)
        except ConfigurationError:
            continue
    assert read - SECTIONS - REFUSED == SETTINGS.keys()
