"""`garlicfarm pipeline floodfills`: the table `closest_floodfills` for the destinations in the tables.

The routers come from a file with one hash a line (64 hexadecimal digits, or I2P base64), or from a router's directory
`netDb`. The name of each file there contains a hash: `routerInfo-HASH.dat`. The content shows whether the router is a
floodfill, and this command does not read the content. So pass a list of floodfills, or read the result as "closest of
these".
"""

import base64
import binascii
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path

import click
from pyspark.sql import SparkSession

from pipeline.cli.options import IntegerRange, output_option, reported_errors, spark_options
from pipeline.floodfills import CLOSEST_DEFAULT, HASH_BYTES, SPEC, closest_floodfills, keep, utc_today
from pipeline.serve.printing import echo
from pipeline.source.log_client import FarmLogError
from pipeline.tables.names import read_names

_PREFIX, _SUFFIX = "routerInfo-", ".dat"


_YEARS = range(1001, 9999)
"""The years of a `yyyyMMdd`, except the first and the last year: `--day` needs a day before it and a day after it."""


def a_day(_: click.Context, __: click.Parameter, value: datetime | None) -> date | None:
    """Check that there is a day before and after this one, before a JVM is started."""
    if value is not None and value.year not in _YEARS:
        raise click.BadParameter(f"{value:%Y} is not a year of the network database: give a day such as 2026-01-31.")
    return None if value is None else value.date()


@click.command()
@click.option("--routers", required=True, type=click.Path(path_type=Path, exists=True), help="A list, or a netDb.")
@click.option(
    "--day",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="YYYY-MM-DD",
    callback=a_day,
    help="The day in the middle (UTC). Default: today.",
)
@click.option(
    "--count",
    default=CLOSEST_DEFAULT,
    show_default=True,
    type=IntegerRange(1, 64),
    help="Number of floodfills for each day.",
)
@output_option("Directory of the tables.", is_local=True)
@spark_options
def floodfills(*, routers: Path, day: date | None, count: int, output: Path, spark: Callable[[], SparkSession]) -> None:
    """Find the closest floodfills of each destination, yesterday, today and tomorrow.

    The table names destinations by their hashes, not by pseudonyms: do not publish it.
    """
    with reported_errors():
        hashes = router_hashes(routers)
        addresses = _addresses(output)
        today = utc_today() if day is None else day
        session = spark()
        try:
            known = session.createDataFrame([(hash_of(address),) for address in addresses], "destination STRING")
            found = session.createDataFrame([(each,) for each in hashes], "router STRING")
            keep(output, closest_floodfills(known, found, today, count))
        finally:
            session.stop()
    echo(f"{SPEC.name} ({today}): destinations {len(addresses)}, routers {len(hashes)}.")


def router_hashes(place: Path) -> list[str]:
    """Return the hashes in hexadecimal, each once. Raise FarmLogError for an invalid line, or without any hash."""
    if place.is_dir():
        names = (file.name for file in place.rglob(f"{_PREFIX}*{_SUFFIX}"))
        texts = [(name, name.removeprefix(_PREFIX).removesuffix(_SUFFIX)) for name in names]
    else:
        try:
            lines = place.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise FarmLogError(
                f"{place} is not text: give a file with one router's hash on each line, or a netDb"
            ) from error
        texts = [(f"line {number}", line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    hashes = sorted({_hexadecimal(text, f"{place}, {where}") for where, text in texts})
    if not hashes:
        what = f"no file {_PREFIX}HASH{_SUFFIX}" if place.is_dir() else "no line"
        raise FarmLogError(f"{place} does not contain a router's hash: it has {what}")
    return hashes


def hash_of(address: str) -> str:
    """Return the hash in a b32 address, in hexadecimal."""
    return base64.b32decode(address.upper() + "====").hex()


def _addresses(output: Path) -> list[str]:
    addresses = sorted(read_names(output).values())
    if not addresses:
        raise FarmLogError(f"{output} does not contain a destination yet; run `garlicfarm pipeline run --once` first")
    return addresses


def _hexadecimal(text: str, place: str) -> str:
    is_hexadecimal = len(text) == 2 * HASH_BYTES
    try:
        octets = bytes.fromhex(text) if is_hexadecimal else base64.b64decode(text, altchars=b"-~", validate=True)
    except (ValueError, binascii.Error):
        octets = b""
    if len(octets) != HASH_BYTES:
        raise FarmLogError(
            f"{place}: {text[:80]!r} is not a router's hash (64 hexadecimal digits, or 44 of I2P base64)"
        )
    return octets.hex()
