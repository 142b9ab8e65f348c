"""The checks of the router in `garlicfarm doctor`: its replies, its clock and its status interface.

Nothing is published and no session is made: a session for the master destination would replace the session of the
running node.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import trio
from msgspec.structs import replace

from bridge.api.outputs import Check, CheckResult
from bridge.node.doctor.leaf_checks import ROUTER, leaf_checks
from bridge.node.router.i2cp_connection import RouterDate, open_i2cp
from bridge.node.router.i2cp_publishing import I2cpAccess
from bridge.node.router.i2cp_router import CLOCK_LIMIT_MS, key_obstacle, other_software
from bridge.node.router.i2pcontrol import I2PControl
from bridge.node.router.link import ControlAccess, Link, RouterAbsent, RouterLost, Software
from bridge.node.router.router import ServedLeaf
from bridge.node.security.key_files import KeyFileError, load_signing_key
from bridge.node.settings.router import FileRouterSettings, RouterSettings
from bridge.sam.connection import SamAbsentError, SamBridge, SamError, open_connection

STATUS, SAM = "router status", "router sam"


def router_checks(
    settings: RouterSettings, signing_keys: Sequence[Path], leaves: Sequence[ServedLeaf] = (), *, demo: bool = False
) -> list[Check]:
    """Check the router and its leaves over the connections that a node uses.

    In a demonstration a file replaces the router, and leaves do not have a service.
    """
    if isinstance(settings, FileRouterSettings):
        action = "next to a router: `garlicfarm router detect`; for other routers: `garlicfarm help attach-a-router`"
        text = f"none: structures are written to {settings.directory}, and outside a demonstration no leaf is healthy"
        checks = [Check(ROUTER, CheckResult.WARNING, text, action)]
        return checks if demo else [*checks, *trio.run(leaf_checks, leaves, None)]
    try:
        access = settings.access()
    except KeyFileError as error:
        return [Check(ROUTER, CheckResult.PROBLEM, str(error), "write the password into that file, with mode 0600")]
    checks = trio.run(_query, access.i2cp, access.control, settings.sam, leaves)
    return [*checks, *_key_checks(access.i2cp, signing_keys)]


def _key_checks(access: I2cpAccess, signing_keys: Sequence[Path]) -> Iterator[Check]:
    """Report keys that cannot publish through this router, with the reason that the node reports to the farm."""
    for path in signing_keys:
        with suppress(KeyFileError):  # The check of the signing key reports this error.
            obstacle = key_obstacle(access, load_signing_key(path))
            if obstacle is not None:
                action = "the farm never chooses this node as the publisher: follow the text"
                yield Check("router key", CheckResult.PROBLEM, f"{path}: {obstacle}", action)


async def _query(
    i2cp: I2cpAccess, control: ControlAccess | None, sam: Link | None, leaves: Sequence[ServedLeaf]
) -> list[Check]:
    is_absent = False
    try:
        async with open_i2cp(i2cp.link, i2cp.credentials) as (connection, date):
            found, of_leaves = [_clock_check(i2cp, date)], await leaf_checks(leaves, connection)
    except RouterLost as error:
        is_absent = isinstance(error, RouterAbsent)
        action = (
            "start the router, switch its I2CP port on, and check router.i2cp (Java: 7654; i2pd: [i2cp] in its file)"
            " and router.i2cp_certificate"
        )
        found, of_leaves = [Check(ROUTER, CheckResult.PROBLEM, str(error), action)], await leaf_checks(leaves, None)
    services = ((control, await _status_check(control)), (sam, await sam_check(sam)))
    # A router that answers at one port runs: each closed port then has its own cause.
    runs = not is_absent or any(access is not None and not check.cause for access, check in services)
    return [*found, *(replace(check, cause="") if runs else check for _, check in services), *of_leaves]


def _clock_check(access: I2cpAccess, date: RouterDate) -> Check:
    # i2pd replies with the version in the request, not with its own version.
    version = f", I2CP {date.version}" if date.version and access.software is Software.JAVA else ""
    text = f"{access.link} answers{version}; its clock differs by {date.difference_ms / 1000:+.1f} s"
    if abs(date.difference_ms) >= CLOCK_LIMIT_MS:
        return Check(ROUTER, CheckResult.PROBLEM, text, "correct the clocks (NTP) of the router and of this machine")
    other = other_software(access, date)
    if other is not None:
        return Check(ROUTER, CheckResult.PROBLEM, other, "follow the text; before that, this node does not publish")
    if access.software is Software.I2PD and not date.is_from_i2pd:
        action = 'if it is a Java router, set [router] software = "java"; otherwise it ends the sessions of this node'
        return Check(ROUTER, CheckResult.WARNING, f"{text}; it does not reply like i2pd", action)
    return Check(ROUTER, CheckResult.OK, text)


async def sam_check(sam: Link | None) -> Check:
    """Check the SAM bridge, without a session. Without SAM only the node's directory does not work."""
    if sam is None:
        text = "router.sam is off: this node does not return structures to clients (`garlicfarm link`)"
        return Check(SAM, CheckResult.OK, text)
    try:
        connection = await open_connection(SamBridge(sam.host, sam.port))
    except SamError as error:
        action = 'enable SAM in the router, correct router.sam, or set it to "off": the farm works without SAM, too'
        cause = ROUTER if isinstance(error, SamAbsentError) else ""
        return Check(SAM, CheckResult.WARNING, str(error), action, cause)
    await trio.aclose_forcefully(connection.stream)
    return Check(SAM, CheckResult.OK, f"{sam} answers: clients can get structures from this node")


async def _status_check(access: ControlAccess | None) -> Check:
    if access is None:
        action = "set router.i2pcontrol and router.i2pcontrol_password_file; without it each unknown figure counts half"
        return Check(
            STATUS, CheckResult.WARNING, "not queried: the router's uptime, load and tunnels stay unknown", action
        )
    try:
        facts = await I2PControl(access).facts()
    except RouterLost as error:
        action = (
            "switch I2PControl on (Java: a web application of the console; i2pd: [i2pcontrol]), and check the password"
            " and router.i2pcontrol_certificate"
        )
        cause = ROUTER if isinstance(error, RouterAbsent) else ""
        return Check(STATUS, CheckResult.PROBLEM, str(error), action, cause)
    uptime = "unknown" if facts.report.uptime_ms is None else f"{facts.report.uptime_ms // 60_000} min"
    text = f"{access.link}: version {facts.version or 'unknown'}, up for {uptime}, status {facts.status or 'unknown'}"
    if facts.network_error is not None:
        return Check(STATUS, CheckResult.WARNING, f"{text}; {facts.network_error}", "see the router's own console")
    return Check(STATUS, CheckResult.OK, text)
