"""Delivery of alerts to a webhook and to a command: successful deliveries, failures, retries, timeouts and silences.

Receivers listen on loopback. The last part tests the command `silence`.
"""

import base64
import ipaddress
import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from pipeline.alerts import delivery
from pipeline.alerts.delivery import Command, Delivery, DeliveryError, Receiver, Webhook, webhook_of
from pipeline.alerts.silences import SILENCES_FILE, Silences, SilencesError
from pipeline.cli.alerts import silence
from pipeline.cli.commands import run
from tests.pipeline.test_alerts import DOWN
from tests.processes import END_S

MESSAGE = b'{"id": "abc-silent"}'
WITH_SECRETS = "https://user:pass%20word@hooks.example.invalid:8443/services/T0/SECRET?token=SECRET"


@contextmanager
def listening(reply: Callable[[BaseHTTPRequestHandler, bytes], None], *, tls: Path | None = None) -> Iterator[str]:
    """Run a receiver on loopback that replies with `reply`; yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            reply(self, self.rfile.read(int(self.headers["Content-Length"])))

        def log_message(self, *_: Any) -> None:
            """Do not log to the test's output."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}/hook?a=1"
        finally:
            server.shutdown()
            thread.join(END_S)


def status(code: int, **headers: str) -> Callable[[BaseHTTPRequestHandler, bytes], None]:
    def reply(handler: BaseHTTPRequestHandler, _: bytes) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()

    return reply


