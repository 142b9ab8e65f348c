-- What is wrong with the entries themselves: repeated, late, dated by a clock that is off, or refused.
--
--     offset     = written_at - log_time          of each report; 0 to one period by a right clock
--     clock off  : offset < -30 s, or offset > one period + 30 s       the farm's own rule
--     late       : offset < typical offset - 1.5 periods               typical: the server's median of that hour
--
-- A clock that is behind shifts all of a server's reports alike; a report that was long on its way lags behind its own
-- server's others. The period is that of the last clock entry before the report within the hour, or of the hour's first
-- one; a period that the farm would not accept is ignored.
WITH once AS (
  SELECT farm, index, server_id, window_start,
    unix_millis(log_time) - unix_millis(log_time) % 3600000 AS hour_ms,
    unix_millis(written_at) - unix_millis(log_time) AS offset_ms
  FROM told_reports
  WHERE NOT repeated
),
told AS (
  SELECT farm, index, unix_millis(log_time) - unix_millis(log_time) % 3600000 AS hour_ms,
    CASE WHEN period_ms BETWEEN $period_min_ms AND $period_max_ms THEN period_ms END AS period_ms
  FROM clocks
  WHERE log_time IS NOT NULL
),
in_order AS (
  SELECT b.*, greatest(1, count(period_ms) OVER (PARTITION BY farm, hour_ms ORDER BY index)) AS period_number
  FROM (
    SELECT farm, index, hour_ms, period_ms, FALSE AS is_report,
      CAST(NULL AS BIGINT) AS server_id, CAST(NULL AS TIMESTAMP) AS window_start, CAST(NULL AS BIGINT) AS offset_ms
    FROM told
    UNION ALL
    SELECT farm, index, hour_ms, CAST(NULL AS BIGINT) AS period_ms, TRUE AS is_report, server_id, window_start, offset_ms
    FROM once
  ) b
),
with_period AS (
  SELECT farm, hour_ms, is_report, server_id, window_start, offset_ms,
    coalesce(max(period_ms) OVER (PARTITION BY farm, hour_ms, period_number), $period_default_ms) AS period_ms
  FROM in_order
),
typical AS (
  SELECT farm, hour_ms, server_id, percentile_disc(0.5) WITHIN GROUP (ORDER BY offset_ms) AS typical_ms
  FROM once
  GROUP BY farm, hour_ms, server_id
),
judged AS (
  SELECT p.farm, p.window_start, p.server_id, p.offset_ms,
    CASE WHEN 2 * p.offset_ms < 2 * t.typical_ms - 3 * p.period_ms THEN 1 ELSE 0 END AS late,
    CASE WHEN p.offset_ms BETWEEN -30000 AND p.period_ms + 30000 THEN 0 ELSE 1 END AS clock_off
  FROM with_period p
  JOIN typical t ON t.farm = p.farm AND t.hour_ms = p.hour_ms AND t.server_id = p.server_id
  WHERE p.is_report
),
by_server AS (
  SELECT farm, window_start, server_id,
    count(*) AS reports, sum(late) AS late, sum(clock_off) AS clock_off,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY offset_ms) AS clock_offset_ms
  FROM judged
  GROUP BY farm, window_start, server_id
),
copies AS (
  SELECT farm, window_start, server_id, count(*) AS copies
  FROM told_reports
  GROUP BY farm, window_start, server_id
),
both_kinds AS (
  SELECT c.farm, c.window_start, c.server_id,
    coalesce(s.reports, 0) AS reports,
    c.copies - coalesce(s.reports, 0) AS duplicates,
    coalesce(s.late, 0) AS late,
    coalesce(s.clock_off, 0) AS clock_off,
    s.clock_offset_ms AS clock_offset_ms,
    0 AS refused
  FROM copies c
  LEFT JOIN by_server s ON s.farm = c.farm AND s.window_start = c.window_start AND s.server_id = c.server_id
  UNION ALL
  SELECT farm, timestamp_millis(unix_millis(log_time) - unix_millis(log_time) % $window_ms) AS window_start,
    NULL AS server_id, 0 AS reports, 0 AS duplicates, 0 AS late, 0 AS clock_off, NULL AS clock_offset_ms,
    count(*) AS refused
  FROM quarantine
  WHERE log_time IS NOT NULL
  GROUP BY 1, 2
)
SELECT b.*, timestamp_millis(unix_millis(b.window_start) + $window_ms) AS window_end FROM both_kinds b
