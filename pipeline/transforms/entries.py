"""What a log entry says: its JSON by a declared schema, its kind, or the reason why it is refused.

    envelope ──▶ classified:  all columns of the envelope, and
                              json      the application entry's members (NULL where the text is not what it should be)
                              members   a configuration's members
                              entry     report, clock, publication, …, configuration, no-op; `refused` if none;
                                        `snapshot` for a report of which the log holds only what came of it
                              reason    why it is refused

An entry without a proof of its author is refused (docs/reference/application-json.md), since the farm gives it no
effect. Whether a proof holds, and whether its author may write such an entry, depends on the identities that the farm
had admitted by then. Only the farm knows: an entry that looks proven is counted here although the farm may have refused
it.

Parsing is Spark's own `from_json`, in the JVM and once for all tables: a hostile entry becomes NULLs, not an exception.
The rules are those of the farm (`docs/reference/application-json.md`): one member tells the kinds apart; an entry with
several of them, without what it needs or with a value outside its range is refused. Members that are not declared are
passed over, so entries may gain some. Texts are taken as they are: only the farm checks whether a hash or a destination
is valid.

`meta` is one object, or a list of them from a server that serves several masters, and Spark has no type for "this or
that". It is kept as text here, and `parts_in_masters` reads either. Two parsings to choose from would be slow: the
optimizer copies the expression of a column into every filter behind it (`_kept_whole`).

Every arithmetic on a value that an entry chose happens behind a check of its range: with `spark.sql.ansi.enabled`, as
it is, an overflow is an exception, and one entry with the date 2^62 would stop the pipeline for good.
"""

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

BODY_LIMIT_BYTES = 64 * 1024
DESTINATIONS_LIMIT = 64
LATEST_MS = 253_402_300_799_999
"""The end of the year 9999, the latest that a reader in Python can show."""
_SAFE_INTEGER = 2**53
_SERVER_ID_END = 2**31
_SECONDS_END = 2**32
_LAG_LIMIT_MS = 1e9
_PERCENT_LIMIT = 100
_FACTOR_LIMIT = 1e9

KINDS = (
    "report",
    "clock",
    "publication",
    "admission",
    "exclusion",
    "cost",
    "force",
    "factors",
    "approval",
    "eviction",
    "rekeying",
    "level",
    "removal",
    "correction",
    "client",
)
REFUSED = "refused"
UNSIGNED = "without a proof of its author, so the farm gives it no effect"
_PROOF = r',"proof":"[A-Za-z0-9_-]{43}\.[1-9][0-9]{0,15}\.[A-Za-z0-9_-]{86}"\}\z'
_PROOF_LIMIT_CHARACTERS = 159
"""The longest text that this matches: only the end of a body is searched."""
LEAF_HASH = "[a-z2-7]{52}"
"""How a factor names a destination: SHA-256 in base 32."""
SNAPSHOT = "snapshot"


def _struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


_LONG, _DOUBLE, _TEXT, _FLAG = LongType(), DoubleType(), StringType(), BooleanType()
_META = _struct(
    destination=_TEXT,
    publishConfig=_TEXT,
    publishing=_FLAG,
    lastPublishedTime=_LONG,
    canSignUntil=_LONG,
)
_ENTRY = _struct(
    date=_LONG,
    id=_LONG,
    request=_TEXT,
    meta=_TEXT,
    router=_struct(
        attached=_FLAG,
        uptime=_LONG,
        jobLag=_DOUBLE,
        exploratoryTunnels=_LONG,
        participatingTunnels=_LONG,
        configuredBandwidth=_LONG,
        currentBandwidth=_LONG,
        cpuPercent=_DOUBLE,
        memoryPercent=_DOUBLE,
    ),
    destinations=ArrayType(
        _struct(
            destination=_TEXT,
            healthy=_FLAG,
            uptime=_LONG,
            configuredTunnels=_LONG,
            currentTunnels=_LONG,
            configuredBandwidth=_LONG,
            currentBandwidth=_LONG,
            configuredConnections=_LONG,
            currentConnections=_LONG,
        )
    ),
    clock=_struct(time=_LONG, id=_LONG, period=_LONG),
    publication=_struct(master=_TEXT, id=_LONG, published=_LONG, contentHash=_TEXT),
    admission=_TEXT,
    exclusion=_struct(hash=_TEXT, excluded=_FLAG),
    cost=_struct(hash=_TEXT, factor=_DOUBLE),
    force=_struct(master=_TEXT),
    factors=_struct(throughIndex=_LONG, formula=_TEXT, factors=MapType(_TEXT, _DOUBLE)),
    approval=_TEXT,
    # Without the boxes, which hold the new key sealed.
    eviction=_struct(node=_TEXT),
    rekeying=_struct(era=_LONG),
    level=_TEXT,
    removal=_TEXT,
    correction=_TEXT,
    client=_TEXT,
    _malformed=_TEXT,
)
"""Members as of `docs/reference/application-json.md`. A member declared as text keeps its JSON as it came."""

