"""`garlicfarm link`: the address of a master and the directories of all nodes, as a link and a QR code for users.

    reports of the servers ─┐
    this node's directory  ─┴─▶ directories, serving ones first, at most 16 ─▶ garlicfarm:ADDRESS?at=… ─▶ QR code

A directory that does not serve now is in the link too: its router may only be restarting, and users keep the link. The
QR code has as many directories as fit in the width of the terminal.
"""

from bisect import bisect_right
from functools import cache

import click

from bridge.api.control_routes import VIEW
from bridge.api.outputs import LinkedDirectory, LinkOutput
from bridge.api.printable import B32_SUFFIX
from bridge.api.view import DirectoryView, FarmView, ReportView
from bridge.api.words import directory_text
from bridge.cli.failure import fail
from bridge.cli.help.completion import complete_master
from bridge.cli.node_queries import call_node, node_option
from bridge.cli.options import json_option
from bridge.cli.printing import (
    echo,
    echo_whole,
    end_with_json,
    is_terminal,
    print_facts,
    print_picture,
    terminal_columns,
)
from bridge.core.membership.admission import server_label
from bridge.wire.i2p.farm_link import DIRECTORIES_LIMIT, FarmLink, parse_link
from bridge.wire.i2p.structures import hash_of_address

BORDER = 4
"""Modules of the white border, as the standard requires."""
NO_REPORT = "it has not reported yet"
NO_SAM = (
    "it does not use a SAM bridge: enable SAM in its router and set router.sam, and update garlicfarm if its version is"
    " older"
)


@click.command()
@click.option(
    "--master",
    metavar="ADDRESS",
    shell_complete=complete_master,
    help="The address of the master; required if the farm publishes several.",
)
@click.option("--no-qr", is_flag=True, help="Do not print a QR code.")
@node_option
@json_option
def link(node: str | None, *, master: str | None, no_qr: bool, as_json: bool) -> None:
    """Print the link that users of the farm need: its address, and the directories that return its structure.

    A pipe or `$(garlicfarm link)` gets the link alone. A terminal also shows the directories and a QR code.
    """
    view = call_node(node, VIEW)
    made = link_of(view, master)
    end_with_json(made, as_json=as_json)
    echo_whole(made.link)
    if not is_terminal():
        return
    echo()
    print_facts(
        [
            ("address", made.address),
            *((each.server, _text(each)) for each in made.directories),
            ("users run", "garlicfarm connect 'LINK' --listen 127.0.0.1:8080"),
        ]
    )
    if not no_qr:
        echo()
        _print_qr_code(parse_link(made.link), terminal_columns())


def _print_qr_code(whole: FarmLink, columns: int) -> None:
    @cache
    def lines_with(count: int) -> list[str]:
        return qr_lines(str(FarmLink(whole.address_hash, whole.directories[:count])))

    def width_of(count: int) -> int:
        return len(lines_with(count)[0])

    # More directories need a wider code. Making a code takes 0.1 s, so the search bisects.
    most = len(whole.directories)
    count = most if width_of(most) <= columns else bisect_right(range(1, most), columns, key=width_of)
    if not count:
        echo(f"The terminal is too narrow for a QR code: it has {columns} columns, and {width_of(1)} are necessary.")
        return
    print_picture(lines_with(count))
    if count < most:
        echo(f"The QR code has {count} of the {most} directories: a wider one does not fit.")


def qr_lines(text: str) -> list[str]:
    """Return the QR code of a text with its white border; each character shows two rows of modules."""
    # Only this command draws a QR code.
    import segno  # noqa: PLC0415

    code = segno.make(text, error="l", micro=False)
    rows = [[bool(module) for module in row] for row in code.matrix_iter(border=BORDER)]
    rows += [[False] * len(rows[0])] * (len(rows) % 2)
    return ["".join(map(_letter, upper, lower)) for upper, lower in zip(rows[::2], rows[1::2], strict=True)]


def _letter(upper: bool, lower: bool) -> str:  # noqa: FBT001 - modules of a picture
    return (
        ("\N{FULL BLOCK}" if lower else "\N{UPPER HALF BLOCK}") if upper else "\N{LOWER HALF BLOCK}" if lower else " "
    )


def link_of(view: FarmView, master: str | None) -> LinkOutput:
    """Return the link of a master, or end the command with the reason."""
    address = _address(view, master)
    directories = _directories(view)
    named = [hash_of_address(each.address) for each in directories if each.address is not None]
    if not named:
        reasons = "\n".join(f"{each.server}: {each.problem}" for each in directories)
        fail(f"no node has a directory yet, so users cannot get the structure of {address}:\n{reasons}")
    made = FarmLink(hash_of_address(address), tuple(dict.fromkeys(named))[:DIRECTORIES_LIMIT])
    return LinkOutput(address, str(made), tuple(directories))


def _address(view: FarmView, master: str | None) -> str:
    published = [each.master for each in view.publishing]
    if not published:
        fail("the farm does not publish a master yet; `garlicfarm status` shows the reason")
    if master is None and len(published) == 1:
        return published[0]
    wanted = None if master is None else f"{master.lower().removesuffix(B32_SUFFIX)}{B32_SUFFIX}"
    if wanted in published:
        return wanted
    problem = "the farm publishes several masters" if master is None else f"the farm does not publish {master}"
    return fail(f"{problem}; name one of these with --master:\n" + "\n".join(published))


def _directories(view: FarmView) -> list[LinkedDirectory]:
    """Return the directory of each server, the serving directories first and the missing ones last."""
    reports = {each.raft_id: each for each in view.reports}
    servers = {each.raft_id: each.name for each in (*view.raft.voters, *view.raft.learners)}
    servers |= {each.raft_id: each.name for each in view.reports}
    found = [_directory(view, raft_id, name, reports.get(raft_id)) for raft_id, name in sorted(servers.items())]
    return sorted(found, key=lambda each: (each.address is None, each.problem is not None))


def _directory(view: FarmView, raft_id: int, name: str | None, report: ReportView | None) -> LinkedDirectory:
    label, own = server_label(raft_id, name), view.node.directory if raft_id == view.node.raft_id else None
    reported = None if report is None else report.directory
    directory = own or reported
    if directory is None:
        return LinkedDirectory(label, None, NO_REPORT if report is None else NO_SAM)
    is_old = report is not None and report.stale and own is None
    return LinkedDirectory(
        label, directory.address, directory.problem or ("its last report is old" if is_old else None)
    )


def _text(directory: LinkedDirectory) -> str:
    if directory.address is None:
        return f"no directory: {directory.problem}"
    return directory_text(DirectoryView(directory.address, directory.problem))
