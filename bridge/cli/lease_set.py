"""`garlicfarm lease-set show FILE…`: decodes and verifies Meta LeaseSet2; exit code 0 only if every signature holds.

Several files are what a shell makes of `farm-state/node-*/published/*.meta-ls2` when a publisher was killed: its last
structure stays on its disk, beside the one of its successor.
"""

import time
from pathlib import Path
from typing import Any

import click

from bridge.cli.failure import fail
from bridge.cli.options import json_option, print_json
from bridge.cli.printing import print_facts, print_table
from bridge.tui.words import clock_text, duration
from bridge.wire.lease_set_report import INPUT_LIMIT_BYTES, describe, read_structure
from bridge.wire.meta_lease_set import LeaseSetError, decode

MILLISECONDS = 1000


@click.group("lease-set")
def lease_set() -> None:
    """Look at published structures."""


@lease_set.command()
@click.argument(
    "files",
    metavar="FILE...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
)
@json_option
def show(files: tuple[Path, ...], *, as_json: bool) -> None:
    """Decode and verify a Meta LeaseSet2 (binary or hexadecimal; - reads stdin). Ends with 0 if its signature holds.

    Of several files each is shown, and all must hold.
    """
    problems = []
    for number, file in enumerate(files):
        if number and not as_json:
            click.echo()
        problem = _show(file, as_json=as_json)
        if problem is not None:
            problems.append(problem)
    if problems:
        fail("; ".join(problems))


def _show(file: Path, *, as_json: bool) -> str | None:
    """Print one structure; returns what is wrong with it."""
    try:
        with click.open_file(str(file), "rb") as source:
            content = source.read(INPUT_LIMIT_BYTES + 1)
        found = describe(decode(read_structure(content)), int(time.time()))
    except OSError as error:
        return f"{file} cannot be read: {error.strerror or error}"
    except LeaseSetError as error:
        return f"{file} is no Meta LeaseSet2: {error}"
    if as_json:
        print_json({"schema": 1, **found})
    else:
        _print(found)
    signature = found["signature"]
    return None if signature["verified"] else f"{file}: the signature does not hold: {signature['reason']}"


def _print(found: dict[str, Any]) -> None:
    destination, signature, acceptable = found["destination"], found["signature"], found["acceptable"]
    facts = [
        ("Meta LeaseSet2 of", destination["address"]),
        ("destination", f"{destination['signatureTypeName']}, {found['sizeBytes']} bytes in all"),
        ("published", _second(found["published"])),
        ("expires", _second(found["expires"])),
    ]
    if found["offline"] is not None:
        expired = ", EXPIRED" if found["offline"]["expired"] else ""
        facts.append(("signed by", f"a transient key that ends {_second(found['offline']['expires'])}{expired}"))
    marks = [mark for mark in ("demo", "unpublished", "blinded") if found[mark]]
    if marks:
        facts.append(("marked", ", ".join(marks)))
    facts.extend(("option", f"{name} = {value}") for name, value in found["options"].items())
    facts.append(("signature", "holds" if signature["verified"] else f"DOES NOT HOLD: {signature['reason']}"))
    routers = "accepts it now" if acceptable["javaRouter"] else f"refuses it now: {'; '.join(acceptable['reasons'])}"
    facts.append(("a Java router", routers))
    print_facts(facts)
    rows = [
        (
            entry["address"],
            entry["typeName"],
            str(entry["cost"]),
            "over" if entry["remaining"] <= 0 else duration(entry["remaining"] * MILLISECONDS),
        )
        for entry in found["entries"]
    ]
    print_table(("ENTRY", "TYPE", "COST", "ENDS IN"), rows)


def _second(second: int) -> str:
    return clock_text(second * MILLISECONDS, dated=True)
