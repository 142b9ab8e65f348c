"""The command `garlicfarm`: its table of commands, each loaded when it is called (`bridge.cli.help.lazy_group`)."""

import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from bridge import VERSION
from bridge.cli.failure import INTERRUPTED, REFUSED, fail, failure_lines, is_about_working_directory, reason_of
from bridge.cli.help.lazy_group import AddedCommands, LazyCommand, LazyGroup, Sections
from bridge.cli.printing import echo, guard_output
from bridge.cli.serving.standard_streams import guard_streams

COMMANDS: Sections = {
    "Farm": {
        "init": LazyCommand("bridge.cli.founding.init:init", "Make a new farm with this machine."),
        "join": LazyCommand("bridge.cli.founding.join:join", "Make this machine a node of a farm, with a token."),
        "invite": LazyCommand(
            "bridge.cli.founding.invite:invite", "Invite further machines; list and revoke invitations."
        ),
        "up": LazyCommand("bridge.cli.up:up", "Run a farm of several nodes on this machine's loopback."),
        "run": LazyCommand("bridge.cli.run:run", "Run one node."),
        "leave": LazyCommand("bridge.cli.leave:leave", "Make a node leave the farm and stop."),
        "transfer": LazyCommand("bridge.cli.leave:transfer", "Hand leadership to another node."),
        "withdraw": LazyCommand("bridge.cli.leave:withdraw", "Withdraw a node's promise to create a farm."),
        "confirm-cluster": LazyCommand(
            "bridge.cli.leave:confirm_cluster", "Confirm the cluster that a new node joins."
        ),
        "backup": LazyCommand("bridge.cli.recover:backup", "Save the replicated state of the farm, without keys."),
        "restore": LazyCommand("bridge.cli.recover:restore", "Make the state directory of a new node from a backup."),
        "recover": LazyCommand(
            "bridge.cli.recover:recover", "Create a new farm from a survivor when a majority is lost."
        ),
        "config": LazyCommand(
            "bridge.cli.config:config", "Show a configuration; export one for many nodes, import it."
        ),
    },
    "Look": {
        "status": LazyCommand("bridge.cli.status:status", "Show the health of the farm, as one node sees it."),
        "top": LazyCommand("bridge.cli.events.top:top", "Watch the farm live in the terminal."),
        "farm": LazyCommand("bridge.cli.farm:farm", "Show the replicated state of the farm."),
        "events": LazyCommand("bridge.cli.events.event:events", "Print the recent events of a node."),
        "history": LazyCommand(
            "bridge.cli.events.history:history", "Show the last hours: leader, publishers, nodes, leaves, alarms."
        ),
        "monitor": LazyCommand(
            "bridge.cli.events.monitor:monitor", "Show the events of all nodes, live, each fact once."
        ),
        "log": LazyCommand("bridge.cli.log:log", "Print committed entries of the farm's log."),
        "log-time": LazyCommand(
            "bridge.cli.log_time:log_time", "Show the farm's time and the servers with wrong clocks."
        ),
        "doctor": LazyCommand("bridge.cli.config:doctor", "Check this machine, and show what to correct."),
        "debug": LazyCommand("bridge.cli.events.debug:debug", "Write a file for fault analysis, without secrets."),
    },
    "Members": {
        "members": LazyCommand(
            "bridge.cli.status:members", "List the members with status, incarnation and round-trip time."
        ),
        "servers": LazyCommand("bridge.cli.farm:servers", "List the Raft group's servers; remove one, or the leader."),
        "node": LazyCommand("bridge.cli.node:node", "List the identities of the farm; approve or evict one."),
        "event": LazyCommand("bridge.cli.events.event:event", "Send a user event to all nodes by gossip."),
        "query": LazyCommand("bridge.cli.events.event:query", "Query all nodes by gossip, and print each reply."),
    },
    "Publishing": {
        "router": LazyCommand(
            "bridge.cli.router.detect:router", "Find this machine's I2P router, and write a node's settings."
        ),
        "publish": LazyCommand("bridge.cli.publish:publish", "Publish again; exclude leaves, or change their costs."),
        "lease-set": LazyCommand("bridge.cli.lease_set:lease_set", "Show published structures."),
        "link": LazyCommand("bridge.cli.link:link", "Print the link, and a QR code, that users of the farm need."),
        "connect": LazyCommand("bridge.cli.connect.command:connect", "Reach farms through I2P, by their links."),
    },
    "Keys": {
        "keys": LazyCommand(
            "bridge.cli.keys.farm_keys:keys", "Make the keys of a farm, list them, and change them while it runs."
        ),
    },
    "Programs of other protocols": {
        "zmq-raft": LazyCommand(
            "bridge.cli.zmq_raft.cluster:zmq_raft", "Use and watch a replicated log with the protocol ØMQ Raft."
        ),
        "kraft": LazyCommand("bridge.cli.kraft.group:kraft", "Run and watch a replicated log with Kafka's Raft."),
    },
    "Help and development": {
        "help": LazyCommand(
            "bridge.cli.help.documents:help_command", "Show the documents, by topic, without a network."
        ),
        "completion": LazyCommand(
            "bridge.cli.help.completion:completion", "Print the script that completes in a shell."
        ),
        "submit": LazyCommand("bridge.cli.log:submit", "Commit one entry (a JSON object) to the farm's log."),
        "simulate": LazyCommand("bridge.cli.simulate:simulate", "Run large groups in virtual time, and measure them."),
    },
}
"""The commands, in the sections and the order of the overview."""


