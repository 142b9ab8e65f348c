"""What of a report is news: what makes one due at once, and what is said once and not with every report.

    due at once     a leaf fell ill or recovered, came or went; this node became or ceased to be a master's publisher;
                    what an operator allows it, or the end of its key, changed
    said once       the structure that was published last, after each publication; the node's configuration, in the
                    first report of a life and once an hour (the log is kept for days, and readers begin anywhere)

Figures such as load move all the time and wait for the next report. What is said once is said again until a report with
it was committed. With every report it would be most of the log: a structure is larger than all the rest.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from bridge.core.log.records import LeafStatus, MetaStatus, Report

CONFIGURATION_EVERY_MS = 3_600_000
Gist = tuple[frozenset[tuple[str, bool]], frozenset[tuple[str, str, bool, int | None]]]


def gist_of(leaves: tuple[LeafStatus, ...], masters: tuple[MetaStatus, ...]) -> Gist:
    """What makes a report due at once when it changes."""
    return (
        frozenset((leaf.destination, leaf.healthy) for leaf in leaves),
        frozenset(
            (each.destination, each.publish_config.value, each.publishing, each.can_sign_until_s) for each in masters
        ),
    )


class ReportNews:
    """What one node has said so far. `configuration` is its allow-listed settings, without secrets."""

    def __init__(self, configuration: Mapping[str, object]) -> None:
        self._configuration = configuration
        self._configuration_said_ms = -math.inf
        self._structures_said: dict[str, str | None] = {}

    def told(self, report: Report) -> tuple[Report, Mapping[str, object] | None]:
        """The report without what was said already, and the configuration if it is due."""
        masters = tuple(
            replace(each, last_published_lease_set=None)
            if each.last_published_lease_set == self._structures_said.get(each.destination)
            else each
            for each in report.masters
        )
        due = report.date_ms - self._configuration_said_ms >= CONFIGURATION_EVERY_MS
        return replace(report, masters=masters), self._configuration if due and self._configuration else None

    def committed(self, report: Report, configuration: Mapping[str, object] | None) -> None:
        """This was said."""
        for each in report.masters:
            if each.last_published_lease_set is not None:
                self._structures_said[each.destination] = each.last_published_lease_set
        if configuration is not None:
            self._configuration_said_ms = report.date_ms
