"""`garlicfarm kraft serve`: one server of a KRaft quorum, until a signal stops it.

    settings ─▶ open_voter ─▶ one listener: replicas, tools, consumers, producers     [--metrics ─▶ Prometheus]
    SIGTERM ─▶ a leader resigns, so that another one leads soon ─▶ closed ─▶ exit code 0

A second signal ends the server without waiting. A listener outside loopback without authentication needs
--allow-network: any program that reaches the listener can read and write the log and take part in elections.
"""

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import assert_never

import click
import trio
from msgspec import Struct
from msgspec.structs import replace

from bridge.api.cluster_outputs import KraftServeOutput, KraftVoterView
from bridge.cli.failure import failures
from bridge.cli.kraft.options import config_option, needs_kafka, read_settings, set_option
from bridge.cli.options import json_option
from bridge.cli.serving.server_command import on_signals, run_server
from bridge.cli.serving.server_lines import Lines, check_network
from bridge.cli.serving.stop_deadline import CLOSE_SECONDS, StopDeadline
from consensus import ConfigurationChanged, ContentRejected, DiskFull, Notice, ReplicaKey, RoleChanged, Server
from consensus.net import CertificateError, connection_failure
from consensus.protocols import kafka
from consensus.protocols import kraft as protocol

MIB = 1024 * 1024
RESIGN_S = 3.0
"""Seconds for another voter to take over before a stopping leader ends."""
_NETWORK = (
    "{} is not on loopback, and the listener does not authenticate clients: any program that reaches it can read the"
    " log, write to it, and take part in elections."
)


class VoterArguments(Struct, frozen=True):
    """The checked options of the command."""

    settings: "protocol.VoterSettings"
    options: "protocol.VoterOptions"
    metrics: tuple[str, int] | None


def _arguments(
    config: Path,
    changes: Sequence[str],
    metrics: str | None,
    produce: str | None,
    *,
    kafka_metadata: bool,
    allow_network: bool,
) -> VoterArguments:
    """Return the settings checked, or end the command with the reason."""
    secured, others = protocol.split_settings(read_settings(config, changes))
    settings = protocol.voter_settings(others)
    users = protocol.read_directory(settings).read_users()
    listener = settings.listeners[0]
    security = protocol.server_security(secured, listener.name, users)
    where = None if metrics is None else protocol.address("--metrics", metrics)
    if not security.authenticates and not protocol.is_loopback(listener.host):
        warning = _NETWORK.format(listener.host or "This listener, of every address,")
        check_network(
            warning,
            "Use SASL_SSL or ssl.client.auth=required, or permit it with --allow-network",
            allow_network=allow_network,
        )
    options = protocol.VoterOptions(
        client_security=security.client,
        listener_security=security.listener,
        takes_records=produce == "on" if produce else not kafka_metadata,
        is_metadata=kafka_metadata,
        services=lambda topic: (
            kafka.ConsumerService(topic, describes_cluster=False),
            kafka.ProduceService(topic, topic.query_leader),
            kafka.GroupService(topic),
            kafka.ConfigsService(
                topic, max_request_bytes=kafka.DEFAULT_LIMITS.max_request_bytes, has_server_time=False
            ),
        ),
    )
    return VoterArguments(settings, options, where)


class VoterReporter(Lines):
    """Prints the events of a server."""

    def __init__(self, node_id: int, *, as_json: bool) -> None:
        super().__init__(KraftServeOutput, "server", node_id, as_json=as_json)
        self._node_id = node_id
        self._voters: tuple[KraftVoterView, ...] | None = None

    def notice(self, notice: Notice) -> None:
        """Report an event of the server."""
        match notice:
            case RoleChanged(role, epoch, leader):
                leader_id = leader.id if isinstance(leader, ReplicaKey) else None
                text = self.role_text(role, f"epoch {epoch}", leader_id)
                self.report("role", text, role=role.value, epoch=epoch, leader_id=leader_id)
            case ConfigurationChanged(configuration):
                self.voters(configuration.voters)
            case DiskFull():
                self.disk(notice)
            case ContentRejected(sender, reason):
                source = f"server {sender.id}" if isinstance(sender, ReplicaKey) else "a server"
                self.report("rejected", f"{source} sent an entry that cannot be stored: {reason}", alarm=True)
            case _:
                assert_never(notice)

    def address_refused(self, refused: "protocol.AddressRefused") -> None:
        """Report that the quorum does not record the address of this server."""
        use = f"The other servers use {refused.recorded}" if refused.recorded else "This server does not become a voter"
        text = f"{refused.address} is not recorded as this server's address: {refused.reason}. {use}"
        self.report("address-refused", f"{text}. Correct advertised.listeners", alarm=True, address=refused.address)

    def voters(self, servers: Sequence[Server]) -> None:
        """Report the voters, if they have changed."""
        voters = tuple(sorted(map(_view, servers), key=lambda each: each.id))
        if voters == self._voters:
            return
        self._voters = voters
        text = "voters: " + ", ".join(f"{each.id} at {each.address}" for each in voters)
        if self._node_id not in [each.id for each in voters]:
            text += f"; server {self._node_id} is an observer"
        self.report("voters", text, voters=voters)

    def serving(self, voter: "protocol.KraftVoter", metrics_port: int | None) -> None:
        """Report that the server is open."""
        described = voter.server.describe()
        address = f"{voter.listener.options.host or '*'}:{voter.listener.port}"
        metrics = "" if metrics_port is None else f"; metrics on port {metrics_port}"
        self.report(
            "serving",
            f"serving {self._node_id} at {address} in cluster {voter.cluster_id} "
            f"(log: {described.log_bytes / MIB:.1f} MiB up to offset {described.raft.last.index}{metrics})",
            address=address,
            cluster=voter.cluster_id,
            directory_id=kafka.uuid_text(voter.key.directory) if voter.key.directory else None,
            log_end_offset=described.raft.last.index,
            log_bytes=described.log_bytes,
            metrics_port=metrics_port,
        )


