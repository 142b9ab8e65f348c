"""From events and destinations to tables: functions `DataFrame -> DataFrame`, whose columns `pipeline.schemas` names.

    detection.py           events (and reports) ──▶ how soon a silent member was noticed; how the news spread
    floodfills.py          destinations, routers ──▶ the closest floodfills of three days
    windows.py             the width of the windows of tables by window, which SQL makes as others (`pipeline/gold`)

Event time is log time: the time that the leaders' clock entries gave the log, never the date that a server wrote.
"""

from pipeline.transforms.detection import convergence, detections
from pipeline.transforms.floodfills import closest_floodfills
from pipeline.transforms.windows import DEFAULT_WINDOW

__all__ = ["DEFAULT_WINDOW", "closest_floodfills", "convergence", "detections"]
