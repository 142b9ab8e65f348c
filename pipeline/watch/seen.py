"""What the watch looks at, out of the entries of a batch: reports, and clock entries that say the reporting period."""

import pyarrow as pa
import pyarrow.compute as pc

REQUEST_MAX = 128
"""Characters of what names a submission."""
_KINDS = pa.array(["report", "clock"])
_OF_REPORT = ("attached", "uptime_ms", "job_lag_ms", "destinations", "healthy_destinations")


def seen_rows(entries: pa.Table) -> pa.Table:
    """The rows of `pipeline.schemas.ENTRIES` that have a log time and are reports or clock entries, in few columns."""
    wanted = pc.and_(pc.is_in(entries.column("entry"), _KINDS), pc.is_valid(entries.column("log_time")))
    told = entries.filter(wanted)
    request = told.column("request")
    named = pc.if_else(pc.less_equal(pc.utf8_length(request), REQUEST_MAX), request, "")
    report, members = told.column("report"), [each.name for each in entries.schema.field("report").type]
    return pa.table(
        {
            "farm": told.column("farm"),
            "index": told.column("index"),
            "at_ms": told.column("log_time").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64()),
            "entry": told.column("entry"),
            "server_id": told.column("server_id"),
            "request": pc.fill_null(named, ""),
            **{name: pc.struct_field(report, [members.index(name)]) for name in _OF_REPORT},
            "period_ms": pc.struct_field(told.column("clock"), "period_ms"),
        }
    )
