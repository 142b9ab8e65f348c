"""One table a kind of entry: rows of `classified` with the names and units of `pipeline.schemas.HISTORY`.

Tables name destinations by pseudonyms; their addresses are in a file of its own that only the owner can read
(`pipeline/current_state.py`). A pseudonym is `d-` and 12 hexadecimal digits of SHA-256 over a secret salt and the
destination's b32 address. Without the salt it would be no pseudonym: addresses are public, and any holder of a list of
them could hash it.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from pipeline.schemas import HISTORY
from pipeline.transforms.entries import REFUSED, milliseconds, parts_in_masters, seconds

_BASE32_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUV"
_BASE32_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
_LAST_PIECE = 60
_PLAIN_KINDS = ("admission", "approval", "level", "removal", "correction", "client")
"""Their members name no destination and are kept as they came."""
OPERATOR_KINDS = ("exclusion", "cost", "force", "eviction", "rekeying", *_PLAIN_KINDS)


def reports(entries: DataFrame) -> DataFrame:
    """One row a readable report of a server."""
    json = f.col("json")
    router, masters, destinations = json["router"], parts_in_masters(json["meta"]), json["destinations"]
    healthy = f.size(f.filter(destinations, lambda leaf: leaf["healthy"]))
    return _table(
        "reports",
        entries.where(f.col("entry") == "report"),
        server_id=json["id"],
        written_at=milliseconds(json["date"]),
        # Left out means true.
        attached=f.coalesce(router["attached"], f.lit(True)),  # noqa: FBT003 - a column's value
        uptime_ms=router["uptime"],
        job_lag_ms=router["jobLag"],
        participating_tunnels=router["participatingTunnels"],
        bandwidth_bytes_per_s=router["currentBandwidth"],
        cpu_percent=router["cpuPercent"],
        memory_percent=router["memoryPercent"],
        destinations=f.when(destinations.isNull(), 0).otherwise(f.size(destinations)),
        healthy_destinations=f.when(destinations.isNull(), 0).otherwise(healthy),
        publishing=f.coalesce(f.exists(masters, lambda part: part["publishing"]), f.lit(False)),  # noqa: FBT003 - a value
        exploratory_tunnels=router["exploratoryTunnels"],
        configured_bandwidth_bytes_per_s=router["configuredBandwidth"],
        publish_config=f.array_join(f.array_distinct(_of_each(masters, "publishConfig")), ","),
        can_sign_until=seconds(f.array_min(_of_each(masters, "canSignUntil"))),
        last_published_at=milliseconds(f.nullif(f.array_max(_of_each(masters, "lastPublishedTime")), f.lit(0))),
        request=json["request"],
        masters=f.when(masters.isNull(), 0).otherwise(f.size(masters)),
    )


def destination_reports(entries: DataFrame, salt: str) -> DataFrame:
    """One row a destination in a report; a destination named twice in one report counts once, as first named."""
    return addressed_destination_reports(entries, salt).drop("address")


def addressed_destination_reports(entries: DataFrame, salt: str) -> DataFrame:
    """The same with the destination's `address`."""
    destinations = f.col("json")["destinations"]
    texts = f.transform(destinations, lambda leaf: leaf["destination"])
    told = entries.where(f.col("entry") == "report").select("*", f.posexplode(destinations).alias("place", "leaf"))
    leaf = f.col("leaf")
    first = told.where(f.array_position(texts, leaf["destination"]) == f.col("place") + 1)
    rows = first.withColumn("address", address_of(leaf["destination"]))
    return _table(
        "destination_reports",
        rows,
        ("address",),
        server_id=f.col("json")["id"],
        destination=pseudonym(f.col("address"), salt),
        healthy=f.coalesce(leaf["healthy"], f.lit(False)),  # noqa: FBT003 - a column's value
        uptime_ms=leaf["uptime"],
        configured_tunnels=leaf["configuredTunnels"],
        current_tunnels=leaf["currentTunnels"],
        configured_bandwidth_bytes_per_s=leaf["configuredBandwidth"],
        bandwidth_bytes_per_s=leaf["currentBandwidth"],
        configured_connections=leaf["configuredConnections"],
        connections=leaf["currentConnections"],
        request=f.col("json")["request"],
    )


def clocks(entries: DataFrame) -> DataFrame:
    """One row a clock entry: when, and which leader wrote it."""
    clock = f.col("json")["clock"]
    return _table("clocks", entries.where(f.col("entry") == "clock"), leader_id=clock["id"], period_ms=clock["period"])


def publications(entries: DataFrame, salt: str) -> DataFrame:
    """One row a publisher's commitment to a structure, before it signs."""
    return addressed_publications(entries, salt).drop("address")