_SERVERS = ArrayType(_struct(id=_LONG))
_MEMBERS = _struct(voters=_SERVERS, learners=_SERVERS, oldVoters=_SERVERS)


def classified(entries: DataFrame) -> DataFrame:
    """Each entry of the log with what it says, or the reason why it is refused."""
    options = {
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": "_malformed",
        "allowNonNumericNumbers": "false",
        "allowSingleQuotes": "false",
    }
    is_application = f.col("kind").isin("application", SNAPSHOT)
    readable = is_application & (f.col("encoding") == "text") & (f.col("body_bytes") <= BODY_LIMIT_BYTES)
    json = _kept_whole(f.from_json(f.when(readable, f.col("body")), _ENTRY, options))
    parsed = entries.withColumns({"json": json}).withColumn(
        "members", f.from_json(f.when(f.col("kind") == "configuration", f.col("body")), _MEMBERS, options)
    )
    reason = f.when(is_application, _reason(f.col("json")))
    return parsed.select(
        "*",
        reason.alias("reason"),
        f.when(reason.isNotNull(), REFUSED)
        .when(f.col("kind") == "application", _kind(f.col("json")))
        .otherwise(f.col("kind"))
        .alias("entry"),
    )


def _kept_whole(value: Column) -> Column:
    """The value, behind a step that the optimizer does not look through.

    A filter by the kind of an entry uses a hundred parts of the parsed text. The optimizer moves filters as far down
    as it can, and replaces the name of a column by its expression: a hundred times `from_json`, and seconds of
    planning for each batch. It moves nothing below an `explode`, even one of a single value.
    """
    return f.explode(f.array(value))


def parts_in_masters(meta: Column) -> Column:
    """A report's part in each master that it names: an array, NULL where `meta` is none or cannot be read."""
    return f.from_json(meta, ArrayType(_META))


def milliseconds(value: Column) -> Column:
    """A timestamp from milliseconds since the epoch; NULL outside the years that can be shown."""
    return f.when(value.between(0, LATEST_MS), f.timestamp_millis(f.when(value.between(0, LATEST_MS), value)))


def seconds(value: Column) -> Column:
    """The same from seconds, as the farm has them: below 2^32."""
    return milliseconds(f.when(value.between(0, _SECONDS_END - 1), value) * 1000)


def _member(json: Column, kind: str) -> Column:
    return json["router" if kind == "report" else kind]


def _kind(json: Column) -> Column:
    return f.coalesce(*(f.when(_member(json, kind).isNotNull(), kind) for kind in KINDS))


