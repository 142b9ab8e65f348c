"""The table `alerts`: which there are and were, and what was delivered; the only memory of the alerting.

It is written by the alerting's own thread alone, and anew each time, as the tables of the current state are. What is
in it was decided or delivered before: a run that is killed between a delivery and its note delivers that message once
more, under the same id.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa

from pipeline.alerts.outages import Alert
from pipeline.tables.delta import Table
from pipeline.tables.specs import ALERTS_SPEC
from pipeline.tables.upkeep import Upkeep

QUERY = "alerts"


class AlertStore:
    """The alerts, in memory and in the table. Raises OSError, also as TableDamagedError."""

    def __init__(self, output: Path) -> None:
        self._table = Table(output, ALERTS_SPEC)
        self._upkeep = Upkeep(None)
        self._batch = self._table.committed(QUERY)
        told = self._table.rows().to_pylist()
        self.alerts = tuple(Alert(**{**row, "delivered": tuple(row["delivered"] or ())}) for row in told)
        self._stored = self.alerts

    def keep(self, alerts: Sequence[Alert]) -> None:
        """These are the alerts from now on; `flush` brings them into the table."""
        self.alerts = tuple(alerts)

    def flush(self) -> None:
        """The table has them. If it cannot take them now, they are still known, and the next call tries again."""
        if self.alerts == self._stored:
            return
        rows = [{**asdict(each), "delivered": list(each.delivered)} for each in self.alerts]
        self._table.replace(QUERY, self._batch + 1, pa.Table.from_pylist(rows, schema=ALERTS_SPEC.schema))
        self._batch += 1
        self._stored = self.alerts
        self._upkeep.after_batch([self._table])
