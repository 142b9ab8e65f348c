-- How each router fared in each window: a row a server and window in which it reported.
--
-- An uptime reset is a report whose uptime is below the last one that the server told before it, however long ago:
-- `earlier` has it where no row of the sources does. Means are of whole thousandths or millionths, so that the order in
-- which rows are added makes no difference.
WITH once AS (
  SELECT r.*,
    row_number() OVER (PARTITION BY r.farm, r.window_start, r.server_id ORDER BY r.index DESC) AS from_last
  FROM told_reports r
  WHERE NOT r.repeated
),
uptimes AS (
  SELECT o.farm, o.index,
    o.uptime_ms < coalesce(
      lag(o.uptime_ms) OVER (PARTITION BY o.farm, o.server_id ORDER BY o.index), e.uptime_ms
    ) AS is_reset
  FROM once o
  LEFT JOIN earlier e ON e.farm = o.farm AND e.server_id = o.server_id
  WHERE o.uptime_ms IS NOT NULL
),
scaled AS (
  SELECT o.*,
    CASE WHEN u.is_reset THEN 1 ELSE 0 END AS reset,
    CASE WHEN o.uptime_ms IS NOT NULL THEN o.index END AS uptime_index,
    CASE WHEN cpu_percent IS NOT NULL THEN floor(greatest(least(cpu_percent, 1e9), -1e9) * 1000 + 0.5) END AS cpu,
    CASE WHEN memory_percent IS NOT NULL THEN floor(greatest(least(memory_percent, 1e9), -1e9) * 1000 + 0.5) END AS memory,
    floor(1e6 * healthy_destinations / nullif(destinations, 0) + 0.5) AS healthy,
    CASE WHEN bandwidth_bytes_per_s IS NOT NULL AND configured_bandwidth_bytes_per_s > 0
      THEN floor(least(1e6 * bandwidth_bytes_per_s / configured_bandwidth_bytes_per_s, 1e15) + 0.5) END AS used,
    CAST(participating_tunnels AS DECIMAL(38, 0)) AS participating,
    CAST(exploratory_tunnels AS DECIMAL(38, 0)) AS exploratory,
    CAST(bandwidth_bytes_per_s AS DECIMAL(38, 0)) AS bandwidth
  FROM once o
  LEFT JOIN uptimes u ON u.farm = o.farm AND u.index = o.index
),
heard AS (
  SELECT r.farm, r.window_start, r.server_id, count(*) AS periods, sum(coalesce(p.whole, 0)) AS whole
  FROM (SELECT DISTINCT farm, window_start, server_id, log_time FROM once) r
  LEFT JOIN periods p ON p.farm = r.farm AND p.log_time = r.log_time
  GROUP BY r.farm, r.window_start, r.server_id
),
due AS (
  SELECT farm, window_start, sum(whole) AS whole FROM periods GROUP BY farm, window_start
),
grouped AS (
  SELECT farm, window_start, server_id,
    count(*) AS reports,
    max_by(uptime_ms, uptime_index) AS uptime_ms,
    sum(reset) AS uptime_resets,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY job_lag_ms) AS job_lag_p50_ms,
    percentile_disc(0.95) WITHIN GROUP (ORDER BY job_lag_ms) AS job_lag_p95_ms,
    percentile_disc(0.99) WITHIN GROUP (ORDER BY job_lag_ms) AS job_lag_p99_ms,
    CAST(percentile_disc(0.5) WITHIN GROUP (ORDER BY fetch_ms) AS DOUBLE) AS fetch_p50_ms,
    CAST(sum(CAST(cpu AS BIGINT)) AS DOUBLE) / (nullif(count(cpu), 0) * 1e3) AS cpu_percent,
    CAST(sum(CAST(memory AS BIGINT)) AS DOUBLE) / (nullif(count(memory), 0) * 1e3) AS memory_percent,
    max(CASE WHEN from_last = 1 THEN destinations END) AS destinations,
    CAST(sum(CAST(healthy AS BIGINT)) AS DOUBLE) / (nullif(count(healthy), 0) * 1e6) AS healthy_share,
    max(CASE WHEN from_last = 1 THEN publishing END) AS publishing,
    CAST(sum(participating) AS DOUBLE) / nullif(count(participating), 0) AS participating_tunnels,
    CAST(sum(exploratory) AS DOUBLE) / nullif(count(exploratory), 0) AS exploratory_tunnels,
    CAST(sum(bandwidth) AS DOUBLE) / nullif(count(bandwidth), 0) AS bandwidth_bytes_per_s,
    CAST(sum(CAST(used AS BIGINT)) AS DOUBLE) / (nullif(count(used), 0) * 1e6) AS bandwidth_use,
    CAST(sum(CASE WHEN attached THEN 1 ELSE 0 END) AS DOUBLE) / nullif(count(attached), 0) AS attached_share
  FROM scaled
  GROUP BY farm, window_start, server_id
)
SELECT g.*,
  timestamp_millis(unix_millis(g.window_start) + $window_ms) AS window_end,
  g.uptime_resets > 0 AS restarted,
  CAST(h.periods AS DOUBLE) / (h.periods + coalesce(d.whole, 0) - h.whole) AS availability
FROM grouped g
JOIN heard h ON h.farm = g.farm AND h.window_start = g.window_start AND h.server_id = g.server_id
LEFT JOIN due d ON d.farm = g.farm AND d.window_start = g.window_start
