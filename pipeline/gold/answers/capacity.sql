-- time until load reaches its limit; headroom without one router
-- empty: no report has processor, memory, job lag or traffic with a limit
--
--     load        mean of four hours / last reported limit; the busiest four hours of the target's last day
--     trend       per day, for loads at the same time of day: median of (later - earlier) / days between, over all pairs
--                 in the last 28 days (Theil-Sen by season, after Hirsch); NULL for less than three days
--     low, high   the 90 % interval of that median by Kendall's variance (Gilbert, Statistical Methods, 16.4, 17.4)
--     left        (1 - load) / trend, 0 if reached; NULL: the trend does not rise, or the time is above a year
--     n1          1 - load after the loss of the largest router; NULL: there is no other router
--
-- The comparison of equal times of day keeps the daily variation out of the trend, and the median keeps outages out. A mean
-- of four hours is summed during the read: medians would keep 40 million rows of a thousand routers in memory.
WITH ends AS (
  SELECT farm, max(unix_millis(window_end)) AS until_ms FROM router_health GROUP BY farm
),
routers AS (
  SELECT farm, server_id, part,
    CAST(floor(CAST(sum(cpu) AS DOUBLE) / nullif(count(cpu), 0) + 0.5) AS BIGINT) AS cpu,
    CAST(floor(CAST(sum(memory) AS DOUBLE) / nullif(count(memory), 0) + 0.5) AS BIGINT) AS memory,
    CAST(floor(CAST(sum(lag) AS DOUBLE) / nullif(count(lag), 0) + 0.5) AS BIGINT) AS lag,
    CAST(sum(bandwidth) AS DOUBLE) / nullif(count(bandwidth), 0) AS bandwidth
  FROM (
    SELECT h.farm, h.server_id,
      CAST(floor(CAST(e.until_ms - unix_millis(h.window_end) AS DOUBLE) / 14400000) AS BIGINT) AS part,
      CASE WHEN h.cpu_percent IS NOT NULL
        THEN CAST(floor(least(greatest(h.cpu_percent, 0), 1000) * 1e4 + 0.5) AS BIGINT) END AS cpu,
      CASE WHEN h.memory_percent IS NOT NULL
        THEN CAST(floor(least(greatest(h.memory_percent, 0), 1000) * 1e4 + 0.5) AS BIGINT) END AS memory,
      CASE WHEN h.job_lag_p95_ms IS NOT NULL
        THEN CAST(floor(least(greatest(h.job_lag_p95_ms, 0), 10000) * 1e3 + 0.5) AS BIGINT) END AS lag,
      CASE WHEN h.bandwidth_bytes_per_s IS NOT NULL
        THEN CAST(floor(least(greatest(h.bandwidth_bytes_per_s, 0), 1e12) + 0.5) AS BIGINT) END AS bandwidth
    FROM router_health h JOIN ends e ON e.farm = h.farm
    WHERE unix_millis(h.window_end) > e.until_ms - 2419200000
  ) w
  GROUP BY farm, server_id, part
),
limits AS (
  SELECT farm, server_id, CAST(least(configured_bandwidth_bytes_per_s, 100000000000) AS BIGINT) AS bandwidth
  FROM current_routers WHERE configured_bandwidth_bytes_per_s > 0
),
destinations AS (
  SELECT farm, destination, server_id, part,
    CAST(sum(bandwidth) AS DOUBLE) / nullif(count(bandwidth), 0) AS bandwidth,
    CAST(sum(connected) AS DOUBLE) / nullif(count(connected), 0) AS connected
  FROM (
    SELECT h.farm, h.destination, h.server_id,
      CAST(floor(CAST(e.until_ms - unix_millis(h.window_end) AS DOUBLE) / 14400000) AS BIGINT) AS part,
      CASE WHEN h.bandwidth_bytes_per_s IS NOT NULL
        THEN CAST(floor(least(greatest(h.bandwidth_bytes_per_s, 0), 1e12) + 0.5) AS BIGINT) END AS bandwidth,
      CASE WHEN h.connections IS NOT NULL
        THEN CAST(floor(least(greatest(h.connections, 0), 1e9) * 1e3 + 0.5) AS BIGINT) END AS connected
    FROM destination_health h JOIN ends e ON e.farm = h.farm
    WHERE unix_millis(h.window_end) > e.until_ms - 2419200000
  ) w
  GROUP BY farm, destination, server_id, part
),
destination_limits AS (
  SELECT farm, destination, server_id,
    CAST(CASE WHEN configured_bandwidth_bytes_per_s > 0
      THEN least(configured_bandwidth_bytes_per_s, 100000000000) END AS BIGINT) AS bandwidth,
    CAST(CASE WHEN configured_connections > 0 THEN least(configured_connections, 1000000000) END AS BIGINT) AS connected
  FROM current_destinations
),
measured AS (
  SELECT farm, server_id, part, 'cpu' AS resource, cpu AS used, 1 AS size FROM routers
  UNION ALL
  SELECT r.farm, r.server_id, r.part, 'bandwidth' AS resource,
    CAST(floor(least(1e6 * r.bandwidth / l.bandwidth, 1e7) + 0.5) AS BIGINT) AS used, l.bandwidth AS size
  FROM routers r JOIN limits l ON l.farm = r.farm AND l.server_id = r.server_id
),
served AS (
  SELECT farm, destination, server_id FROM destinations WHERE part < 6 GROUP BY farm, destination, server_id
),
shared AS (
  SELECT farm, destination FROM served GROUP BY farm, destination HAVING min(server_id) <> max(server_id)
),
loads AS (
  SELECT farm, 'router' AS kind, CAST(server_id AS STRING) AS name, resource, server_id, part, used, size FROM measured
  UNION ALL
  SELECT farm, 'router' AS kind, CAST(server_id AS STRING) AS name, 'memory' AS resource, server_id, part,
    memory AS used, 1 AS size
  FROM routers
  UNION ALL
  SELECT farm, 'router' AS kind, CAST(server_id AS STRING) AS name, 'job lag' AS resource, server_id, part,
    lag AS used, 1 AS size
  FROM routers
  UNION ALL
  SELECT farm, 'farm' AS kind, farm AS name, concat('router ', resource) AS resource, server_id, part, used, size
  FROM measured
  UNION ALL
  SELECT m.farm, 'destination' AS kind, s.destination AS name, concat('router ', m.resource) AS resource, m.server_id,
    m.part, m.used, m.size
  FROM measured m
  JOIN served s ON s.farm = m.farm AND s.server_id = m.server_id
  JOIN shared d ON d.farm = s.farm AND d.destination = s.destination
  UNION ALL
  SELECT r.farm, 'destination' AS kind, r.destination AS name, 'bandwidth' AS resource, r.server_id, r.part,
    CAST(floor(least(1e6 * r.bandwidth / l.bandwidth, 1e7) + 0.5) AS BIGINT) AS used, l.bandwidth AS size
  FROM destinations r
  JOIN destination_limits l ON l.farm = r.farm AND l.destination = r.destination AND l.server_id = r.server_id
  UNION ALL
  SELECT r.farm, 'destination' AS kind, r.destination AS name, 'connections' AS resource, r.server_id, r.part,
    CAST(floor(least(1e3 * r.connected / l.connected, 1e7) + 0.5) AS BIGINT) AS used, l.connected AS size
  FROM destinations r
  JOIN destination_limits l ON l.farm = r.farm AND l.destination = r.destination AND l.server_id = r.server_id
),
targets AS (
  SELECT farm, kind, name, resource, CAST(sum(size) AS DOUBLE) AS whole, CAST(max(size) AS DOUBLE) AS largest,
    row_number() OVER (ORDER BY farm, kind, name, resource) AS target
  FROM (
    SELECT farm, kind, name, resource, server_id, max(size) AS size
    FROM loads WHERE used IS NOT NULL AND size IS NOT NULL AND part < 6
    GROUP BY farm, kind, name, resource, server_id
  ) p
  GROUP BY farm, kind, name, resource
),
points AS (
  SELECT t.target, l.part, l.part % 6 AS season,
    CAST(floor(
      CAST(sum(CAST(l.used AS DECIMAL(18, 0)) * CAST(l.size AS DECIMAL(18, 0))) AS DOUBLE) / max(t.whole) + 0.5
    ) AS BIGINT) AS load
  FROM loads l
  JOIN targets t ON t.farm = l.farm AND t.kind = l.kind AND t.name = l.name AND t.resource = l.resource
  WHERE l.used IS NOT NULL AND l.size IS NOT NULL
  GROUP BY t.target, l.part
),
busiest AS (
  SELECT target, max(CASE WHEN part < 6 THEN load END) AS load FROM points GROUP BY target
),
slopes AS (
  SELECT e.target,
    CAST(floor(CAST(6000 * (l.load - e.load) AS DOUBLE) / (e.part - l.part) + 0.5) AS BIGINT) AS slope
  FROM points e JOIN points l ON l.target = e.target AND l.season = e.season AND l.part < e.part
),
spread AS (
  SELECT target, max(points) AS days,
    CAST(sum(points * (points - 1) / 2) AS BIGINT) AS pairs,
    1.645e0 * sqrt(CAST(sum(points * (points - 1) * (2 * points + 5)) AS DOUBLE) / 18) AS width
  FROM (SELECT target, season, count(*) AS points FROM points GROUP BY target, season) s
  GROUP BY target
),
ranks AS (
  SELECT target, days, CAST(floor(CAST(pairs + 1 AS DOUBLE) / 2) AS BIGINT) AS middle,
    CAST(floor((pairs - width) / 2) AS BIGINT) AS low, pairs + 1 - CAST(floor((pairs - width) / 2) AS BIGINT) AS high
  FROM spread
),
trends AS (
  SELECT s.target,
    max(CASE WHEN s.rank = r.low THEN s.slope END) AS low,
    max(CASE WHEN s.rank = r.middle THEN s.slope END) AS middle,
    max(CASE WHEN s.rank = r.high THEN s.slope END) AS high
  FROM (SELECT target, slope, row_number() OVER (PARTITION BY target ORDER BY slope) AS rank FROM slopes) s
  JOIN ranks r ON r.target = s.target
  WHERE r.days >= 3
  GROUP BY s.target
),
forecast AS (
  SELECT t.*, r.days, b.load, n.low, n.middle, n.high,
    CASE WHEN b.load >= 1000000 THEN 0 WHEN n.middle > 0 THEN floor(1e4 * (1000000 - b.load) / n.middle + 0.5) END AS due,
    CASE WHEN b.load >= 1000000 THEN 0 WHEN n.high > 0 THEN floor(1e4 * (1000000 - b.load) / n.high + 0.5) END AS soonest,
    CASE WHEN b.load >= 1000000 THEN 0 WHEN n.low > 0 THEN floor(1e4 * (1000000 - b.load) / n.low + 0.5) END AS latest,
    CASE WHEN t.kind <> 'router' AND t.whole > t.largest
      THEN 1000000 - floor(b.load * t.whole / (t.whole - t.largest) + 0.5) END AS n1
  FROM targets t
  JOIN busiest b ON b.target = t.target
  JOIN ranks r ON r.target = t.target
  LEFT JOIN trends n ON n.target = t.target
)
SELECT farm, kind, name, resource, days, load / 1e6 AS load, (1000000 - load) / 1e6 AS headroom, n1 / 1e6 AS headroom_n1,
  middle / 1e9 AS trend, low / 1e9 AS trend_low, high / 1e9 AS trend_high,
  CASE WHEN due <= 3650 THEN due / 10 END AS days_left,
  CASE WHEN soonest <= 3650 THEN soonest / 10 END AS days_left_soonest,
  CASE WHEN latest <= 3650 THEN latest / 10 END AS days_left_latest
FROM forecast f
ORDER BY CASE WHEN due <= 3650 THEN due END NULLS LAST, n1 NULLS LAST, f.load DESC, farm, kind, name, resource
