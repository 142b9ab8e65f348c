"""`garlicfarm kraft` with an address that is not a Kafka listener: each command reports the cause in one line."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.node.certificates import Authority
from tests.node.kraft_processes import LOOPBACK, kraft
from tests.processes import END_S

UUID_TEXT = "AAAAAAAAAAAAAAAAAAAABw"
COMMANDS = {
    "describe": ("describe",),
    "log": ("log",),
    "add-voter": ("add-voter", *("--voter-id", "4", "--voter-directory-id", UUID_TEXT, "--listener", "C://a:1")),
    "remove-voter": ("remove-voter", "--voter-id", "1", "--yes"),
}
OPTIONS = ("--bootstrap-server", "--bootstrap-controller")


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve a port during the block, and call `answer` for each client."""
    with socket.create_server((LOOPBACK, 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    with client, suppress(OSError):
                        answer(client)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"{LOOPBACK}:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(END_S)


def error_line(command: str, option: str, address: str) -> str:
    """Return the only line on stderr; check exit code 1 and an empty stdout."""
    result = kraft(*COMMANDS[command], option, address, "--timeout", "0.1")
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    return line


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("command", COMMANDS)
def test_unused_port_is_reported_as_refused(command: str, option: str) -> None:
    with socket.create_server((LOOPBACK, 0)) as free:
        address = f"{LOOPBACK}:{free.getsockname()[1]}"
    assert error_line(command, option, address) == f"garlicfarm: no connection to {address}: Connection refused"


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_host_is_reported(command: str, option: str) -> None:
    assert error_line(command, option, "no-such-host.invalid:9092").startswith(
        "garlicfarm: no connection to no-such-host.invalid:9092: "
    )


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("command", COMMANDS)
def test_http_server_is_identified(command: str, option: str) -> None:
    def answer(client: socket.socket) -> None:
        client.recv(1_000)
        client.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

    with answering(answer) as address:
        assert error_line(command, option, address) == (
            f"garlicfarm: no connection to {address}: its answer is not Kafka's (it is HTTP: name the port of a Kafka "
            "listener)"
        )


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("command", COMMANDS)
def test_tls_server_is_identified(command: str, option: str, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Authority(tmp_path).certificate(LOOPBACK).path)

    def answer(client: socket.socket) -> None:
        context.wrap_socket(client, server_side=True)

    with answering(answer) as address:
        line = error_line(command, option, address)
    # Either the TLS alert or the end of the connection arrives first.
    assert line.startswith(f"garlicfarm: no connection to {address}: ")
    assert "TLS" in line
    assert "security.protocol" in line


def test_tls_alert_is_identified_by_first_bytes() -> None:
    def answer(client: socket.socket) -> None:
        client.recv(1_000)
        client.sendall(bytes.fromhex("15030300020246"))

    with answering(answer) as address:
        assert "its answer is not Kafka's (it is TLS: give security.protocol=SSL or SASL_SSL)" in error_line(
            "describe", "--bootstrap-server", address
        )


def test_kraft_options_refuse_two_bootstrap_options() -> None:
    result = kraft("describe", "--bootstrap-server", "a:1", "--bootstrap-controller", "a:2")
    assert result.exit_code == 2
    assert "name two kinds of servers: give one" in result.stderr