@click.command()
@config_option
@set_option
@click.option("--metrics", metavar="HOST:PORT", help="Answer Prometheus with the metrics of KIP-595 at this address.")
@click.option(
    "--produce",
    type=click.Choice(["on", "off"]),
    help="Whether clients may write records (default: on, or off with --kafka-metadata).",
)
@click.option(
    "--kafka-metadata",
    is_flag=True,
    help="Run together with Kafka's controllers: the log is their metadata. They stop at a record that they cannot"
    " read, so this server accepts metadata records only.",
)
@click.option("--allow-network", is_flag=True, help="Permit an open listener that is not on loopback.")
@json_option
def serve(
    *,
    config: Path,
    changes: tuple[str, ...],
    metrics: str | None,
    produce: str | None,
    kafka_metadata: bool,
    allow_network: bool,
    as_json: bool,
) -> None:
    """Serve a replicated log as one server of a KRaft quorum, until Ctrl-C or SIGTERM.

    Clients of Kafka read and write it as the topic __cluster_metadata. Make the directory by `kraft format` before.
    With --json: one object on each line for each event.
    """
    known = (protocol.SettingsError, protocol.QuorumDirectoryError, protocol.VoterError, CertificateError)
    with needs_kafka(), failures(*known):
        import_module("kio")  # A missing kio must end the command now, not at the first connection.
        arguments = _arguments(
            config, changes, metrics, produce, kafka_metadata=kafka_metadata, allow_network=allow_network
        )
    reporter = VoterReporter(arguments.settings.node_id, as_json=as_json)
    run_server(partial(_serve, arguments, reporter), *known)


async def _serve(arguments: VoterArguments, reporter: VoterReporter, deadline: StopDeadline) -> None:
    stopping = trio.Event()

    def stop() -> None:
        deadline.within(RESIGN_S + CLOSE_SECONDS)
        stopping.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadline.within_when_canceled)
        await nursery.start(on_signals, stop, nursery.cancel_scope.cancel)
        options = replace(arguments.options, address_refused=reporter.address_refused)
        async with protocol.open_voter(arguments.settings, options=options, observe=reporter.notice) as voter:
            port = await _start_metrics(nursery, arguments.metrics, voter)
            reporter.serving(voter, port)
            reporter.voters(voter.server.describe().raft.configuration.voters)
            await stopping.wait()
            with trio.move_on_after(RESIGN_S):
                await voter.resign()
        nursery.cancel_scope.cancel()
    reporter.report("stopped", f"server {arguments.settings.node_id} has stopped")


async def _start_metrics(
    nursery: trio.Nursery, where: tuple[str, int] | None, voter: "protocol.KraftVoter"
) -> int | None:
    if where is None:
        return None
    # A server without metrics does not need this module, and a running one imports it in a thread.
    module = await trio.to_thread.run_sync(import_module, "bridge.cli.kraft.metrics")
    try:
        return int(await nursery.start(module.serve_metrics, *where, voter.figures))
    except (OSError, UnicodeError) as error:
        raise protocol.VoterError(
            f"cannot listen for metrics on {where[0]}:{where[1]}: {connection_failure(error)}. Choose another --metrics"
        ) from error


def _view(server: Server) -> KraftVoterView:
    key = server.server_id
    return KraftVoterView(key.id if isinstance(key, ReplicaKey) else -1, server.endpoint)
