"""The generated pages with their generators."""

from collections.abc import Callable
from pathlib import Path

from tests.reference import (
    alarms,
    commands,
    control_endpoint,
    events,
    json_keys,
    layout,
    metrics,
    router_report,
    settings,
    verdicts,
)
from tests.structure import raft_rules
from tests.structure.sources import ROOT

REFERENCE = ROOT / "docs" / "reference"
PAGES: dict[Path, Callable[[], str]] = {
    REFERENCE / "alarms.md": alarms.page,
    alarms.RULES: alarms.rules,
    control_endpoint.DOCUMENT: control_endpoint.page,
    REFERENCE / "events.md": events.page,
    REFERENCE / "json.md": json_keys.page,
    REFERENCE / "layout.md": layout.page,
    REFERENCE / "metrics.md": metrics.page,
    REFERENCE / "router-report.md": router_report.page,
    REFERENCE / "settings.md": settings.page,
    REFERENCE / "commands.md": commands.page,
    REFERENCE / "verdicts.md": verdicts.page,
    raft_rules.DOCUMENT: raft_rules.render,
}