def test_webhook_receives_json_with_message_id_and_credentials() -> None:
    got: list[tuple[str, dict[str, str], bytes]] = []

    def reply(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        got.append((handler.path, dict(handler.headers), body))
        status(204)(handler, body)

    with listening(reply) as url:
        webhook_of(url.replace("//", "//me:a%20b@")).deliver(MESSAGE, "abc-silent")
    ((path, headers, body),) = got
    assert (path, body) == ("/hook?a=1", MESSAGE)
    assert headers["Content-Type"] == "application/json"
    assert headers["Idempotency-Key"] == "abc-silent"
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == b"me:a b"


@pytest.mark.parametrize("code", [301, 307, 400, 500])
def test_webhook_other_status_fails_without_following_redirect(code: int) -> None:
    redirected: list[bytes] = []
    with (
        listening(lambda _, body: redirected.append(body)) as elsewhere,
        listening(status(code, Location=elsewhere)) as url,
        pytest.raises(DeliveryError, match=f"^status {code}$"),
    ):
        webhook_of(url).deliver(MESSAGE, "a")
    assert redirected == []


def _hangs(handler: BaseHTTPRequestHandler, _: bytes, ended: threading.Event) -> None:
    ended.wait(60)
    handler.close_connection = True


def _drips(handler: BaseHTTPRequestHandler, _: bytes, ended: threading.Event) -> None:
    """Send one byte of the reply every 20 ms, so that each single wait is short."""
    handler.wfile.write(b"HTTP/1.1 2")
    try:
        while not ended.wait(0.02):
            handler.wfile.write(b"0")
            handler.wfile.flush()
    except OSError:
        return


@pytest.mark.parametrize("reply", [_hangs, _drips])
def test_webhook_slow_reply_times_out(reply: Callable[..., None]) -> None:
    ended = threading.Event()
    with listening(lambda handler, body: reply(handler, body, ended)) as url:
        found = webhook_of(url)
        hasty = Webhook(found.scheme, found.host, found.port, found.target, timeout_s=0.3)
        try:
            with pytest.raises(DeliveryError, match=r"^no answer within 0\.3 s$"):
                hasty.deliver(MESSAGE, "a")
        finally:
            ended.set()


def test_webhook_slow_connection_times_out_and_sends_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    released, closed, got = threading.Event(), threading.Event(), list[bytes]()
    connect, close = HTTPConnection.connect, HTTPConnection.close

    def slow(connection: HTTPConnection) -> None:
        # The resolver is slow, or the first addresses of the host do not respond.
        assert released.wait(60)
        connect(connection)

    def noted(connection: HTTPConnection) -> None:
        close(connection)
        closed.set()

    def reply(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        got.append(body)
        status(204)(handler, body)

    monkeypatch.setattr(HTTPConnection, "connect", slow)
    monkeypatch.setattr(HTTPConnection, "close", noted)
    with listening(reply) as url:
        with pytest.raises(DeliveryError, match=r"^no answer within 0\.1 s$"):
            replace(webhook_of(url), timeout_s=0.1).deliver(MESSAGE, "a")
        assert not closed.is_set()
        released.set()
        assert closed.wait(END_S)
    assert got == []


def test_webhook_connection_error_does_not_reveal_url() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    with pytest.raises(DeliveryError, match=r"^Connection refused$"):
        webhook_of(f"http://u:SECRET@127.0.0.1:{port}/SECRET").deliver(MESSAGE, "a")

    def broken(handler: BaseHTTPRequestHandler, _: bytes) -> None:
        handler.wfile.write(b"SECRET\r\n")
        handler.close_connection = True

    with listening(broken) as url, pytest.raises(DeliveryError, match=r"^BadStatusLine$"):
        webhook_of(url).deliver(MESSAGE, "a")


def test_webhook_with_self_signed_certificate_is_rejected(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    own = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = tmp_path / "own.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    pem.write_bytes(private + own.public_bytes(Encoding.PEM))
    got: list[bytes] = []
    with (
        listening(lambda _, body: got.append(body), tls=pem) as url,
        pytest.raises(DeliveryError, match="its certificate is invalid: self-signed certificate"),
    ):
        webhook_of(url).deliver(MESSAGE, "a")
    assert got == []


def test_webhook_shown_as_scheme_host_and_port() -> None:
    assert webhook_of(WITH_SECRETS).shown == "webhook https://hooks.example.invalid:8443"
    assert webhook_of("http://[::1]:80/x").shown == "webhook http://[::1]:80"
    for wrong in (
        "",
        "hooks.example.invalid/SECRET",
        "ftp://SECRET@host/",
        "https://",
        "http://h:SECRET/",
        "http://h/ S",
        "http://h/\r\nX: SECRET",
    ):
        with pytest.raises(ValueError, match="it ") as caught:
            webhook_of(wrong)
        assert "SECRET" not in str(caught.value)


def script(path: Path, text: str) -> Path:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def test_command_receives_message_only_on_standard_input(tmp_path: Path) -> None:
    program = script(tmp_path / "hook; echo", f'echo "$#" > {tmp_path}/arguments\ncat > {tmp_path}/message\n')
    hostile = json.dumps({"name": "$(touch /tmp/x); `id`\n"}).encode()
    Command(program).deliver(hostile, "a")
    assert (tmp_path / "arguments").read_text() == "0\n"
    assert (tmp_path / "message").read_bytes() == hostile


def test_command_failure_reports_exit_status(tmp_path: Path) -> None:
    with pytest.raises(DeliveryError, match=r"^it ended with 3$"):
        Command(script(tmp_path / "three", "exit 3\n")).deliver(b"x" * 1_000_000, "a")
    Command(script(tmp_path / "deaf", "exit 0\n")).deliver(b"x" * 1_000_000, "a")
    with pytest.raises(DeliveryError, match=r"^it cannot be started: No such file or directory$"):
        Command(tmp_path / "absent").deliver(MESSAGE, "a")


def test_command_timeout_kills_process_group(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "held")
    program = script(tmp_path / "hangs", f"sleep 300 > {tmp_path}/held &\nwait\n")
    reading: list[bytes] = []
    reader = threading.Thread(target=lambda: reading.append((tmp_path / "held").read_bytes()))
    reader.start()
    with pytest.raises(DeliveryError, match=r"^it was killed, because it had not ended after 3 s$"):
        Command(program, timeout_s=3).deliver(MESSAGE, "a")
    # Until the kill, the child process held the pipe open.
    reader.join(60)
    assert reading == [b""]


class _Channel:
    name, shown = "webhook", "webhook http://host"

    def __init__(self, *results: Exception | None) -> None:
        self.results = list(results)
        self.deliveries = 0

    def deliver(self, _message: bytes, _message_id: str) -> None:
        self.deliveries += 1
        result = self.results.pop(0)
        if result is not None:
            raise result


def outcomes_of(channel: _Channel, messages: int) -> list[Delivery]:
    found: list[Delivery] = []
    complete = threading.Event()

    def done(outcome: Delivery) -> None:
        found.append(outcome)
        if len(found) == messages:
            complete.set()

    receiver = Receiver(channel, done, pause_s=0.001)
    for number in range(messages):
        assert receiver.offer(MESSAGE, str(number))
    assert complete.wait(60)
    receiver.stop(60)
    return found


def test_message_retry_limit_reports_last_failure() -> None:
    busy = DeliveryError("status 503")
    assert outcomes_of(_Channel(busy, busy, None), 1) == [Delivery("webhook", "0")]
    channel = _Channel(*[busy] * delivery.ATTEMPTS, busy, None, None)
    outcomes = outcomes_of(channel, 4)
    # An unreachable receiver gets one attempt per waiting message.
    assert outcomes == [
        Delivery("webhook", "0", "status 503"),
        Delivery("webhook", "1", "status 503"),
        Delivery("webhook", "2"),
        Delivery("webhook", "3"),
    ]
    assert outcomes_of(_Channel(ZeroDivisionError(), None), 1) == [Delivery("webhook", "0")]


def test_message_queue_full_rejects_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "QUEUE_MAX", 2)
    started, ended = threading.Event(), threading.Event()

    class Hanging(_Channel):
        def deliver(self, _message: bytes, _message_id: str) -> None:
            started.set()
            ended.wait(60)

    receiver = Receiver(Hanging(), lambda _: None)
    assert receiver.offer(MESSAGE, "0")
    assert started.wait(60)
    assert [receiver.offer(MESSAGE, str(number)) for number in (1, 2, 3)] == [True, True, False]
    ended.set()
    receiver.stop(60)


# -- the command line --------------------------------------------------------------------------------------------------


def run_silence(output: Path, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(silence, [*arguments, "--output", str(output)])
    return result.exit_code, result.output


def test_command_starts_and_ends_silences(tmp_path: Path) -> None:
    assert run_silence(tmp_path) == (0, "No server is silenced.\n")
    code, text = run_silence(
        tmp_path, "--server", "3", "--server", "node-4", "--for", "1d2h", "--reason", "new \x1b[31mdisk"
    )
    first, second = text.splitlines()
    assert code == 0
    assert first.startswith("1  server 3 until ")
    assert "(1d 2h left): new " in first
    assert "\x1b" not in text
    assert second.startswith("2  server node-4 until ")
    code, text = run_silence(tmp_path, "--end", "1", "--json")
    (document,) = map(json.loads, text.splitlines())
    assert (document["number"], document["server"]) == (2, "node-4")
    assert Silences(tmp_path).active(document["until_ms"]) == []
    assert run_silence(tmp_path, "--end", "1")[0] == 1
    assert "silence 1 does not exist" in run_silence(tmp_path, "--end", "1")[1]


def test_add_after_end_uses_a_new_number(tmp_path: Path) -> None:
    run_silence(tmp_path, "--server", "3", "--server", "4", "--for", "2h")
    for number in "21":
        assert run_silence(tmp_path, "--end", number)[0] == 0
    assert run_silence(tmp_path, "--server", "5", "--for", "2h")[1].startswith("3  server 5 until ")
    assert len(json.loads((tmp_path / SILENCES_FILE).read_bytes())) == 1


@pytest.mark.parametrize("duration", ["", "2", "h", "0h", "-1h", "2 weeks", "9999d", "1e3h"])
def test_silencing_needs_server_and_valid_time(tmp_path: Path, duration: str) -> None:
    assert run_silence(tmp_path, "--server", "3", "--for", duration)[0] == 2
    assert run_silence(tmp_path, "--server", "3")[0] == 2
    assert run_silence(tmp_path, "--for", "2h")[0] == 2
    assert run_silence(tmp_path, "--reason", "none")[0] == 2
    assert not (tmp_path / SILENCES_FILE).exists()


def test_silenced_server_is_covered_in_its_farm_until_end(tmp_path: Path) -> None:
    (of_one,) = Silences(tmp_path).add(("3",), 100, "", "a", 0)
    (of_all,) = Silences(tmp_path).add(("node-3",), 100, "", "", 0)
    in_a = replace(DOWN, farm="a", server_id=3, name=None)
    assert of_one.covers(in_a, 99)
    assert of_one.covers(replace(in_a, farm="ff", farm_name="a"), 99)
    assert not of_one.covers(replace(in_a, farm="b"), 99)
    assert not of_one.covers(in_a, 100)
    assert not of_one.covers(replace(in_a, server_id=33, name="node-3"), 99)
    assert of_all.covers(replace(in_a, farm="b", name="node-3"), 99)
    assert not of_all.covers(replace(in_a, farm="b"), 99)


def test_silences_damaged_file_or_absent_directory_fails(tmp_path: Path) -> None:
    (tmp_path / SILENCES_FILE).write_text("[1]")
    with pytest.raises(SilencesError, match=r"cannot be read .*: correct it, or remove it"):
        Silences(tmp_path).active(0)
    code, text = run_silence(tmp_path / "none", "--server", "3", "--for", "2h")
    assert (code, "name the --output of the run" in text) == (1, True)


def test_receiver_options_are_checked_without_revealing_secrets(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("")
    in_file = tmp_path / "url"
    in_file.write_text("ftp://SECRET@host/\n")
    for arguments, words in (
        (["--alert-webhook", "ftp://SECRET@host/"], "names a host"),
        (["--alert-webhook-file", str(in_file)], "names a host"),
        (["--alert-command", str(program)], "chmod +x"),
        (["--alert-webhook", "http://127.0.0.1:1/", "--no-watch"], "leave out --no-watch"),
    ):
        result = CliRunner().invoke(run, arguments)
        assert (result.exit_code, words in " ".join(result.output.replace("│", "").split())) == (2, True), result.output
        assert "SECRET" not in result.output
