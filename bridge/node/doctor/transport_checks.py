"""The checks of connections to servers and clients: certificate, files of users, proxy, ØMQ, Kafka."""

import socket
from collections.abc import Iterator
from datetime import UTC, datetime

from bridge.api.alarms import CERTIFICATE, KAFKA_CERTIFICATE
from bridge.api.outputs import Check, CheckResult
from bridge.node.client_endpoints import KAFKA, ZMQ, Extra
from bridge.node.kafka.listed_users import read_listed_users
from bridge.node.raft.users import read_files, read_password
from bridge.node.security.certificates import validity_of
from bridge.node.security.key_files import KeyFileError
from bridge.node.settings.configuration import NodeConfiguration
from bridge.node.settings.network import ProxySettings
from bridge.node.zmq.listed_keys import read_listed_keys
from consensus.net import CERTIFICATE_FILE, CertificateError, NodeCertificate, operator_certificate, server_context
from consensus.protocols.garlic_farm import is_loopback
from gossip.node import endpoint

CONNECT_TIMEOUT_S = 3.0


def transport_checks(configuration: NodeConfiguration) -> list[Check]:
    """Check the settings and files for connections to servers and clients."""
    return [
        *_certificate_checks(configuration),
        *_users_checks(configuration),
        *_proxy_checks(configuration),
        *_zmq_checks(configuration),
        *_kafka_checks(configuration),
    ]


def _judged(certificate: NodeCertificate) -> Check:
    found = validity_of(certificate, datetime.now(UTC))
    if not found.needs_action:
        return Check("certificate", CheckResult.OK, found.text)
    return Check(
        "certificate", CheckResult.PROBLEM if found.is_unusable else CheckResult.WARNING, found.text, CERTIFICATE.remedy
    )


def _certificate_checks(configuration: NodeConfiguration) -> Iterator[Check]:
    certificate = configuration.consensus.certificate
    if certificate is not None:
        try:
            yield _judged(operator_certificate(certificate))
        except CertificateError as error:
            yield Check("certificate", CheckResult.PROBLEM, str(error), CERTIFICATE.remedy)
    elif configuration.proxy is None and (path := configuration.state_dir / CERTIFICATE_FILE).exists():
        try:
            NodeCertificate(path, b"").dates()
        except CertificateError as error:
            action = "move it away and start the node: it makes a new one and announces it"
            yield Check("certificate", CheckResult.PROBLEM, str(error), action)
        else:
            yield Check("certificate", CheckResult.OK, f"{path} is this node's own: its dates do not count")


def _users_checks(configuration: NodeConfiguration) -> Iterator[Check]:
    files = configuration.consensus.users_file, configuration.consensus.logins_file
    named = [str(path) for path in files if path is not None]
    if named:
        try:
            read_files(*files)
        except KeyFileError as error:
            yield Check(
                "users", CheckResult.PROBLEM, str(error), "correct the file; `garlicfarm help transports` has its form"
            )
        else:
            yield Check("users", CheckResult.OK, f"{' and '.join(named)} can be read")


def _proxy_checks(configuration: NodeConfiguration) -> Iterator[Check]:
    if configuration.proxy is not None:
        yield _proxy_check(configuration.proxy)


def _zmq_checks(configuration: NodeConfiguration) -> Iterator[Check]:
    settings = configuration.zmq
    if settings is None:
        return
    if (problem := _missing(ZMQ)) is not None:
        yield problem
        return
    try:
        keys = () if settings.keys is None else read_listed_keys(settings.keys)
    except KeyFileError as error:
        yield Check("zmq", CheckResult.PROBLEM, str(error), "correct the file, or name another with [zmq] keys")
        return
    reach = _reach(settings.listen.host, "keys", None if settings.keys is None else len(keys))
    may = "may write entries that their scopes permit" if settings.write else "may read, and not write"
    yield Check("zmq", CheckResult.OK, f"{settings.url}: {reach} {may}")


def _kafka_checks(configuration: NodeConfiguration) -> Iterator[Check]:
    settings = configuration.kafka
    if settings is None:
        return
    if (problem := _missing(KAFKA)) is not None:
        yield problem
        return
    by_certificate = settings.client_ca is not None
    try:
        users = None if settings.users is None else read_listed_users(settings.users, by_certificate=by_certificate)
        if settings.certificate is not None:
            server_context(settings.certificate, settings.client_ca)
    except KeyFileError as error:
        yield Check("kafka", CheckResult.PROBLEM, str(error), "correct the file, or name another with [kafka] users")
        return
    except CertificateError as error:
        yield Check("kafka", CheckResult.PROBLEM, str(error), "correct the file, or name another in [kafka]")
        return
    if settings.certificate is not None:
        found = validity_of(NodeCertificate(settings.certificate, b""), datetime.now(UTC))
        if found.needs_action:
            result = CheckResult.PROBLEM if found.is_unusable else CheckResult.WARNING
            yield Check("kafka certificate", result, found.text, KAFKA_CERTIFICATE.remedy)
    if by_certificate:
        reach = "clients with a certificate of the authority"
    else:
        reach = _reach(settings.listen.host, "users", None if users is None else len(users))
    may = "may produce entries that their scopes permit" if settings.write else "may read, and not produce"
    yield Check("kafka", CheckResult.OK, f"{endpoint(settings.listen)}: {reach} {may}")


def _reach(host: str, listed: str, count: int | None) -> str:
    """Return the clients that may connect: the listed keys or users, or any process without a list."""
    if count is not None:
        return f"listed {listed} ({count})"
    return "any process of this machine" if is_loopback(host) else "any process of this machine or its network"


def _proxy_check(proxy: ProxySettings) -> Check:
    shown = f"the HTTP proxy {endpoint(proxy.address)}"
    try:
        if proxy.password_file is not None:
            read_password(proxy.password_file)
        socket.create_connection((proxy.address.host, proxy.address.port), CONNECT_TIMEOUT_S).close()
    except KeyFileError as error:
        return Check("proxy", CheckResult.PROBLEM, str(error), "correct [proxy] password_file")
    except OSError as error:
        action = "start the I2P router's HTTP client proxy there, or set [proxy] address"
        return Check("proxy", CheckResult.PROBLEM, f"{shown} does not answer: {error.strerror or error}", action)
    return Check("proxy", CheckResult.OK, f"{shown} answers")


def _missing(extra: Extra) -> Check | None:
    missing = extra.missing()
    if missing is None:
        return None
    problem = f"[{extra.table}] listen is set, and {missing} is not installed"
    return Check(extra.table, CheckResult.PROBLEM, problem, extra.remedy)
