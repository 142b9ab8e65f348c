"""`garlicfarm lease-set show FILE…`: decodes and verifies Meta LeaseSet2; exit code 0 only if every signature holds.

A killed publisher leaves its last structure on its disk. Then a shell expands `farm-state/node-*/published/*.meta-ls2`
to several files: that structure, and the successor's.
"""

import time
from pathlib import Path

import click

from bridge.api.lease_set_report import (
    INPUT_LIMIT_BYTES,
    DestinationReport,
    EntryReport,
    LeaseSetReport,
    OfflineReport,
    SignatureReport,
    describe,
    read_structure,
)
from bridge.api.printable import clock_text, duration
from bridge.cli.failure import fail
from bridge.cli.options import SummaryGroup, json_option
from bridge.cli.printing import echo, print_facts, print_json, print_table
from bridge.wire.i2p.meta_lease_set import BLINDED_FLAG, OFFLINE_FLAG, UNPUBLISHED_FLAG, LeaseSetError, Verdict, decode

MILLISECONDS = 1000
KNOWN_FLAGS = OFFLINE_FLAG | UNPUBLISHED_FLAG | BLINDED_FLAG


@click.group("lease-set", cls=SummaryGroup)
def lease_set() -> None:
    """Show published structures."""


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

    With several files, each one is shown, and every signature must hold.
    """
    problems = []
    for number, file in enumerate(files):
        if number and not as_json:
            echo()
        problem = _show(file, as_json=as_json)
        if problem is not None:
            problems.append(problem)
    if problems:
        fail("; ".join(problems))


def _show(file: Path, *, as_json: bool) -> str | None:
    try:
        with click.open_file(str(file), "rb") as source:
            content = source.read(INPUT_LIMIT_BYTES + 1)
        found = describe(decode(read_structure(content)), int(time.time()))
    except OSError as error:
        return f"{file} cannot be read: {error.strerror or error}"
    except LeaseSetError as error:
        return f"{file} is not a Meta LeaseSet2: {error}"
    if as_json:
        print_json(found)
    else:
        _print(found)
    signature = found.signature
    if signature.verdict == Verdict.CANNOT_VERIFY.value:
        return f"{file}: {signature.reason}"
    return None if signature.verified else f"{file}: the signature is invalid: {signature.reason}"


def _print(found: LeaseSetReport) -> None:
    destination, acceptable = found.destination, found.acceptable
    facts = [
        ("Meta LeaseSet2 of", destination.address),
        ("destination", f"{_key_kind(destination)}, hash {destination.hash}; {found.size_bytes} bytes in all"),
        ("published", _second(found.published)),
        ("expires", _second(found.expires)),
        ("flags", _flags(found)),
    ]
    if found.offline is not None:
        facts.extend(_transient(found.offline))
    if found.demo:
        facts.append(("marked", "demo"))
    facts.extend(("option", f"{name} = {value}") for name, value in found.options.items())
    facts.extend(("revoked", revoked) for revoked in found.revocations)
    facts.append(("signature", _verdict(found.signature)))
    routers = (
        "would accept it now" if acceptable.java_router else f"would refuse it now: {'; '.join(acceptable.reasons)}"
    )
    facts.append(("Java router", routers))
    print_facts(facts)
    rows = [
        (
            entry.address,
            _entry_kind(entry),
            str(entry.cost),
            "over" if entry.remaining <= 0 else duration(entry.remaining * MILLISECONDS),
        )
        for entry in found.entries
    ]
    print_table(("ENTRY", "TYPE", "COST", "ENDS IN"), rows)


def _key_kind(key: DestinationReport | OfflineReport) -> str:
    name, number = key.signature_type_name, f"type {key.signature_type}"
    return f"{name} ({number})" if name != number else f"{number}, an unknown type"


def _flags(found: LeaseSetReport) -> str:
    flags = (
        ("offline signature", found.offline is not None),
        ("unpublished", found.unpublished),
        ("blinded", found.blinded),
    )
    names = [name for name, there in flags if there]
    if unknown := found.flags & ~KNOWN_FLAGS:
        names.append(f"0x{unknown:04x} without a meaning")
    return f"0x{found.flags:04x}: {', '.join(names) or 'none'}"


def _transient(offline: OfflineReport) -> list[tuple[str, str]]:
    expired = ", EXPIRED" if offline.expired else ""
    return [
        ("signed by", f"a transient key, {_key_kind(offline)}, {offline.transient_key}"),
        ("", f"which ends {_second(offline.expires)}{expired}"),
    ]


def _verdict(signature: SignatureReport) -> str:
    if signature.verified:
        return f"valid: {signature.reason}"
    if signature.verdict == Verdict.CANNOT_VERIFY.value:
        return f"UNKNOWN: {signature.reason}"
    return f"INVALID: {signature.reason}"


def _entry_kind(entry: EntryReport) -> str:
    upper = entry.flags >> 8
    return f"{entry.type_name}, flags 0x{upper:04x}" if upper else entry.type_name


def _second(second: int) -> str:
    return clock_text(second * MILLISECONDS, dated=True)