@click.group(
    cls=LazyGroup,
    sections=COMMANDS,
    added=AddedCommands("garlicfarm.commands", "Look"),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 refused or failed with the reason, 2 wrong usage (`log verify`: nothing to"
    " check), 130 interrupted; `status` has two more.",
)
@click.version_option(version=VERSION, prog_name="garlicfarm")
def cli() -> None:
    """High-availability groups of I2P routers: nodes discover each other, agree, and publish one Meta LeaseSet2."""


def main() -> None:
    """Run the command line."""
    guard_streams()
    _forbid_core_dumps()
    guard_output()
    try:
        with stopped_by_hang_up():
            ended = cli(prog_name="garlicfarm", standalone_mode=False)
        sys.exit(ended if isinstance(ended, int) else 0)
    except click.Abort as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            sys.exit(INTERRUPTED)
        echo("Aborted!", err=True)
        sys.exit(REFUSED)
    except click.ClickException as error:
        _show(error)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of the output (`| head`) has closed it.
        sys.exit(REFUSED)
    except BaseExceptionGroup as group:
        if group.split(BrokenPipeError)[1] is not None:
            raise
        sys.exit(REFUSED)
    except OSError as error:
        if error.filename is None and not is_about_working_directory(error):
            raise
        # A file error is not a fault of the program, in any command.
        fail(reason_of(error))


@contextmanager
def stopped_by_hang_up() -> Iterator[None]:
    """Handle the end of the terminal (SIGHUP) in the block as SIGTERM, so that each command stops in order.

    Without this, a killed leader could not transfer its leadership. A receiver of trio for SIGHUP would replace the
    `nohup` of the process. The shell and the kernel may each send SIGHUP. Only the first one counts, because a second
    SIGTERM shortens the stop. Only the main thread may call this.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        yield
        return

    def stop(*_: object) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGHUP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def _forbid_core_dumps() -> None:
    """Forbid core dumps, which hold the keys and passwords that a command read. Started programs inherit this."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _show(error: click.ClickException) -> None:
    """Show an error of click, escaped: it quotes arguments and names of files, which others may have chosen."""
    if not isinstance(error, click.UsageError):
        # A refusal, as at the end of every other command.
        for line in failure_lines(error.format_message()):
            echo(line, err=True)
        return
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        # The message is the whole help, with its lines.
        for line in error.format_message().splitlines():
            echo(line, err=True)
        return
    context = error.ctx
    if context is not None:
        for line in context.get_usage().splitlines():
            echo(line, err=True)
        echo(f"Try '{context.command_path} {context.help_option_names[0]}' for help.", err=True)
        echo(err=True)
    text = error.format_message()
    if isinstance(error, click.MissingParameter):
        # The message lists the choices on separate lines, and does not quote anything of the user.
        text = " ".join(text.split())
    echo(f"Error: {text}{_node_hint(error)}{_commands_hint(error)}", err=True)


def _commands_hint(error: click.UsageError) -> str:
    """Return the places of a command that its group does not have, or else the commands of the group."""
    if not isinstance(error, click.exceptions.NoSuchCommand) or error.possibilities or error.ctx is None:
        return ""
    group = error.ctx.command
    if group is cli or not isinstance(group, click.Group):
        return ""
    elsewhere = cli.places_of(error.command_name)
    if elsewhere:
        return f" Did you mean {' or '.join(map(repr, elsewhere))}?"
    return f" The commands of `{error.ctx.command_path}` are {', '.join(group.list_commands(error.ctx))}."


def _node_hint(error: click.UsageError) -> str:
    """Return the remedy if a command for the node at hand got the name of another node as an argument."""
    if error.ctx is None or not error.message.startswith("Got unexpected extra argument"):
        return ""
    selecting = any("--node" in each.opts for each in error.ctx.command.params)
    return "; select another node with --node" if selecting else ""


if __name__ == "__main__":
    main()
