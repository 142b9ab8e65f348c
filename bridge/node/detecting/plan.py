"""The changes of a node's configuration for a found router: `[router]`, and a `[[leaf]]` for each chosen tunnel.

    tunnels ─▶ usable, started by the router, not a master's own address, not a leaf already ─▶ choices
    choices of one service ─▶ all are chosen; of several services ─▶ the operator chooses
    names given by `--tunnel` ─▶ exactly these, or a PlanError with the reason

All leaves of a farm serve the same content. So tunnels to different services become leaves of one farm only if the
operator chooses them.

The plan omits services that are off from `[router]`, except I2CP, which a node needs. An existing setting stays unless
the plan has a value for it or lists it as absent.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from bridge.node.detecting.found import FoundRouter, FoundTunnel, ServiceState
from bridge.node.settings.choices import RouterKind
from bridge.node.settings.configuration import LEAVES
from bridge.node.settings.masters import LeafSettings
from bridge.node.settings.reader import Section
from bridge.node.settings.router import ControlUrl, RouterSettings, read_router
from gossip import Address
from gossip.node import endpoint

MORE_LEAVES: Final = "the node has a leaf already; `--tunnel` adds this one, if it leads to the same service"
NOT_NAMED: Final = "`--tunnel` does not name it"
NOT_STARTED: Final = "the router does not start it"
OF_MASTER: Final = "it has the address of the farm itself: give the service another tunnel, and stop this one"
OF_LEAF: Final = "it is a leaf already"
_UNLESS_NAMED: Final = frozenset({MORE_LEAVES, NOT_STARTED})
CERTIFICATE_FILE: Final = "router-i2cp.crt"
"""The copy of the router's certificate: the node's user may not read the router's directory."""
_CERTIFICATE_KEY: Final = "i2cp_certificate"
_FILE_ONLY: Final = "directory"
_WANTED_SAM: Final = frozenset({ServiceState.ON, ServiceState.NOT_LISTENING})


class PlanError(ValueError):
    """The settings for a router cannot be made; the text contains the reason and the remedy."""


class Plan(Struct, frozen=True):
    """The settings to write."""

    router: Mapping[str, Any]
    """The values in `[router]`."""
    absent: tuple[str, ...]
    """The keys of `[router]` that become comments."""
    leaves: tuple[Mapping[str, Any], ...]
    """The new tables `[[leaf]]`."""
    tunnels: tuple[FoundTunnel, ...]
    """Tunnels of the leaves."""


def reason_against(tunnel: FoundTunnel, masters: Collection[str], leaves: Collection[str]) -> str:
    """Return the reason not to choose a tunnel automatically; empty without a reason."""
    if tunnel.destination is None or tunnel.problem:
        return tunnel.problem
    if tunnel.destination.base64 in masters:
        return OF_MASTER
    if tunnel.destination.base64 in leaves:
        return OF_LEAF
    if not tunnel.tunnel.is_started:
        return NOT_STARTED
    return MORE_LEAVES if leaves else ""


def choices(router: FoundRouter, masters: Collection[str], leaves: Collection[str]) -> tuple[FoundTunnel, ...]:
    """Return the tunnels without a reason against them, one for each address."""
    found: dict[str, FoundTunnel] = {}
    for each in router.tunnels:
        if each.destination is not None and not reason_against(each, masters, leaves):
            found.setdefault(each.destination.base64, each)
    return tuple(found.values())


def is_one_service(tunnels: Sequence[FoundTunnel]) -> bool:
    """Return True if all tunnels lead to the same service, so that no choice is needed."""
    return len({(each.tunnel.host, each.tunnel.port) for each in tunnels}) <= 1


def named_tunnels(
    router: FoundRouter, names: Sequence[str], masters: Collection[str], leaves: Collection[str]
) -> tuple[FoundTunnel, ...]:
    """Return the tunnels with these names, without existing leaves; raise PlanError if one cannot be chosen."""
    known: dict[str, FoundTunnel] = {}
    for each in router.tunnels:
        known.setdefault(each.tunnel.name, each)
    chosen: dict[str, FoundTunnel] = {}
    for name in names:
        if name not in known:
            there = f"; there are {', '.join(known)}" if known else "; it does not have any"
            raise PlanError(f"the router does not have a server tunnel {name!r}{there}")
        tunnel = known[name]
        reason = reason_against(tunnel, masters, leaves)
        if tunnel.destination is None or reason not in {"", *_UNLESS_NAMED, OF_LEAF}:
            raise PlanError(f"the tunnel {name} cannot be a leaf: {reason}")
        if reason != OF_LEAF:
            chosen.setdefault(tunnel.destination.base64, tunnel)
    return tuple(chosen.values())


def make_plan(router: FoundRouter, tunnels: tuple[FoundTunnel, ...], password_file: str | None) -> Plan:
    """Return the settings for a router; `password_file` is the file with the accepted password of I2PControl."""
    values: dict[str, Any] = {
        "kind": RouterKind.I2CP.value,
        "software": router.software.value,
        "i2cp": str(router.i2cp.link),
    }
    absent = [_FILE_ONLY]
    if router.i2cp.is_encrypted:
        if router.i2cp.certificate is None:
            raise PlanError(
                f"the router's I2CP uses TLS, and its certificate below {router.directory} is not readable: run the"
                " command with `sudo`"
            )
        values[_CERTIFICATE_KEY] = CERTIFICATE_FILE
    else:
        absent.append(_CERTIFICATE_KEY)
    if password_file is not None:
        values["i2pcontrol"] = str(control_url(router))
        values["i2pcontrol_password_file"] = password_file
    if router.sam.state in _WANTED_SAM:
        values["sam"] = str(router.sam.link)
    return Plan(values, tuple(absent), tuple(_leaf(each) for each in tunnels), tunnels)


def control_url(router: FoundRouter) -> ControlUrl:
    """Return the URL of the router's I2PControl, with the usual path of its software."""
    return ControlUrl(router.i2pcontrol.link, router.i2pcontrol.is_encrypted)


def _leaf(tunnel: FoundTunnel) -> dict[str, Any]:
    assert tunnel.destination is not None  # noqa: S101 - chosen tunnels have one
    values = {"destination": tunnel.destination.base64}
    probe = probe_of(tunnel)
    return values if probe is None else values | {"probe": probe}


def probe_of(tunnel: FoundTunnel) -> str | None:
    """Return the address of the tunnel's service; None if a node cannot probe it."""
    found = tunnel.tunnel
    probe = endpoint(Address(found.host, found.port))
    problems: list[str] = []
    Section({"destination": "", "probe": probe}, "leaf", problems, Path("/"), []).values(LeafSettings)
    return None if any(each.startswith("leaf.probe") for each in problems) else probe


def settings_of(
    table: Mapping[str, Any], directory: Path
) -> tuple[RouterSettings, tuple[LeafSettings, ...], list[str]]:
    """Return the router and the leaves in a configuration, and the problems of these two parts."""
    problems: list[str] = []
    root = Section(dict(table), "", problems, directory, [])
    router = read_router(root.section("router"), directory, demo=table.get("demo") is True)
    leaves = tuple(each.read(LeafSettings) for each in root.sections(LEAVES))
    return router, leaves, problems
