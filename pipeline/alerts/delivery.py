"""The delivery of messages: by POST to a webhook, or on the standard input of a command.

    due messages ──▶ a bounded queue of each receiver ──▶ its thread: try, pause, retry ──▶ delivered, or not yet

Each receiver has a separate thread, so a slow receiver delays neither the run nor the other receiver. Every step is
bounded: the time of a POST or a command, the number of attempts in a row, the number of waiting messages. A message
rejected by a full queue is not lost: it stays due in the table `alerts` and is passed on later.

*Webhook.* https with the system's trusted authorities and a check of the host's name, or plain http. Redirects are not
followed, since they would carry the message elsewhere. The header `Idempotency-Key` repeats the message's id. A user
and password in the URL become the header `Authorization`. Paths and users of webhooks are secrets, so only scheme, host
and port of a URL are shown.

*Command.* One program, without a shell and without arguments: a message never becomes text of a command. A message is
delivered when the program exits with 0. If the program takes too long, its process group is killed.
"""

import base64
import http.client
import os
import signal
import ssl
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Protocol
from urllib.parse import unquote, urlsplit

WEBHOOK_SECONDS = 15.0
"""The limit of a whole POST, including the look-up of the host name and the attempts at all its addresses."""
COMMAND_SECONDS = 30.0
ANSWER_MAX_BYTES = 65_536
ATTEMPTS = 4
PAUSE_SECONDS = 1.0
"""The pause before the second attempt; it doubles for each further one."""
QUEUE_MAX = 256
_SHOWN = 100
_SCHEMES = ("https", "http")


class DeliveryError(Exception):
    """A message was not delivered; the text has the reason."""


class Channel(Protocol):
    """A channel to a receiver."""

    @property
    def name(self) -> str:
        """Name of the channel in the table `alerts`: a word."""
        ...

    @property
    def shown(self) -> str:
        """Name of the channel for people; without secrets."""
        ...

    def deliver(self, message: bytes, message_id: str) -> None:
        """Deliver a message, or raise DeliveryError after a bounded time."""
        ...


@dataclass(frozen=True, slots=True)
class Webhook:
    """A URL that takes POST."""

    scheme: str
    host: str
    port: int | None
    target: str
    authorization: str = ""
    name: str = "webhook"
    timeout_s: float = WEBHOOK_SECONDS

    @property
    def shown(self) -> str:
        """Scheme, host and port of the URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"webhook {self.scheme}://{host}" + ("" if self.port is None else f":{self.port}")

    def deliver(self, message: bytes, message_id: str) -> None:
        """Send one POST; any status from 200 to 299 is a success."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": message_id, "Connection": "close"}
        if self.authorization:
            headers["Authorization"] = self.authorization
        connection = self._connection()
        expired = threading.Event()
        answered: Future[int] = Future()

        def exchange() -> None:
            try:
                answered.set_result(self._status(connection, message, headers, expired))
            except Exception as error:  # noqa: BLE001 - `deliver` raises it
                answered.set_exception(error)
            finally:
                connection.close()

        # The socket's timeout does not limit the look-up of the name, and begins again with each address and each
        # received part. A thread that connects after the limit ends without sending the message.
        threading.Thread(target=exchange, name=f"{self.name} exchange", daemon=True).start()
        try:
            status = answered.result(self.timeout_s)
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = f"no answer within {self.timeout_s:g} s" if isinstance(error, TimeoutError) else _words(error)
            raise DeliveryError(reason) from error
        finally:
            expired.set()
            _cut(connection)
        if not http.client.OK <= status < http.client.MULTIPLE_CHOICES:
            raise DeliveryError(f"status {status}")

    def _status(
        self, connection: http.client.HTTPConnection, message: bytes, headers: dict[str, str], expired: threading.Event
    ) -> int:
        connection.connect()
        if expired.is_set():
            raise TimeoutError
        connection.request("POST", self.target, body=message, headers=headers)
        answer = connection.getresponse()
        answer.read(ANSWER_MAX_BYTES)
        return answer.status

    def _connection(self) -> http.client.HTTPConnection:
        if self.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self.host, self.port, timeout=self.timeout_s, context=context)
        return http.client.HTTPConnection(self.host, self.port, timeout=self.timeout_s)


