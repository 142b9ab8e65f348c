-- routers with unusual values, the worst first
-- empty: no router has unusual values, or fewer than two hours of reports exist
--
--     slot      mean of the windows in ten minutes of log time, without a router's first hour, its warm-up
--     usual     median of the slots in the same hour on the previous seven days; with fewer than three of these days or
--               six of these slots, of the slots in the previous six hours
--     distance  ln((seen + c) / (usual + c)), positive when worse: lag and round trips up, tunnels down
--     score     distance / (1.4826 * the median distance of those slots from their own median, either way: their MAD)
--     departs   score >= 4.5; warned: 3 of a router's last 4 slots depart. Warnings at most two hours apart are one
--
-- Load has a multiplying effect, so distances are ratios: a third and three times have the same distance. With c (1 ms
-- of lag, 20 tunnels, 50 ms of a round trip) small values are never far apart. 1.4826 * MAD is the standard deviation
-- of a normal distribution, and does not change with up to half of the slots as outliers. A few calm days make it too
-- small. So the larger value of the previous days and of the previous hours counts, and at least 0.1; 0.2 if there are
-- only hours, since load changes with the time of day.
--
-- Distances are whole millionths, so the order of rows does not matter. A thousand routers have 1.3 million slots in
-- memory, and each hour is compared with up to 78 slots. So a row has all signals for as long as possible, and a number
-- instead of farm and server. `wanted` is distinct in any case; DISTINCT keeps DuckDB from joining all hours of a
-- router with each other first.
WITH ends AS (
  SELECT farm, max(unix_millis(window_end)) AS until_ms FROM router_health GROUP BY farm
),
windows AS (
  SELECT h.farm, h.server_id, e.until_ms, unix_millis(h.window_start) - unix_millis(h.window_start) % 600000 AS slot_ms,
    unix_millis(h.window_end) AS end_ms,
    CASE WHEN job_lag_p50_ms IS NOT NULL
      THEN CAST(floor(greatest(least(job_lag_p50_ms, 1e9), 0.0) * 1000 + 0.5) AS BIGINT) END AS lag,
    CASE WHEN participating_tunnels IS NOT NULL
      THEN CAST(floor(greatest(least(participating_tunnels, 1e9), 0.0) * 1000 + 0.5) AS BIGINT) END AS tunnels,
    CASE WHEN fetch_p50_ms IS NOT NULL
      THEN CAST(floor(greatest(least(fetch_p50_ms, 1e9), 0.0) * 1000 + 0.5) AS BIGINT) END AS round_trip
  FROM router_health h JOIN ends e ON e.farm = h.farm
  WHERE unix_millis(h.window_start) >= e.until_ms - ($warned_days + 8) * CAST(86400000 AS BIGINT)
    AND coalesce(h.uptime_ms, 3600000) >= 3600000
),
means AS (
  SELECT farm, server_id, slot_ms, slot_ms - slot_ms % 3600000 AS hour_ms,
    greatest(slot_ms + 600000, max(end_ms)) AS end_ms,
    slot_ms >= max(until_ms) - $warned_days * CAST(86400000 AS BIGINT) AS judged,
    CAST(floor(CAST(sum(lag) AS DOUBLE) / nullif(count(lag), 0)) AS BIGINT) AS lag,
    CAST(floor(CAST(sum(tunnels) AS DOUBLE) / nullif(count(tunnels), 0)) AS BIGINT) AS tunnels,
    CAST(floor(CAST(sum(round_trip) AS DOUBLE) / nullif(count(round_trip), 0)) AS BIGINT) AS round_trip
  FROM windows
  GROUP BY farm, server_id, slot_ms
  HAVING slot_ms + 600000 <= max(until_ms)
),
routers AS (
  SELECT farm, server_id, row_number() OVER (ORDER BY farm, server_id) AS router
  FROM (SELECT DISTINCT farm, server_id FROM router_health) r
),
slots AS (
  SELECT r.router, slot_ms, hour_ms, end_ms, judged, lag, tunnels, round_trip
  FROM means m JOIN routers r ON r.farm = m.farm AND r.server_id = m.server_id
),
wanted AS (
  SELECT DISTINCT h.router, h.hour_ms, b.baseline, h.hour_ms - b.back_ms AS of_hour_ms
  FROM (SELECT DISTINCT router, hour_ms FROM slots WHERE judged) h
  CROSS JOIN (
    SELECT * FROM (VALUES
      ('days', 86400000), ('days', 172800000), ('days', 259200000), ('days', 345600000), ('days', 432000000),
      ('days', 518400000), ('days', 604800000),
      ('hours', 3600000), ('hours', 7200000), ('hours', 10800000), ('hours', 14400000), ('hours', 18000000),
      ('hours', 21600000)
    ) AS offsets (baseline, back_ms)
  ) b
),
compared AS (
  SELECT w.router, w.hour_ms, w.baseline, w.of_hour_ms, s.lag, s.tunnels, s.round_trip
  FROM wanted w JOIN slots s ON s.router = w.router AND s.hour_ms = w.of_hour_ms
),
middles AS (
  SELECT router, hour_ms, baseline,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY lag) AS lag,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY tunnels) AS tunnels,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY round_trip) AS round_trip
  FROM compared
  GROUP BY router, hour_ms, baseline
),
spreads AS (
  SELECT c.router, c.hour_ms, c.baseline,
    max(m.lag) AS lag, max(m.tunnels) AS tunnels, max(m.round_trip) AS round_trip,
    percentile_disc(0.5) WITHIN GROUP (
      ORDER BY CAST(floor(1e6 * abs(ln(CAST(c.lag + 1000 AS DOUBLE) / (m.lag + 1000))) + 0.5) AS BIGINT)
    ) AS lag_mad,
    percentile_disc(0.5) WITHIN GROUP (
      ORDER BY CAST(floor(1e6 * abs(ln(CAST(c.tunnels + 20000 AS DOUBLE) / (m.tunnels + 20000))) + 0.5) AS BIGINT)
    ) AS tunnels_mad,
    percentile_disc(0.5) WITHIN GROUP (
      ORDER BY CAST(floor(1e6 * abs(ln(CAST(c.round_trip + 50000 AS DOUBLE) / (m.round_trip + 50000))) + 0.5) AS BIGINT)
    ) AS round_trip_mad,
    count(c.lag) AS lag_slots, count(DISTINCT CASE WHEN c.lag IS NOT NULL THEN of_hour_ms END) AS lag_hours,
    count(c.tunnels) AS tunnel_slots, count(DISTINCT CASE WHEN c.tunnels IS NOT NULL THEN of_hour_ms END) AS tunnel_hours,
    count(c.round_trip) AS round_trip_slots,
    count(DISTINCT CASE WHEN c.round_trip IS NOT NULL THEN of_hour_ms END) AS round_trip_hours
  FROM compared c
  JOIN middles m ON m.router = c.router AND m.hour_ms = c.hour_ms AND m.baseline = c.baseline
  GROUP BY c.router, c.hour_ms, c.baseline
),
figures AS (
  SELECT router, hour_ms, baseline, 'lag' AS signal, 1 AS worse, 1000 AS least,
    lag AS usual, lag_mad AS mad, lag_slots AS slots, lag_hours AS hours
  FROM spreads
  UNION ALL
  SELECT router, hour_ms, baseline, 'tunnels' AS signal, -1 AS worse, 20000 AS least,
    tunnels AS usual, tunnels_mad AS mad, tunnel_slots AS slots, tunnel_hours AS hours
  FROM spreads
  UNION ALL
  SELECT router, hour_ms, baseline, 'round-trip' AS signal, 1 AS worse, 50000 AS least,
    round_trip AS usual, round_trip_mad AS mad, round_trip_slots AS slots, round_trip_hours AS hours
  FROM spreads
),
enough AS (
  SELECT t.* FROM figures t WHERE CASE baseline WHEN 'days' THEN hours >= 3 AND slots >= 6 ELSE slots >= 12 END
),
baselines AS (
  SELECT e.router, e.signal, e.hour_ms, e.baseline, e.worse, e.least, e.usual,
    greatest(
      1.4826e-6 * max(mad) OVER (PARTITION BY router, signal, hour_ms), CASE baseline WHEN 'days' THEN 0.1 ELSE 0.2 END
    ) AS spread,
    row_number() OVER (PARTITION BY router, signal, hour_ms ORDER BY baseline) AS choice
  FROM enough e
),
measured AS (
  SELECT router, slot_ms, hour_ms, end_ms, 'lag' AS signal, lag AS seen FROM slots WHERE judged
  UNION ALL
  SELECT router, slot_ms, hour_ms, end_ms, 'tunnels' AS signal, tunnels AS seen FROM slots WHERE judged
  UNION ALL
  SELECT router, slot_ms, hour_ms, end_ms, 'round-trip' AS signal, round_trip AS seen FROM slots WHERE judged
),
scored AS (
  SELECT m.router, m.signal, m.slot_ms, m.end_ms, m.seen, b.baseline, b.usual,
    floor(10 * b.worse * ln(CAST(m.seen + b.least AS DOUBLE) / (b.usual + b.least)) / b.spread + 0.5) / 10 AS score
  FROM measured m
  JOIN baselines b ON b.router = m.router AND b.signal = m.signal AND b.hour_ms = m.hour_ms AND b.choice = 1
  WHERE m.seen IS NOT NULL
),
lasting AS (
  SELECT s.*,
    sum(CASE WHEN score >= 4.5 THEN 1 ELSE 0 END) OVER last_slots AS departing,
    min(CASE WHEN score >= 4.5 THEN slot_ms END) OVER last_slots AS since_ms,
    max(slot_ms) OVER (PARTITION BY router, signal) AS newest_ms
  FROM scored s
  WINDOW last_slots AS (
    PARTITION BY router, signal ORDER BY slot_ms ROWS BETWEEN 3 PRECEDING AND CURRENT ROW
  )
),
apart AS (
  SELECT l.*, slot_ms - lag(slot_ms) OVER (PARTITION BY router, signal ORDER BY slot_ms) AS apart_ms
  FROM lasting l WHERE departing >= 3
),
numbered AS (
  SELECT a.*,
    sum(CASE WHEN apart_ms > 7200000 THEN 1 ELSE 0 END) OVER (
      PARTITION BY router, signal ORDER BY slot_ms
    ) AS warning
  FROM apart a
),
warned AS (
  SELECT n.*,
    min(since_ms) OVER whole AS first_ms,
    min(end_ms) OVER whole AS warned_ms,
    max(end_ms) OVER whole AS last_ms,
    max(slot_ms) OVER whole = newest_ms AS is_on,
    row_number() OVER (
      PARTITION BY router, signal, warning ORDER BY score DESC, slot_ms DESC
    ) AS place
  FROM numbered n
  WINDOW whole AS (PARTITION BY router, signal, warning)
)
SELECT r.farm, r.server_id, signal,
  timestamp_millis(first_ms) AS since, timestamp_millis(warned_ms) AS warned_at, timestamp_millis(last_ms) AS until,
  is_on AS lasting, baseline,
  CAST(usual AS DOUBLE) / 1000 AS usual, CAST(seen AS DOUBLE) / 1000 AS seen, score
FROM warned w JOIN routers r ON r.router = w.router
WHERE place = 1
ORDER BY lasting DESC, score DESC, farm, server_id, signal, since