def _reason(json: Column) -> Column:
    present = reduce(Column.__add__, (_member(json, kind).isNotNull().cast("int") for kind in KINDS))
    return (
        f.when(f.col("encoding") != "text", "not UTF-8")
        .when(f.col("body_bytes") > BODY_LIMIT_BYTES, f"larger than {BODY_LIMIT_BYTES} bytes")
        # Spark reads the first object in a text and ignores what follows it.
        .when(json["_malformed"].isNotNull() | ~_ends_with_its_object(), "not the JSON that a server writes")
        .when(json.isNull() | (present == 0), "of no kind that this version knows")
        .when(present > 1, "of several kinds at once")
        # A snapshot holds the result of a report, not the entry itself.
        .when((f.col("kind") == "application") & ~_ends_like_proof(), UNSIGNED)
        .when(json["router"].isNotNull() & json["id"].isNull(), "a report without the server's id")
        .when(json["router"].isNotNull() & json["date"].isNull(), "a report without a date")
        .when(
            json["clock"].isNotNull() & (json["clock"]["time"].isNull() | json["clock"]["id"].isNull()),
            "a clock entry without a time or its leader",
        )
        .when(
            json["publication"].isNotNull()
            & (json["publication"]["published"].isNull() | json["publication"]["master"].isNull()),
            "a publication without its second or master",
        )
        .when(
            json["factors"].isNotNull()
            & (json["factors"]["throughIndex"].isNull() | json["factors"]["factors"].isNull()),
            "factors without throughIndex or factors",
        )
        .when(
            f.exists(f.map_keys(json["factors"]["factors"]), lambda leaf: ~leaf.rlike(rf"\A{LEAF_HASH}\z")),
            "a factor of what is no destination's hash",
        )
        .when(_lacks_what_it_needs(json), "an operator's entry without its subject")
        .when(f.size(json["destinations"]) > DESTINATIONS_LIMIT, f"more than {DESTINATIONS_LIMIT} destinations")
        .when(~_in_range(json), "a value outside its range")
    )


def _in_range(json: Column) -> Column:
    """Whether each figure is within what the farm accepts; a figure that is left out is."""
    router = json["router"]
    counts = [
        json["date"],
        json["clock"]["time"],
        json["clock"]["period"],
        *(router[name] for name in ("uptime", "exploratoryTunnels", "participatingTunnels")),
        *(router[name] for name in ("configuredBandwidth", "currentBandwidth")),
    ]
    within = [
        *(_within(value, _SAFE_INTEGER - 1) for value in counts),
        *(_within(value, _SERVER_ID_END - 1) for value in (json["id"], json["clock"]["id"], json["publication"]["id"])),
        _within(json["publication"]["published"], _SECONDS_END - 1),
        *(_within(router[name], _PERCENT_LIMIT) for name in ("cpuPercent", "memoryPercent")),
        _within(router["jobLag"], _LAG_LIMIT_MS),
        _within(json["factors"]["throughIndex"], _SAFE_INTEGER - 1),
        _is_factor(json["cost"]["factor"]),
        json["factors"].isNull()
        | f.forall(f.map_values(json["factors"]["factors"]), lambda factor: factor.isNotNull() & _is_factor(factor)),
        json["destinations"].isNull() | f.forall(json["destinations"], _leaf_in_range),
    ]
    return reduce(Column.__and__, within)


def _ends_like_proof() -> Column:
    return f.substring(f.col("body"), -_PROOF_LIMIT_CHARACTERS, _PROOF_LIMIT_CHARACTERS).rlike(_PROOF)


def _ends_with_its_object() -> Column:
    # Nearly always it is the last character; a search takes as long as all other checks together.
    return f.col("body").endswith("}") | f.col("body").rlike(r"\}\s+\z")


def _lacks_what_it_needs(json: Column) -> Column:
    needed = {
        "exclusion": ("hash", "excluded"),
        "cost": ("hash", "factor"),
        "force": ("master",),
        "eviction": ("node",),
        "rekeying": ("era",),
    }
    return reduce(
        Column.__or__,
        (json[kind].isNotNull() & json[kind][name].isNull() for kind, names in needed.items() for name in names),
    )


def _is_factor(value: Column) -> Column:
    return value.isNull() | value.between(-_FACTOR_LIMIT, _FACTOR_LIMIT)


def _leaf_in_range(leaf: Column) -> Column:
    figures = (
        "uptime",
        "configuredTunnels",
        "currentTunnels",
        "configuredBandwidth",
        "currentBandwidth",
        "configuredConnections",
        "currentConnections",
    )
    within = (_within(leaf[name], _SAFE_INTEGER - 1) for name in figures)
    return reduce(Column.__and__, within, leaf["destination"].isNotNull())


def _within(value: Column, most: float) -> Column:
    return value.isNull() | value.between(0, most)
