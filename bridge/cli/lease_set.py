"""`garlicfarm lease-set show FILE`: decodes and verifies a Meta LeaseSet2; exit code 0 only if the signature holds."""

import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bridge.cli.failure import fail
from bridge.cli.options import json_option, print_json
from bridge.tui.words import clock_text, duration, printable
from bridge.wire.lease_set_report import INPUT_LIMIT_BYTES, describe, read_structure
from bridge.wire.meta_lease_set import LeaseSetError, decode

MILLISECONDS = 1000


@click.group("lease-set")
def lease_set() -> None:
    """Look at published structures."""


@lease_set.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@json_option
def show(file: Path, *, as_json: bool) -> None:
    """Decode and verify a Meta LeaseSet2 (binary or hexadecimal; - reads stdin). Ends with 0 if its signature holds."""
    try:
        with click.open_file(str(file), "rb") as source:
            content = source.read(INPUT_LIMIT_BYTES + 1)
        found = describe(decode(read_structure(content)), int(time.time()))
    except OSError as error:
        fail(f"{file} cannot be read: {error.strerror or error}")
    except LeaseSetError as error:
        fail(f"{file} is no Meta LeaseSet2: {error}")
    if as_json:
        print_json({"schema": 1, **found})
    else:
        _print(found)
    signature = found["signature"]
    if not signature["verified"]:
        fail(f"{file}: the signature does not hold: {signature['reason']}")


def _print(found: dict[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    destination, signature, acceptable = found["destination"], found["signature"], found["acceptable"]
    console.print(Text(f"Meta LeaseSet2 of {destination['address']}"), style="bold")
    console.print(Text(f"destination  {destination['signatureTypeName']}, {found['sizeBytes']} bytes in all"))
    console.print(Text(f"published    {_second(found['published'])}"))
    console.print(Text(f"expires      {_second(found['expires'])}"))
    if found["offline"] is not None:
        expired = ", EXPIRED" if found["offline"]["expired"] else ""
        console.print(Text(f"signed by    a transient key that ends {_second(found['offline']['expires'])}{expired}"))
    marks = [mark for mark in ("demo", "unpublished", "blinded") if found[mark]]
    if marks:
        console.print(Text(f"marked       {', '.join(marks)}"))
    for name, value in found["options"].items():
        console.print(Text(f"option       {printable(name)} = {printable(value)}"))
    verdict = "holds" if signature["verified"] else f"DOES NOT HOLD: {signature['reason']}"
    console.print(Text(f"signature    {verdict}"), style="green" if signature["verified"] else "red")
    routers = "yes" if acceptable["javaRouter"] else f"no: {'; '.join(acceptable['reasons'])}"
    console.print(Text(f"a Java router would accept it now: {routers}"))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("ENTRY", no_wrap=True, overflow="fold")
    for heading in ("TYPE", "COST", "ENDS IN"):
        table.add_column(heading, justify="right", no_wrap=True)
    for entry in found["entries"]:
        left = "over" if entry["remaining"] <= 0 else duration(entry["remaining"] * MILLISECONDS)
        table.add_row(entry["address"], entry["typeName"], str(entry["cost"]), left)
    console.print(table)


def _second(second: int) -> str:
    return clock_text(second * MILLISECONDS, dated=True)