@dataclass(frozen=True, slots=True)
class Command:
    """A program that reads one message."""

    program: Path
    name: str = "command"
    timeout_s: float = COMMAND_SECONDS

    @property
    def shown(self) -> str:
        """Path of the program."""
        return f"command {self.program}"

    def deliver(self, message: bytes, message_id: str) -> None:
        """Run the program once. `message_id` is not passed: the message contains it."""
        del message_id
        try:
            running = subprocess.Popen(  # noqa: S603 - the operator names the program; no shell reads the message
                [str(self.program)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise DeliveryError(f"it cannot be started: {error.strerror or error}") from error
        try:
            running.communicate(message, self.timeout_s)
        except subprocess.TimeoutExpired as error:
            # The command leads a separate process group and is not reaped yet, so its process id is still valid.
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            raise DeliveryError(f"it was killed, because it had not ended after {self.timeout_s:g} s") from error
        if running.returncode:
            raise DeliveryError(f"it ended with {running.returncode}")


@dataclass(frozen=True, slots=True)
class Delivery:
    """The result of a message. `error`: the reason of a failure; empty if delivered."""

    receiver: str
    message_id: str
    error: str = ""


class Receiver:
    """A channel with its queue and its thread, which ends with the process or by `stop`."""

    def __init__(self, channel: Channel, done: Callable[[Delivery], None], *, pause_s: float = PAUSE_SECONDS) -> None:
        self.channel = channel
        self._done = done
        self._pause_s = pause_s
        self._waiting: Queue[tuple[bytes, str]] = Queue(QUEUE_MAX)
        self._stopped = threading.Event()
        self._answers = True
        self._thread = threading.Thread(target=self._run, name=f"alerts {channel.name}", daemon=True)
        self._thread.start()

    def offer(self, message: bytes, message_id: str) -> bool:
        """Queue a message; return False if too many wait."""
        try:
            self._waiting.put_nowait((message, message_id))
        except Full:
            return False
        return True

    def stop(self, seconds: float) -> None:
        """Stop further attempts, and wait up to a limit for the current one."""
        self._stopped.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                message, message_id = self._waiting.get(timeout=self._pause_s)
            except Empty:
                continue
            error = self._tried(message, message_id)
            self._answers = not error
            self._done(Delivery(self.channel.name, message_id, error))

    def _tried(self, message: bytes, message_id: str) -> str:
        """Return an empty text after a delivery, else the reason of the last failure."""
        error = ""
        # After a failed message, each message gets only one attempt until a delivery succeeds. Otherwise many messages
        # to an unreachable receiver would take several attempts each.
        for attempt in range(ATTEMPTS if self._answers else 1):
            if attempt and self._stopped.wait(self._pause_s * 2 ** (attempt - 1)):
                break
            try:
                self.channel.deliver(message, message_id)
            except DeliveryError as failed:
                error = str(failed)
            except Exception as fault:  # noqa: BLE001 - a fault in one message must not end the thread
                error = f"a fault of the pipeline: {type(fault).__name__}"
            else:
                return ""
        return error


def webhook_of(url: str) -> Webhook:
    """Return the webhook of a URL. Raise ValueError, whose text does not repeat the URL."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise ValueError("it is not a URL") from None
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise ValueError("it is not a URL that begins with https:// or http:// and names a host")
    if not url.isascii() or any(each.isspace() or not each.isprintable() for each in url.strip()):
        raise ValueError("it contains characters that a URL may not have")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    authorization = ""
    if parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(secret.encode()).decode()}"
    return Webhook(parts.scheme, parts.hostname, port, target, authorization)


def _cut(connection: http.client.HTTPConnection) -> None:
    # The type of `sock` does not include None, but the attribute may be None.
    transport = getattr(connection, "sock", None)
    if transport is not None:
        try:
            transport.shutdown(2)
        except OSError:
            return


def _words(error: Exception) -> str:
    """Return the reason of a failure; it may contain the URL's host, but no secret of the URL."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is invalid: {error.verify_message}"[:_SHOWN]
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[:_SHOWN]
    return type(error).__name__
