-- Every server that was ever down: its last outage, whether that is over, and whether the server left in order.
--
--     outage      from the first row that is not healthy ──▶ to `ended_at`, after which it stays healthy for $keep_ms
--     healthy_before    when it had become healthy before that outage; NULL if history begins later
--     failures    how often it went down in that time: a server that flaps has one outage and many failures
--     gone        why no alert is due: an operator removed the server, or it left in order before it stopped. If the
--                 server is healthy again and the outage is not over yet, the state during the outage counts
--
-- A correction can set log time back, so the order of transitions is the order of the log. If log time was set back
-- since the server became healthy, it is unknown how long it has been healthy: the outage then counts as over.
--
-- All times are log time, also of events, because the clocks of two nodes may differ by hours. An event without log
-- time is ordered only among the events of its observer, by the observer's clock. So a server has left in order only if
-- its departure is also the last event about it at each observer whose events lack log time.
--
-- If --keep-days has dropped a server's history, the server is down since its last row in `current_watched`.
WITH placed AS (
  -- Rows of earlier versions lack `after_index`.
  SELECT t.*, coalesce(t.index, t.after_index, max(t.index) OVER (
    PARTITION BY t.farm, t.server_id ORDER BY t.at, t.index NULLS FIRST)) AS place
  FROM transitions t
),
steps AS (
  SELECT p.*, p.state <> 'healthy' AS down, lag(p.state <> 'healthy') OVER in_order AS was_down,
    row_number() OVER in_order AS step
  FROM placed p
  WINDOW in_order AS (PARTITION BY p.farm, p.server_id ORDER BY p.place NULLS FIRST, p.index NULLS LAST)
),
healed AS (
  SELECT s.*, last_value(CASE WHEN NOT down AND coalesce(was_down, true) THEN s.at END IGNORE NULLS) OVER (
    PARTITION BY farm, server_id ORDER BY step) AS healthy_since
  FROM steps s
),
numbered AS (
  SELECT h.*, sum(CASE WHEN down AND NOT coalesce(was_down, false)
      AND epoch_ms(h.at) - epoch_ms(healthy_since) NOT BETWEEN 0 AND $keep_ms - 1 THEN 1 ELSE 0 END) OVER (
    PARTITION BY farm, server_id ORDER BY step) AS outage
  FROM healed h
),
outages AS (
  SELECT farm, server_id, min_by(n.at, step) FILTER (down) AS began_at, bool_or(state = 'silent') AS was_silent,
    count(*) FILTER (down AND NOT coalesce(was_down, false)) AS failures,
    max_by(reason, step) FILTER (down) AS reason, max_by(healthy_since, step) AS healthy_since,
    min_by(healthy_since, step) FILTER (down) AS healthy_before
  FROM numbered n
  GROUP BY farm, server_id, outage
  HAVING bool_or(down)
  QUALIFY row_number() OVER (PARTITION BY farm, server_id ORDER BY outage DESC) = 1
),
-- The outages that are not over although the server is healthy. Each begins here four periods earlier, because the
-- server may have left after its last report.
down_times AS (
  SELECT o.farm, o.server_id, epoch_ms(o.began_at) - coalesce(4 * f.period_ms, 120000) AS from_ms,
    epoch_ms(o.healthy_since) AS until_ms
  FROM outages o
  JOIN current_farm f ON f.farm = o.farm
  JOIN current_watched w ON w.farm = o.farm AND w.server_id = o.server_id AND w.state = 'healthy'
),
-- The names and node ids of servers, from entries and traces.
operators AS (
  SELECT farm, index, epoch_ms(log_time) AS at_ms, action, subject, CASE WHEN json_valid(detail) THEN detail ELSE '{}' END AS detail
  FROM operator_actions
  WHERE action IN ('admission', 'approval', 'removal', 'eviction', 'exclusion')
),
admitted AS (
  SELECT farm, TRY_CAST(detail ->> '$.server' AS BIGINT) AS server_id, max_by(detail ->> '$.name', index) AS name,
    max_by(detail ->> '$.node', index) AS node
  FROM operators WHERE action IN ('admission', 'approval') GROUP BY ALL
),
trace AS (
  -- An event that was read from a node and from a file is one event, at the log time that the node gave.
  SELECT node AS observer, kind, time_ms, cursor, coalesce(epoch_ms(min(log_time)), time_ms - min(clock_offset_ms)) AS at_ms,
    CASE WHEN json_valid(data) THEN data ELSE '{}' END AS data
  FROM events
  WHERE kind IN ('server-admitted', 'member-alive', 'member-suspect', 'member-dead', 'member-left')
  GROUP BY node, cursor, time_ms, kind, data
),
known AS (
  SELECT farm, server_id, name, node FROM admitted
  UNION
  SELECT f.farm, TRY_CAST(data ->> '$.server' AS BIGINT), data ->> '$.name', data ->> '$.id'
  FROM trace CROSS JOIN current_farm f
  -- A run reads the traces of one farm only.
  WHERE kind = 'server-admitted' AND (SELECT count(*) FROM current_farm) = 1
),
last_seen AS (
  SELECT observer, data ->> '$.id' AS node, at_ms IS NULL AS is_undated, max(at_ms) AS at_ms,
    max_by(kind, row(at_ms, time_ms, cursor)) AS kind
  FROM trace WHERE kind LIKE 'member-%' GROUP BY ALL
),
members AS (
  -- Among the last events of several observers at the same time, any event except `member-left` takes precedence.
  SELECT node, coalesce(max_by(kind, row(at_ms, kind <> 'member-left')) FILTER (NOT is_undated), 'member-left') AS kind,
    bool_and(kind = 'member-left') FILTER (is_undated) AS left_without_date
  FROM last_seen GROUP BY node
),
-- The servers for which no alert is due: removed, evicted, excluded, or departed in order.
removals AS (
  SELECT farm, TRY_CAST(detail ->> '$.server' AS BIGINT) AS server_id, coalesce(at_ms, 0) AS from_ms,
    detail ->> '$.removed' = 'true' AS removed,
    lead(at_ms) OVER (PARTITION BY farm, TRY_CAST(detail ->> '$.server' AS BIGINT) ORDER BY index) AS until_ms
  FROM operators WHERE action = 'removal'
),
removed AS (
  SELECT r.farm, r.server_id, 'removed by an operator' AS gone
  FROM removals r LEFT JOIN down_times d ON d.farm = r.farm AND d.server_id = r.server_id
  WHERE r.removed AND (r.until_ms IS NULL OR (r.from_ms <= d.until_ms AND r.until_ms >= d.from_ms))
  GROUP BY ALL
),
evicted AS (
  SELECT a.farm, a.server_id, 'evicted by an operator' AS gone
  FROM admitted a JOIN operators o ON o.farm = a.farm AND o.action = 'eviction' AND (o.detail ->> '$.node') = a.node
),
excluded AS (
  SELECT d.farm, d.server_id, 'all of its leaves are excluded by an operator' AS gone
  FROM current_destinations d
  -- Only the destinations in the server's last report.
  JOIN current_routers r ON r.farm = d.farm AND r.server_id = d.server_id AND r.index = d.index
  LEFT JOIN (
    SELECT farm, subject, max_by(detail ->> '$.excluded', index) AS excluded
    FROM operators WHERE action = 'exclusion' GROUP BY ALL
  ) e ON e.farm = d.farm AND e.subject = d.destination
  GROUP BY d.farm, d.server_id
  HAVING bool_and(coalesce(e.excluded = 'true', false))
),
departed AS (
  SELECT k.farm, k.server_id, 'left in order' AS gone
  FROM known k JOIN members m ON m.node = k.node AND m.kind = 'member-left' AND coalesce(m.left_without_date, true)
  UNION ALL
  SELECT k.farm, k.server_id, 'left in order' AS gone
  FROM known k
  JOIN down_times d ON d.farm = k.farm AND d.server_id = k.server_id
  JOIN trace t ON t.data ->> '$.id' = k.node AND t.at_ms BETWEEN d.from_ms AND d.until_ms
  WHERE t.kind IN ('member-left', 'member-dead')
  GROUP BY k.farm, k.server_id
  HAVING max_by(t.kind, row(t.at_ms, t.kind <> 'member-left')) = 'member-left'
),
gone AS (
  SELECT farm, server_id, min(gone) AS gone
  FROM (FROM removed UNION ALL FROM evicted UNION ALL FROM excluded UNION ALL FROM departed)
  GROUP BY farm, server_id
)
SELECT w.farm, w.server_id, n.name, w.state, coalesce(o.began_at, w.at) AS began_at,
  coalesce(o.failures, 1) AS failures, coalesce(o.was_silent, w.state = 'silent') AS was_silent,
  coalesce(o.reason, w.reason) AS reason,
  CASE WHEN w.state = 'healthy' AND epoch_ms(f.log_time) - epoch_ms(o.healthy_since) NOT BETWEEN 0 AND $keep_ms - 1
    THEN o.healthy_since END AS ended_at,
  g.gone, f.name AS farm_name, o.healthy_before
FROM current_watched w
JOIN current_farm f ON f.farm = w.farm
LEFT JOIN outages o ON o.farm = w.farm AND o.server_id = w.server_id
LEFT JOIN gone g ON g.farm = w.farm AND g.server_id = w.server_id
LEFT JOIN (SELECT farm, server_id, max(name) AS name FROM known GROUP BY ALL) n
  ON n.farm = w.farm AND n.server_id = w.server_id
WHERE w.state <> 'healthy' OR o.began_at IS NOT NULL
ORDER BY w.farm, w.server_id
