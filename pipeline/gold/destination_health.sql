-- How each destination fared on each server that serves it: a row a destination, server and window.
--
-- It breaks where a report calls it unhealthy and the one before, within an hour, called it healthy.
WITH once AS (
  SELECT r.*,
    row_number() OVER (
      PARTITION BY r.farm, r.window_start, r.destination, r.server_id ORDER BY r.index DESC
    ) AS from_last,
    lag(r.healthy) OVER (PARTITION BY r.farm, r.destination, r.server_id ORDER BY r.index) AS was_healthy,
    unix_millis(r.log_time)
      - lag(unix_millis(r.log_time)) OVER (PARTITION BY r.farm, r.destination, r.server_id ORDER BY r.index) AS since_ms
  FROM told_destinations r
  WHERE NOT r.repeated
),
scaled AS (
  SELECT o.*,
    CASE WHEN was_healthy AND NOT healthy AND since_ms <= 3600000 THEN 1 ELSE 0 END AS broke,
    CASE WHEN current_tunnels IS NOT NULL AND configured_tunnels > 0
      THEN floor(least(1e6 * current_tunnels / configured_tunnels, 1e15) + 0.5) END AS tunnels,
    CASE WHEN bandwidth_bytes_per_s IS NOT NULL AND configured_bandwidth_bytes_per_s > 0
      THEN floor(least(1e6 * bandwidth_bytes_per_s / configured_bandwidth_bytes_per_s, 1e15) + 0.5) END AS used,
    CAST(bandwidth_bytes_per_s AS DECIMAL(38, 0)) AS bandwidth,
    CAST(connections AS DECIMAL(38, 0)) AS connected
  FROM once o
),
heard AS (
  SELECT r.farm, r.window_start, r.destination, r.server_id, count(*) AS periods, sum(coalesce(p.whole, 0)) AS whole
  FROM (SELECT DISTINCT farm, window_start, destination, server_id, log_time FROM once) r
  LEFT JOIN periods p ON p.farm = r.farm AND p.log_time = r.log_time
  GROUP BY r.farm, r.window_start, r.destination, r.server_id
),
due AS (
  SELECT farm, window_start, sum(whole) AS whole FROM periods GROUP BY farm, window_start
),
grouped AS (
  SELECT farm, window_start, destination, server_id,
    count(*) AS reports,
    CAST(sum(CASE WHEN healthy THEN 1 ELSE 0 END) AS DOUBLE) / nullif(count(healthy), 0) AS healthy_share,
    sum(broke) AS breaks,
    max(CASE WHEN from_last = 1 THEN uptime_ms END) AS uptime_ms,
    CAST(sum(CAST(tunnels AS BIGINT)) AS DOUBLE) / (nullif(count(tunnels), 0) * 1e6) AS tunnels_share,
    CAST(sum(CAST(used AS BIGINT)) AS DOUBLE) / (nullif(count(used), 0) * 1e6) AS bandwidth_use,
    CAST(sum(bandwidth) AS DOUBLE) / nullif(count(bandwidth), 0) AS bandwidth_bytes_per_s,
    CAST(sum(connected) AS DOUBLE) / nullif(count(connected), 0) AS connections
  FROM scaled
  GROUP BY farm, window_start, destination, server_id
)
SELECT g.*,
  timestamp_millis(unix_millis(g.window_start) + $window_ms) AS window_end,
  CAST(h.periods AS DOUBLE) / (h.periods + coalesce(d.whole, 0) - h.whole) AS availability
FROM grouped g
JOIN heard h
  ON h.farm = g.farm AND h.window_start = g.window_start AND h.destination = g.destination AND h.server_id = g.server_id
LEFT JOIN due d ON d.farm = g.farm AND d.window_start = g.window_start
