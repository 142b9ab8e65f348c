"""What `doctor` and a running node look at between servers: the certificate's end, the files of users, the proxy.

A certificate of the node's own making ends after ten years and is made anew by a restart; one of an authority ends when
the authority said so, and then no server of the farm connects to this one any more. So a month before, it is an alarm.
"""

import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import trio

from bridge.node.doctor.check import Check, Result
from bridge.node.events.alarms import Alarms
from bridge.node.raft.users import UsersError, read_files, read_password
from bridge.node.settings.configuration import NodeConfiguration
from bridge.node.settings.transport import ProxySettings
from consensus.net import CERTIFICATE_FILE, CertificateError, NodeCertificate, operators_certificate
from gossip.node.endpoints import endpoint

ALARM = "certificate"
WARN_BEFORE = timedelta(days=30)
LOOK_EVERY_S = 3_600.0
CONNECT_TIMEOUT_S = 3.0
RENEW_OWN = "restart this node: it makes a new one, and gossip announces it"
RENEW_SIGNED = "have the authority sign a new one, put it in [consensus] certificate, and restart this node"


def transport_checks(configuration: NodeConfiguration) -> list[Check]:
    """What `doctor` says of the way to other servers."""
    return [*_certificate_checks(configuration), *_users_checks(configuration), *_proxy_checks(configuration)]


def judged(certificate: NodeCertificate, now: datetime, *, signed: bool) -> Check:
    """How long a certificate will serve."""
    action = RENEW_SIGNED if signed else RENEW_OWN
    try:
        ends = certificate.ends()
    except CertificateError as error:
        return Check("certificate", Result.PROBLEM, str(error), action)
    text = f"{certificate.path} is valid until {ends:%Y-%m-%d}"
    if ends <= now:
        return Check("certificate", Result.PROBLEM, f"{text}: no server connects to this one", action)
    if ends - now < WARN_BEFORE:
        return Check("certificate", Result.WARNING, text, action)
    return Check("certificate", Result.OK, text)


async def watch_certificate(certificate: NodeCertificate | None, alarms: Alarms, *, signed: bool) -> None:
    """Have an alarm stand from a month before the end, until cancelled."""
    while certificate is not None:
        look_at_certificate(certificate, alarms, signed=signed)
        await trio.sleep(LOOK_EVERY_S)


def look_at_certificate(certificate: NodeCertificate, alarms: Alarms, *, signed: bool) -> None:
    """Raise the alarm, or take it back."""
    found = judged(certificate, datetime.now(UTC), signed=signed)
    if found.result is Result.OK:
        alarms.clear(ALARM)
    else:
        alarms.set(ALARM, found.text, found.action)


def _certificate_checks(configuration: NodeConfiguration) -> Iterator[Check]:
    transport, now = configuration.transport, datetime.now(UTC)
    if transport.certificate is not None:
        try:
            yield judged(operators_certificate(transport.certificate), now, signed=True)
        except CertificateError as error:
            yield Check("certificate", Result.PROBLEM, str(error), RENEW_SIGNED)
    elif transport.proxy is None and (configuration.state_dir / CERTIFICATE_FILE).exists():
        yield judged(NodeCertificate(configuration.state_dir / CERTIFICATE_FILE, b""), now, signed=False)


def _users_checks(configuration: NodeConfiguration) -> Iterator[Check]:
    users = configuration.transport.users
    named = [str(path) for path in (users.users_file, users.logins_file) if path is not None]
    if named:
        try:
            read_files(users)
        except UsersError as error:
            yield Check("users", Result.PROBLEM, str(error), "mend the file; docs/reference/transports.md has its form")
        else:
            yield Check("users", Result.OK, f"{' and '.join(named)} can be read")


def _proxy_checks(configuration: NodeConfiguration) -> Iterator[Check]:
    proxy = configuration.transport.proxy
    if proxy is not None:
        yield _proxy_check(proxy)


def _proxy_check(proxy: ProxySettings) -> Check:
    shown = f"the HTTP proxy {endpoint(proxy.address)}"
    try:
        if proxy.password_file is not None:
            read_password(proxy.password_file)
        socket.create_connection((proxy.address.host, proxy.address.port), CONNECT_TIMEOUT_S).close()
    except UsersError as error:
        return Check("proxy", Result.PROBLEM, str(error), "mend [proxy] password_file")
    except OSError as error:
        action = "start the I2P router's HTTP client proxy there, or set [proxy] address"
        return Check("proxy", Result.PROBLEM, f"{shown} does not answer: {error.strerror or error}", action)
    return Check("proxy", Result.OK, f"{shown} answers")
