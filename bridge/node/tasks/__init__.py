"""The background tasks of a node in a farm: report, keep time, measure, publish."""
