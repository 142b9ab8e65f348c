-- What new events say of members, and where a node began anew.
SELECT farm, node, cursor, time_ms, log_time, is_dated, kind, substr(kind, 8) AS status,
  CASE WHEN kind <> 'node-started' THEN get_json_object(data, '$.member') END AS member,
  get_json_object(data, '$.id') AS member_id
FROM told_events
WHERE kind IN ('member-alive', 'member-suspect', 'member-dead', 'member-left', 'node-started')
  AND batch_id > $made AND batch_id <= $through
