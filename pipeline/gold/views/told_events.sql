-- Events of the nodes' traces, with the farm if it can be known, and with a log time: an event without one, such as out
-- of a file, is taken at the node's own clock.
SELECT coalesce(e.farm, f.farm) AS farm, e.node, e.cursor, e.time_ms,
  coalesce(e.log_time, timestamp_millis(e.time_ms)) AS log_time, e.kind, e.data, coalesce(e.batch_id, 0) AS batch_id
FROM events e
CROSS JOIN (SELECT CASE WHEN count(*) = 1 THEN max(farm) END AS farm FROM current_farm) f
WHERE e.time_ms BETWEEN 0 AND $latest_ms
