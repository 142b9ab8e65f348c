"""Common parts of the commands of `garlicfarm kraft`: files of settings, the choice of the quorum, and the extra.

    --bootstrap-controller HOST:PORT,… ──▶ QuorumClient ──▶ some of the servers: the leader is found from any

The options have the names of Kafka's tools. The decoder of Kafka's messages is an extra, so it is not imported before a
command runs.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar

import click
import trio
from click.core import ParameterSource
from msgspec import Struct

from bridge.cli.failure import fail, fail_to_read, failures, interruptible, needs_extra
from bridge.cli.options import file_path, timeout_option
from consensus.net import CertificateError
from consensus.protocols import kafka
from consensus.protocols import kraft as protocol

CONTROLLERS_VARIABLE = "GARLICFARM_KRAFT_CONTROLLERS"
NO_SERVER = (
    f"give the address of a server of the quorum: --bootstrap-controller HOST:PORT, or {CONTROLLERS_VARIABLE}; for a"
    " farm, --bootstrap-server HOST:PORT"
)
PATIENCE_S = 10.0
needs_kafka = partial(
    needs_extra,
    ("cramjam", "crc32c", "kio"),
    "KRaft needs the packages kio and crc32c; install them with: pip install 'garlicfarm[kafka]'",
)

T = TypeVar("T")
Question = Callable[["protocol.QuorumClient"], Awaitable[T]]

config_option = click.option(
    "--config", "-c", type=file_path, required=True, metavar="FILE", help="The server's settings, as in Kafka."
)
set_option = click.option(
    "--set",
    "changes",
    metavar="NAME=VALUE",
    multiple=True,
    help="A setting in place of the one in the file; may be given several times. Other users of this machine can read a"
    " command line: put passwords into the file (sasl.jaas.config, ssl.keystore.password), with mode 0600.",
)


def read_settings(file: Path, changes: Sequence[str]) -> dict[str, str]:
    """Return the settings of a file with the values of --set, or end the command with the reason."""
    with failures(protocol.SettingsError):
        try:
            settings = protocol.parse_properties(file.read_text(encoding="utf-8"), f"{file}: line")
        except (OSError, UnicodeDecodeError) as error:
            fail_to_read(file, error)
        return settings | protocol.parse_properties("\n".join(changes), "--set option")


class Quorum(Struct, frozen=True):
    """The servers of a quorum, and the security to reach them."""

    servers: str
    brokers: bool
    security: Path | None
    timeout_s: float

    def ask(self, question: Question[T]) -> T:
        """Return the response of the quorum, or end the command with the reason."""
        with (
            interruptible(),
            needs_kafka(),
            failures(protocol.QuorumClientError, protocol.SettingsError, CertificateError),
        ):
            return trio.run(self._ask, question)

    async def _ask(self, question: Question[T]) -> T:
        option = "--bootstrap-server" if self.brokers else "--bootstrap-controller"
        addresses = [protocol.address(option, each) for each in self.servers.split(",") if each.strip()]
        if not addresses:
            fail(NO_SERVER)
        settings = {} if self.security is None else read_settings(self.security, ())
        options = kafka.DialOptions(security=protocol.tool_security(settings))
        return await question(protocol.QuorumClient(addresses, options, brokers=self.brokers, timeout_s=self.timeout_s))


def given_spelling(name: str) -> str | None:
    """Return the spelling of this option if the command line of the running command has it."""
    command = click.get_current_context().command
    return next((each.opts[0] for each in command.params if each.name == name), None) if was_given(name) else None


def was_given(name: str) -> bool:
    """Return True if the command line of the running command has this option."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


_OPTIONS = (
    timeout_option("timeout", "Seconds to wait for a leader to reply.", default_s=PATIENCE_S),
    click.option(
        "--command-config",
        type=file_path,
        metavar="FILE",
        help="Settings for a listener with TLS or SASL: security.protocol, ssl.truststore.location, sasl.jaas.config …",
    ),
    click.option(
        "--bootstrap-server",
        metavar="HOST:PORT",
        help="Addresses of servers that accept clients, such as a farm's Kafka listener or Kafka's brokers.",
    ),
    click.option(
        "--bootstrap-controller",
        metavar="HOST:PORT",
        envvar=CONTROLLERS_VARIABLE,
        help=f"Addresses of voters of the quorum, separated by commas (default: ${CONTROLLERS_VARIABLE}).",
    ),
)


def quorum_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that find the quorum; the command gets a `Quorum` for them."""

    @wraps(command)
    def with_quorum(
        *,
        bootstrap_controller: str | None,
        bootstrap_server: str | None,
        command_config: Path | None,
        timeout: float,
        **arguments: Any,
    ) -> None:
        if bootstrap_server and was_given("bootstrap_controller"):
            raise click.UsageError("--bootstrap-server and --bootstrap-controller name two kinds of servers: give one")
        servers = bootstrap_server or bootstrap_controller or ""
        command(Quorum(servers, bool(bootstrap_server), command_config, timeout), **arguments)

    for option in _OPTIONS:
        option(with_quorum)
    return with_quorum
