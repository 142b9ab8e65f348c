"""The screen of `garlicfarm connect --status`: one block of facts for the client and one for each link.

Every text about a problem comes from the client, with its remedy. The screen adds only the order and the units.
"""

from collections.abc import Iterator, Mapping

from bridge.api.printable import SECOND_MS, duration, milliseconds_text, short_address
from bridge.cli.printing import echo, print_facts, print_table
from bridge.connect import ClientLeaf, DirectoryStatus, FarmStatus
from bridge.connect.client_status import ClientStatus, LinkStatus
from consensus import counted

_LEAF_COLUMNS = ("LEAF", "COST", "STATE", "ENDS IN", "TIMEOUT", "REPLY", "OPEN", "GOOD", "FAILED", "LAST FAILURE")


def print_client_status(status: ClientStatus) -> None:
    """Print the state of a client."""
    print_facts(list(_client_facts(status)))
    for number, link in enumerate(status.links, start=1):
        echo()
        _print_link(link, number)


def link_label(link: LinkStatus, number: int) -> str:
    """Return the name of a link; for a link without a name, its number with the address of its farm."""
    return link.name or f"{number} {short_address(link.farm.address)}"


def _client_facts(status: ClientStatus) -> Iterator[tuple[str, str]]:
    yield "client", f"version {status.version}, pid {status.pid}, up {duration(status.uptime_s * SECOND_MS)}"
    if status.http is not None:
        yield "http", f"proxy at {status.http}"
    yield "programs", f"open connections {status.open_connections}; {_counts(status.counters)}"
    if status.last_error is not None:
        yield "last error", status.last_error


def _print_link(link: LinkStatus, number: int) -> None:
    farm = link.farm
    state = "ready" if farm.ready else "not ready"
    echo(f"{link_label(link, number)}: {state}", bold=True)
    facts = [("address", farm.address)]
    if farm.problem is not None:
        facts.insert(0, ("problem", farm.problem))
    if link.listen is not None:
        facts.append(("port", f"{link.listen} leads to this farm"))
    facts.append(("structure", _structure_text(farm)))
    facts.append(("sessions", f"{farm.sessions} of 2 ready at {farm.bridge} (SAM); open streams {farm.streams}"))
    facts.extend(("directory", _directory_text(each)) for each in farm.directories)
    facts.append(("counters", _counts(farm.counters)))
    if farm.last_error is not None:
        facts.append(("last error", farm.last_error))
    print_facts(facts)
    if farm.leaves:
        print_table(_LEAF_COLUMNS, [_leaf_row(each) for each in farm.leaves])


def _structure_text(farm: FarmStatus) -> str:
    if farm.structure_age_s is None or farm.structure_ends_in_s is None:
        return "none yet"
    age, left = duration(farm.structure_age_s * SECOND_MS), duration(abs(farm.structure_ends_in_s) * SECOND_MS)
    end = f"ends in {left}" if farm.structure_ends_in_s > 0 else f"ended {left} ago"
    demo = "; a demonstration signed it" if farm.demo else ""
    return f"{age} old, {end}, {counted(len(farm.leaves), 'leaf', 'leaves')}{demo}"


def _directory_text(each: DirectoryStatus) -> str:
    failure = "" if each.last_failure is None else f"; last failure: {each.last_failure}"
    return f"{short_address(each.address)}, replies {each.replies}, failures {each.failures}{failure}"


def _leaf_row(leaf: ClientLeaf) -> tuple[str, ...]:
    return (
        short_address(leaf.address),
        str(leaf.cost),
        leaf.state.value,
        duration(leaf.ends_in_s * SECOND_MS),
        "none" if leaf.patience_s is None else f"{leaf.patience_s:.1f}s",
        "-" if leaf.reply_s is None else milliseconds_text(leaf.reply_s * SECOND_MS),
        str(leaf.streams),
        str(leaf.successes),
        str(leaf.failures),
        leaf.last_failure or "-",
    )


def _counts(counters: Mapping[str, int]) -> str:
    """Return the counters above 0."""
    shown = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counters.items() if count)
    return shown or "nothing counted yet"
