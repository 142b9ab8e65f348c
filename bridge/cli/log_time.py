"""`garlicfarm log-time`: show the farm's time and the clocks that it follows; set it back when it is ahead of them.

    show     log time, the time of a majority of the voters' clocks, and each server's clock compared with it
    back     sets log time back to that time, by an entry of the log; the farm refuses it unless log time is far ahead

docs/how-to/log-time.md explains how log time can be wrong, and the effect of `back` on other times in the state.
"""

import click

from bridge.api.control import LogTimeAnswer, ServerClock
from bridge.api.control_routes import LOG_TIME
from bridge.api.printable import clock_text
from bridge.api.requests import CommandRequest, CorrectionOrder
from bridge.cli.node_queries import call_current, node_option
from bridge.cli.options import SummaryGroup, json_option, watchable, yes_option
from bridge.cli.printing import echo, end_with_json, print_facts, print_table
from bridge.cli.publish import confirm_order, submit_command
from bridge.core.farm.clock_alarms import seconds_off


@click.group("log-time", cls=SummaryGroup)
def log_time() -> None:
    """Show the farm's time and the servers' clocks; bring log time back when it is wrong."""


@log_time.command()
@node_option
@json_option
@watchable
def show(node: str | None, *, as_json: bool) -> None:
    """Show log time, and compare each server's clock with the clocks of a majority."""
    answer = call_current(node, LOG_TIME)
    end_with_json(answer, as_json=as_json)
    print_facts(_facts(answer))
    echo()
    rows = [(f"{each.name} ({each.raft_id})", "yes" if each.voter else "no", _offset(each)) for each in answer.clocks]
    print_table(("SERVER", "VOTES", "CLOCK"), rows)


def _facts(answer: LogTimeAnswer) -> list[tuple[str, str]]:
    facts = [("log time", clock_text(answer.log_time_ms, dated=True))]
    if answer.majority_ms is None:
        return [*facts, ("majority", "not enough voters have reported recently")]
    ahead_ms = answer.log_time_ms - answer.majority_ms
    facts.append(("majority", f"{clock_text(answer.majority_ms, dated=True)}: log time is {seconds_off(ahead_ms)} it"))
    if not answer.agreed:
        facts.append(("", "no majority of the voters' clocks agrees: correct them first"))
    if answer.latest_ms is not None:
        facts.append(("limit", f"{clock_text(answer.latest_ms, dated=True)}: clock entries cannot be later now"))
    return facts


def _offset(clock: ServerClock) -> str:
    return "unknown: its last report is too old" if clock.offset_ms is None else f"{clock.offset_ms / 1000:+.1f} s"


@log_time.command()
@node_option
@json_option
@yes_option
def back(node: str | None, *, yes: bool, as_json: bool) -> None:
    """Bring log time back to the clocks of a majority of the voters, for the whole farm."""
    order = CommandRequest(correction=CorrectionOrder())
    question = (
        "Set the farm's log time back to the majority of the voters' clocks, although routers may refuse new lists"
        " for hours?"
    )
    confirm_order(node, order, question, yes=yes)
    submit_command(node, order, as_json=as_json)
