"""From entries and events to tables: pure functions `DataFrame -> DataFrame`, whose columns `pipeline.schemas` names.

    history.py             entries ──▶ reports, destination_reports, clocks, publications, …, quarantine
    router_health.py       reports, clocks ──▶ one row a server and window
    destination_health.py  destination_reports, clocks ──▶ one row a destination, server and window
    data_quality.py        reports, clocks, quarantine ──▶ duplicates, late ones, clocks that are off, refusals
    leadership.py          clocks, publications ──▶ which servers led and published, with the gaps between
    detection.py           events (and reports) ──▶ how soon a silent member was noticed; how the news spread
    floodfills.py          destinations, routers ──▶ the closest floodfills of three days

Event time is log time: the time that the leaders' clock entries gave the log, never the date that a server wrote.
"""

from pipeline.transforms.data_quality import data_quality
from pipeline.transforms.destination_health import destination_health
from pipeline.transforms.detection import convergence, detections
from pipeline.transforms.floodfills import closest_floodfills
from pipeline.transforms.leadership import leaderships, publishers
from pipeline.transforms.router_health import router_health
from pipeline.transforms.windows import DEFAULT_WINDOW

__all__ = [
    "DEFAULT_WINDOW",
    "closest_floodfills",
    "convergence",
    "data_quality",
    "destination_health",
    "detections",
    "leaderships",
    "publishers",
    "router_health",
]
