-- What new events say of members, and where a node began anew. An event is named by its node, cursor and time; a file
-- that was renamed is read again, and of the copies that of the first batch counts.
WITH copies AS (
  SELECT t.*, row_number() OVER (PARTITION BY farm, node, cursor, time_ms ORDER BY batch_id) AS copy
  FROM told_events t
  WHERE kind IN ('member-alive', 'member-suspect', 'member-dead', 'member-left', 'node-started')
)
SELECT farm, node, cursor, time_ms, log_time, kind, substr(kind, 8) AS status,
  CASE WHEN kind <> 'node-started' THEN get_json_object(data, '$.member') END AS member,
  get_json_object(data, '$.id') AS member_id
FROM copies
WHERE copy = 1 AND batch_id > $made AND batch_id <= $through
