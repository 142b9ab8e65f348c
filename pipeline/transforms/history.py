"""One table a kind of entry: rows of the source `farm` with the names and units of `pipeline.schemas.HISTORY`.

Tables name destinations by pseudonyms; their addresses are in a file of its own that only the owner can read
(`pipeline/current_state.py`). A pseudonym is `d-` and 12 hexadecimal digits of SHA-256 over a secret salt and the
destination's b32 address. Without the salt it would be no pseudonym: addresses are public, and any holder of a list of
them could hash it.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from pipeline.decode.entries import OPERATOR_KINDS, REFUSED, SNAPSHOT
from pipeline.schemas import HISTORY


def reports(entries: DataFrame) -> DataFrame:
    """One row a readable report of a server."""
    return _table("reports", entries.where(f.col("entry") == "report"), "report")


def last_reports(entries: DataFrame) -> DataFrame:
    """The same with what a snapshot still holds: it is state, and when it was reported is not known."""
    return _table("reports", entries.where(f.col("entry").isin("report", SNAPSHOT)), "report")


def destination_reports(entries: DataFrame, salt: str) -> DataFrame:
    """One row a destination in a report."""
    rows = entries.where(f.col("entry") == "report")
    return addressed_destination_reports(rows, salt).drop("address")


def addressed_destination_reports(entries: DataFrame, salt: str) -> DataFrame:
    """The same with the destination's `address`; also of reports that only a snapshot still holds."""
    told = entries.where(f.col("destinations").isNotNull()).withColumn("leaf", f.explode("destinations"))
    address = f.col("leaf")["address"]
    return _table("destination_reports", told, "leaf", address=address, destination=pseudonym(address, salt))


def clocks(entries: DataFrame) -> DataFrame:
    """One row a clock entry: when, and which leader wrote it."""
    rows = entries.where(f.col("entry") == "clock")
    return _table("clocks", rows, "clock", leader_id=f.col("server_id"))


def publications(entries: DataFrame, salt: str) -> DataFrame:
    """One row a publisher's commitment to a structure, before it signs."""
    return addressed_publications(entries, salt).drop("address")


def addressed_publications(entries: DataFrame, salt: str) -> DataFrame:
    """The same with the master's `address`."""
    rows, address = entries.where(f.col("entry") == "publication"), f.col("publication")["address"]
    return _table("publications", rows, "publication", address=address, master=pseudonym(address, salt))


def configurations(entries: DataFrame) -> DataFrame:
    """One row a member set of the Raft group."""
    return _table("configurations", entries.where(f.col("entry") == "configuration"), "configuration")


def factors(entries: DataFrame, salt: str) -> DataFrame:
    """One row a destination in an entry of factors."""
    told = f.col("factors")["factors"]
    rows = entries.where(f.col("entry") == "factors").select("*", f.explode(told).alias("address", "value"))
    return _table("factors", rows, "factors", destination=pseudonym(f.col("address"), salt), factor=f.col("value"))


def operator_actions(entries: DataFrame, salt: str) -> DataFrame:
    """One row an entry of an operator or a leader about the farm itself: members, exclusions, costs.

    `subject` is the destination's pseudonym where the action is about one; `detail` is the rest as JSON.
    """
    rows = entries.where(f.col("entry").isin(*OPERATOR_KINDS))
    subject = pseudonym(f.col("action")["address"], salt)
    return _table("operator_actions", rows, "action", action=f.col("entry"), subject=subject)


def quarantine(entries: DataFrame) -> DataFrame:
    """Entries that the farm ignores: index, size, reason; the text stays in the log."""
    return _table("quarantine", entries.where(f.col("entry") == REFUSED), kind=f.col("claimed"))


def pseudonym(address: Column, salt: str) -> Column:
    """The name of a destination in the tables."""
    return f.concat(f.lit("d-"), f.substring(f.sha2(f.concat(f.lit(salt), address), 256), 1, 12))


def _table(name: str, rows: DataFrame, told: str | None = None, /, **columns: Column) -> DataFrame:
    """`rows` with the columns of the table `name`, in its order.

    A column is the one that is given; else the one of this name in the struct `told`; else that of the row. What is
    given and is none of the table's stands behind them.
    """
    table, columns = HISTORY[name], {**columns, "day": f.to_date("log_time")}
    found = None if told is None else rows.schema[told].dataType
    members = found.names if isinstance(found, StructType) else []

    def value(column: str) -> Column:
        return f.col(f"{told}.{column}" if column in members else column)

    named = [(columns[each] if each in columns else value(each)).alias(each) for each in table.names]
    return rows.select(*named, *(column.alias(each) for each, column in columns.items() if each not in table.names))
