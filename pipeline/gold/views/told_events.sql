-- Events of the nodes' traces, with the farm if it can be known. An event without a log time, such as in a file without
-- any, has the time of the node's own clock instead and is not `is_dated`: it must not be compared with times of other
-- nodes. Of the copies of an event that of the first batch counts.
--
-- An event is named by its farm, node, cursor and time on the node's clock, whatever its log time: a node gives a log
-- time and a file does not, and a file that was renamed is read again. A copy of which the farm cannot be known is one
-- of the event of any farm.
WITH told AS (
  SELECT coalesce(e.farm, f.farm) AS farm, e.node, e.cursor, e.time_ms,
    coalesce(e.log_time, timestamp_millis(e.time_ms)) AS log_time, e.log_time IS NOT NULL AS is_dated, e.kind, e.data,
    coalesce(e.batch_id, 0) AS batch_id
  FROM events e
  CROSS JOIN (SELECT CASE WHEN count(*) = 1 THEN max(farm) END AS farm FROM current_farm) f
  WHERE e.time_ms BETWEEN 0 AND $latest_ms
),
copies AS (
  SELECT t.*,
    row_number() OVER (PARTITION BY farm, node, cursor, time_ms ORDER BY batch_id, is_dated DESC) AS copy,
    min(CASE WHEN farm IS NULL THEN batch_id END) OVER (PARTITION BY node, cursor, time_ms) AS first_without_farm,
    min(CASE WHEN farm IS NOT NULL THEN batch_id END) OVER (PARTITION BY node, cursor, time_ms) AS first_with_farm
  FROM told t
)
SELECT farm, node, cursor, time_ms, log_time, is_dated, kind, data, batch_id
FROM copies
WHERE copy = 1
  AND CASE WHEN farm IS NULL THEN coalesce(first_with_farm > batch_id, TRUE)
    ELSE coalesce(first_without_farm >= batch_id, TRUE) END