def addressed_publications(entries: DataFrame, salt: str) -> DataFrame:
    """The same with the master's `address`."""
    publication = f.col("json")["publication"]
    told = entries.where(f.col("entry") == "publication")
    rows = told.withColumn("address", address_of(publication["master"]))
    return _table(
        "publications",
        rows,
        ("address",),
        master=pseudonym(f.col("address"), salt),
        server_id=publication["id"],
        published_at=milliseconds(publication["published"] * 1000),
        content_hash=publication["contentHash"],
    )


def configurations(entries: DataFrame) -> DataFrame:
    """One row a member set of the Raft group."""
    members = f.col("members")

    def ids(name: str) -> Column:
        return f.coalesce(
            f.array_sort(f.transform(members[name], lambda each: each["id"])), f.array().cast("array<long>")
        )

    return _table(
        "configurations",
        entries.where(f.col("entry") == "configuration"),
        voters=ids("voters"),
        learners=ids("learners"),
        joint=f.coalesce(f.size(members["oldVoters"]) > 0, f.lit(False)),  # noqa: FBT003 - a column's value
    )


def factors(entries: DataFrame, salt: str) -> DataFrame:
    """One row a destination in an entry of factors."""
    told = f.col("json")["factors"]
    rows = entries.where(f.col("entry") == "factors").select("*", f.explode(told["factors"]).alias("address", "value"))
    return _table(
        "factors",
        rows,
        through_index=told["throughIndex"],
        formula=told["formula"],
        destination=pseudonym(_bare(f.col("address")), salt),
        factor=f.col("value"),
    )


def operator_actions(entries: DataFrame, salt: str) -> DataFrame:
    """One row an entry of an operator or a leader about the farm itself: members, exclusions, costs.

    `subject` is the destination's pseudonym where the action is about one; `detail` is the rest as JSON.
    """
    json = f.col("json")
    by_kind = (
        f.when(f.col("entry") == "exclusion", f.to_json(f.struct(json["exclusion"]["excluded"].alias("excluded"))))
        .when(f.col("entry") == "cost", f.to_json(f.struct(json["cost"]["factor"].alias("factor"))))
        .when(f.col("entry") == "force", f.lit("{}"))
        .when(f.col("entry") == "eviction", f.to_json(json["eviction"]))
        .when(f.col("entry") == "rekeying", f.to_json(json["rekeying"]))
        .otherwise(f.coalesce(*(json[kind] for kind in _PLAIN_KINDS)))
    )
    subject = f.coalesce(
        pseudonym(_bare(json["exclusion"]["hash"]), salt),
        pseudonym(_bare(json["cost"]["hash"]), salt),
        pseudonym(address_of(json["force"]["master"]), salt),
    )
    return _table(
        "operator_actions",
        entries.where(f.col("entry").isin(*OPERATOR_KINDS)),
        action=f.col("entry"),
        subject=subject,
        detail=by_kind,
        request=json["request"],
    )


def quarantine(entries: DataFrame) -> DataFrame:
    """Application entries of no kind that the pipeline knows: index, size, reason; the text stays in the log."""
    json = f.col("json")
    claimed = f.coalesce(
        *(f.when(json[kind].isNotNull(), kind) for kind in ("clock", "publication", "factors")),
        f.when(json["router"].isNotNull(), "report"),
    )
    return _table("quarantine", entries.where(f.col("entry") == REFUSED), kind=claimed)


def _of_each(masters: Column, member: str) -> Column:
    return f.transform(masters, lambda part: part[member])


def pseudonym(address: Column, salt: str) -> Column:
    """The name of a destination in the tables."""
    return f.concat(f.lit("d-"), f.substring(f.sha2(f.concat(f.lit(salt), address), 256), 1, 12))


def address_of(destination: Column) -> Column:
    """The b32 address (52 characters, without `.b32.i2p`) of a destination in I2P base64; of its text if it is none."""
    octets = f.try_to_binary(f.translate(destination, "-~", "+/"), f.lit("base64"))
    return _base32(f.coalesce(f.sha2(octets, 256), f.sha2(destination, 256)))


def _bare(address: Column) -> Column:
    return f.regexp_replace(f.lower(address), r"\.b32\.i2p$", "")


def _base32(digest: Column) -> Column:
    """Base32 of a SHA-256 in hexadecimal: 40 bits are 10 digits of one and 8 of the other."""
    padded = f.concat(digest, f.lit("0"))
    pieces = [
        f.lpad(f.conv(f.substring(padded, start + 1, 10), 16, 32), 8 if start < _LAST_PIECE else 4, "0")
        for start in range(0, _LAST_PIECE + 1, 10)
    ]
    return f.translate(f.concat(*pieces), _BASE32_DIGITS, _BASE32_LETTERS)


def _table(name: str, rows: DataFrame, also: tuple[str, ...] = (), **columns: Column) -> DataFrame:
    """`rows` with the columns of the table `name`, in its order and with its types, and some more behind them."""
    named = (
        columns[field.name].cast(field.dataType).alias(field.name) if field.name in columns else f.col(field.name)
        for field in HISTORY[name].fields
    )
    return rows.select(*named, *also)
