"""A configuration as the TOML that would say all of it: the inverse of reading one.

    file ──▶ load_configuration ──▶ NodeConfiguration ──▶ settings_table ──▶ TOML ──▶ the same NodeConfiguration

`garlicfarm config show` prints it, so that what an operator sees can be put into a file: its keys are those of
`docs/reference/settings.md`, where a dump of the objects in memory would have keys that no file has. What a setting is
by being absent (no proxy, no certificate) stays absent. Keys are named by their files, as in every configuration.
"""

from base64 import b32encode
from collections.abc import Mapping
from typing import Any

from bridge.node.router.link import Link
from bridge.node.router.router import Leaf
from bridge.node.settings.configuration import NodeConfiguration
from bridge.node.settings.control import ControlSettings
from bridge.node.settings.kafka import KafkaSettings
from bridge.node.settings.masters import MasterSettings
from bridge.node.settings.router import I2cpSettings, RouterSettings
from bridge.node.settings.transport import TransportSettings
from bridge.node.settings.zmq import ZmqSettings
from consensus.protocols.garlic_farm import is_loopback
from gossip import Address
from gossip.node import endpoint

Table = dict[str, Any]


def settings_table(configuration: NodeConfiguration) -> Table:
    """Every setting that has a value, by its key in a file; tables are mappings, and lists of them."""
    transport = configuration.transport
    return _told(
        {
            "name": configuration.name,
            "state_dir": str(configuration.state_dir),
            "farm_key": str(configuration.farm_key),
            "founders": sorted(each.hex() for each in configuration.founders),
            "demo": configuration.demo,
            "transport": transport.kind.value,
            "gossip": _gossip(configuration),
            "consensus": _consensus(configuration),
            "proxy": _proxy(transport),
            "publishing": {
                "pace": configuration.publishing.pace.value,
                "reporting_period_ms": configuration.publishing.reporting_period_ms,
            },
            "router": _router(configuration.router),
            "control": None if configuration.control is None else _control(configuration.control),
            "log": {"format": configuration.log.format.value, "level": configuration.log.level.value},
            "zmq": None if configuration.zmq is None else _zmq(configuration.zmq),
            "kafka": None if configuration.kafka is None else _kafka(configuration.kafka),
            "master": [_master(each) for each in configuration.masters],
            "leaf": [_leaf(each) for each in configuration.leaves],
        }
    )


def _told(values: Mapping[str, Any]) -> Table:
    """Without what is absent."""
    return {key: value for key, value in values.items() if value is not None and value not in ([], {})}


def _at(address: Address | None) -> str | None:
    return None if address is None else endpoint(address)


def _path(value: object) -> str | None:
    return None if value is None else str(value)


def _gossip(configuration: NodeConfiguration) -> Table | None:
    gossip = configuration.gossip
    if gossip is None:
        return None
    return _told(
        {
            "bind": _at(gossip.bind),
            "advertise": _at(gossip.advertise),
            "seeds": list(gossip.seeds),
            "broadcast": _at(gossip.broadcast) or "off",
            "capacity": gossip.capacity,
            "timing": gossip.timing.value,
            "allow_wan": gossip.allow_wan,
        }
    )


def _consensus(configuration: NodeConfiguration) -> Table:
    consensus, transport = configuration.consensus, configuration.transport
    return _told(
        {
            "bind": _at(consensus.bind),
            "advertise": _at(consensus.advertise),
            "timing": consensus.timing.value,
            "seeds": [endpoint(each) for each in transport.seeds],
            "ca_file": _path(transport.ca_file),
            "certificate": _path(transport.certificate),
            "users_file": _path(transport.users.users_file),
            "logins_file": _path(transport.users.logins_file),
            "segment_bytes": consensus.segment_bytes,
            "voters_max": consensus.voters_max,
            "grace_ms": consensus.grace_ms,
            "admit": consensus.admit.value,
        }
    )


def _proxy(transport: TransportSettings) -> Table | None:
    proxy = transport.proxy
    if proxy is None:
        return None
    return _told(
        {
            "address": _at(proxy.address),
            "mode": proxy.mode.value,
            "user": proxy.user,
            "password_file": _path(proxy.password_file),
        }
    )


def _router(router: RouterSettings) -> Table:
    if router.i2cp is None:
        return {"kind": router.kind.value, "directory": str(router.directory)}
    return {"kind": router.kind.value, **_i2cp(router.i2cp)}


def _i2cp(settings: I2cpSettings) -> Table:
    control = settings.control
    return _told(
        {
            "software": settings.software.value,
            "i2cp": str(settings.link),
            "i2cp_certificate": _path(settings.link.certificate),
            "i2cp_username": settings.username,
            "i2cp_password_file": _path(settings.password_file),
            "i2pcontrol": None if control is None else _url(control, settings.control_path),
            "i2pcontrol_certificate": None if control is None else _path(control.certificate),
            "i2pcontrol_password_file": _path(settings.control_password_file),
        }
    )


def _url(control: Link, path: str) -> str:
    encrypted = control.certificate is not None or control.unchecked_tls
    return f"{'https' if encrypted else 'http'}://{control}{path}"


def _control(control: ControlSettings) -> Table:
    return _told(
        {
            "listen": _at(control.listen),
            "names": list(control.names),
            "certificate": _path(control.certificate),
            "open_health": control.open_health,
            "page": control.page,
        }
    )


def _zmq(zmq: ZmqSettings) -> Table:
    return _told(
        {
            "listen": zmq.url,
            "broadcast": _at(zmq.broadcast),
            "allow_network": not all(
                is_loopback(each.host) for each in (zmq.listen, zmq.broadcast) if each is not None
            ),
            "write": zmq.write,
            "ident": zmq.ident,
            "peers": list(zmq.peers),
            "keys": _path(zmq.keys),
        }
    )


def _kafka(kafka: KafkaSettings) -> Table:
    return _told(
        {
            "listen": _at(kafka.listen),
            "advertise": _at(kafka.advertise),
            "allow_network": not is_loopback(kafka.listen.host),
            "topic": kafka.topic,
            "write": kafka.write,
            "groups": kafka.groups,
            "control_records": kafka.control_records,
            "peers": [f"{each.name}@{endpoint(each.address)}" for each in kafka.peers],
            "certificate": _path(kafka.certificate),
            "client_ca": _path(kafka.client_ca),
            "users": _path(kafka.users),
        }
    )


def _master(master: MasterSettings) -> Table:
    return _told(
        {
            "signing_key": _path(master.signing_key),
            "destination": None if master.destination is None else master.destination.base64,
            "publish": master.publish.value,
        }
    )


def _leaf(leaf: Leaf) -> Table:
    behind = leaf.master_hash
    return _told(
        {
            "destination": leaf.destination.base64,
            "probe": None if leaf.probe is None else endpoint(Address(*leaf.probe)),
            "master": None if behind is None else f"{b32encode(behind).decode().lower().rstrip('=')}.b32.i2p",
        }
    )
