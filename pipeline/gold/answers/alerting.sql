-- alerting of each farm: on, off, paused or blind, and since when
-- empty: no batch has been written yet
--
--     state    on; off: no run with a receiver; paused: alerts are held back; blind: alerting lacks what it needs;
--              undelivered: a receiver does not accept messages
--     since    off, paused, undelivered and a failed check: by the clock of the pipeline's machine; a silence: log time of
--              the outage; blind without entries: the time of the last batch
-- The alerting writes the table alerting_states. A killed run cannot write that it ended: the time since the last batch
-- shows this. Entries count as missing after three reporting periods and half a minute. A farm may have several rows.
WITH stored AS (
  SELECT farm, max(stored_at) AS stored_at FROM ranges WHERE name = 'log' AND kind = 'read' GROUP BY farm
),
farms AS (
  SELECT f.farm, f.log_time, s.stored_at,
    unix_millis(current_timestamp) - unix_millis(s.stored_at) - 3 * coalesce(f.period_ms, 30000) - 30000 AS late_ms
  FROM current_farm f LEFT JOIN stored s ON s.farm = f.farm
),
runs AS (
  SELECT max(since) AS since, count(CASE WHEN state = 'on' THEN 1 END) AS running
  FROM alerting_states WHERE subject = 'run'
),
found AS (
  SELECT f.farm, 'off' AS state, r.since, 'no run sends alerts' AS reason FROM farms f CROSS JOIN runs r WHERE r.running = 0
  UNION ALL
  SELECT farm, 'blind', stored_at, 'no entries since then' FROM farms WHERE late_ms > 0
  UNION ALL
  SELECT f.farm, 'blind', NULL, 'no server is watched'
  FROM farms f LEFT JOIN (SELECT DISTINCT farm FROM current_watched) w ON w.farm = f.farm WHERE w.farm IS NULL
  UNION ALL
  SELECT f.farm, a.state, a.since, a.subject || ': ' || a.reason
  FROM alerting_states a JOIN farms f ON a.farm IS NULL OR a.farm = f.farm WHERE a.subject <> 'run'
  UNION ALL
  SELECT f.farm, 'paused', a.began_at, 'server ' || CAST(a.server_id AS STRING) || ': ' || a.held_back
  FROM alerts a JOIN farms f ON f.farm = a.farm WHERE a.status = 'firing' AND a.held_back IS NOT NULL
)
SELECT f.farm, coalesce(o.state, 'on') AS state, CASE WHEN o.state IS NULL THEN r.since ELSE o.since END AS since,
  o.reason, f.log_time, f.stored_at
FROM farms f CROSS JOIN runs r LEFT JOIN found o ON o.farm = f.farm
ORDER BY CASE coalesce(o.state, 'on') WHEN 'on' THEN 1 ELSE 0 END, f.farm, since, o.reason
