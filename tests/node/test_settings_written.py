"""The settings that `config show` prints are a file with the same meaning."""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from bridge.node.settings.bundle import toml_text
from bridge.node.settings.configuration import SETTINGS, load_configuration
from bridge.node.settings.declared import written
from bridge.wire.i2p.destination_keys import new_master_key
from tests.destinations import new_demo_leaf
from tests.effort import each_case

LEAF, MASTER = new_demo_leaf(), new_master_key().destination
PLAIN = 'farm_key = "farm.key"\nstate_dir = "state"\n[gossip]\nbind = "127.0.0.1:7668"\n'
FILES = {
    "minimum": PLAIN,
    "founders": f'founders = ["{"0a" * 8}", "{"0b" * 8}"]\n' + PLAIN,
    "gossip and consensus": PLAIN + 'seeds = ["lima:7668"]\nbroadcast = "off"\ntiming = "local"\ncapacity = 7\n'
    '[consensus]\nbind = "127.0.0.1:1"\nadvertise = "10.0.0.1:2"\nsegment_bytes = 65536\nvoters_max = 3\n'
    "grace_ms = 5000\n"
    'admit = "all"\nusers_file = "users"\nlogins_file = "logins"\nca_file = "ca.pem"\ncertificate = "own.pem"\n',
    "several masters": PLAIN + f'[[master]]\nsigning_key = "a.key"\npublish = "on"\n[[master]]\ndestination = '
    f'"{MASTER.base64}"\n[[leaf]]\ndestination = "{LEAF.base64}"\nprobe = "127.0.0.1:80"\n'
    f'master = "{MASTER.address}"\n',
    "i2cp router": PLAIN + '[router]\nkind = "i2cp"\ni2cp = "127.0.0.1:7654"\ni2cp_username = "me"\n'
    'i2cp_password_file = "pw"\ni2pcontrol = "https://127.0.0.1:7650"\ni2pcontrol_password_file = "pw2"\n',
    "over I2P": 'farm_key = "k"\nstate_dir = "s"\ntransport = "i2p"\n[consensus]\nbind = "127.0.0.1:7669"\n'
    f'advertise = "{"a" * 52}.b32.i2p:7669"\nseeds = ["{"b" * 52}.b32.i2p:7669"]\n'
    '[proxy]\nuser = "u"\npassword_file = "p"\n',
    "endpoints": PLAIN + '[control]\nlisten = "127.0.0.1:7650"\nnames = ["oslo"]\nopen_health = true\npage = true\n'
    '[zmq]\nlisten = "10.0.0.1:7670"\nallow_network = true\nkeys = "keys"\nwrite = true\npeers = ["10.0.0.2:7670"]\n'
    '[kafka]\nlisten = "127.0.0.1:9092"\ntopic = "log"\ngroups = true\npeers = ["lima@10.0.0.2:9092"]\n',
}


def _keys(tables: Mapping[str, object]) -> set[str]:
    found: set[str] = set()
    for name, value in tables.items():
        for each in value if isinstance(value, list) else [value]:
            found |= {f"{name}.{key}" for key in each} if isinstance(each, dict) else {name}
    return found


@each_case("name", FILES)
def test_written_configuration_reads_as_equal(name: str, tmp_path: Path) -> None:
    file, shown = tmp_path / "node.toml", tmp_path / "shown.toml"
    file.write_text(FILES[name])
    configuration = load_configuration(file)
    shown.write_text(toml_text(written(configuration)))
    assert load_configuration(shown) == replace(configuration, is_named_by_host=False)
    assert _keys(tomllib.loads(shown.read_text())) <= SETTINGS.keys()
