-- The reporting periods: a leader writes a clock entry in each, and nothing else moves log time. A period is whole (1)
-- if the leader that began it also began the next one, within the hour; otherwise it counts against no server.
WITH moments AS (
  SELECT farm, log_time, max(term) AS term
  FROM clocks
  WHERE log_time IS NOT NULL
  GROUP BY farm, log_time
),
followed AS (
  SELECT m.*,
    lead(term) OVER (PARTITION BY farm ORDER BY log_time) AS next_term,
    lead(unix_millis(log_time)) OVER (PARTITION BY farm ORDER BY log_time) - unix_millis(log_time) AS lasted_ms
  FROM moments m
)
SELECT farm, log_time,
  timestamp_millis(unix_millis(log_time) - unix_millis(log_time) % $window_ms) AS window_start,
  CASE WHEN next_term = term AND lasted_ms <= 3600000 THEN 1 ELSE 0 END AS whole
FROM followed
