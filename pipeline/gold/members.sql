-- Who the nodes' traces tell of: a row a member, by name, with its Raft id if any event told it, and from when to when
-- the table `events` has a trace of its own, by its events with a log time.
--
-- `known` is what the table has, and newer events are put to it.
WITH told AS (
  SELECT farm, member, CAST(server_id AS STRING) AS server_id, first_event_at, last_event_at FROM known
  UNION ALL
  SELECT farm, node AS member, get_json_object(data, '$.raftId') AS server_id,
    CASE WHEN is_dated THEN log_time END AS first_event_at, CASE WHEN is_dated THEN log_time END AS last_event_at
  FROM told_events
  WHERE batch_id > $made AND batch_id <= $through
  UNION ALL
  SELECT farm, get_json_object(data, '$.name') AS member, get_json_object(data, '$.server') AS server_id,
    NULL AS first_event_at, NULL AS last_event_at
  FROM told_events
  WHERE kind = 'server-admitted' AND batch_id > $made AND batch_id <= $through
)
SELECT farm, member,
  max(CASE WHEN regexp_like(server_id, '^[0-9]{1,10}$') THEN CAST(server_id AS BIGINT) END) AS server_id,
  min(first_event_at) AS first_event_at, max(last_event_at) AS last_event_at
FROM told
WHERE member IS NOT NULL
GROUP BY farm, member
