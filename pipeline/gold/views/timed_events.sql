-- Events of the nodes' traces, with the farm if known, and with a log time. For an event without one, for example from a
-- file, the node's own clock counts. Of the copies of an event, the copy of the first batch counts.
--
-- Farm, node, cursor and time on the node's clock identify an event, but not its log time: nodes return a log time and
-- files do not, and a renamed file is read again. A copy without a known farm is a copy of the event of any farm.
WITH dated AS (
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
  FROM dated t
)
SELECT farm, node, cursor, time_ms, log_time, kind, data, batch_id
FROM copies
WHERE copy = 1
  AND CASE WHEN farm IS NULL THEN coalesce(first_with_farm > batch_id, TRUE)
    ELSE coalesce(first_without_farm >= batch_id, TRUE) END
