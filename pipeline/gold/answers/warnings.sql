-- routers that depart from what is usual for them, the worst first
-- empty: no router departs from its own usual, or there is too little to tell it by: two hours of reports are the least
--
--     slot      mean of the windows in ten minutes of log time; not of a router in its first hour, which is warming up
--     usual     median of the slots in the same hour of day on the seven days before; out of fewer than three of these
--               days, of the slots in the six hours before
--     score     (seen - usual) / (1.4826 * MAD) of the same slots, towards the worse: lag and round trips up, tunnels down
--     departs   score >= 5; warned: 3 of a router's last 4 slots depart. Warnings less than two hours apart are one
--
-- 1.4826 times the median absolute deviation is the standard deviation of what is normally distributed, and half of the
-- slots may be outliers before it moves. It counts as no less than a tenth of the usual value, 1 ms of lag, 5 tunnels
-- and 50 ms of a round trip: what hardly ever moves would be warned of for nothing. Values are whole thousandths, so that the order of rows makes no
-- difference. A day has 144 slots of a router, and 7 * 6 of them are compared with each hour.
WITH ends AS (
  SELECT farm, max(unix_millis(window_end)) AS until_ms FROM router_health GROUP BY farm
),
windows AS (
  SELECT h.farm, h.server_id, unix_millis(h.window_start) - unix_millis(h.window_start) % 600000 AS slot_ms,
    greatest(600000, unix_millis(h.window_end) - unix_millis(h.window_start)) AS wide_ms, e.until_ms,
    CAST(floor(least(job_lag_p50_ms, 1e9) * 1000 + 0.5) AS BIGINT) AS lag,
    CAST(floor(least(participating_tunnels, 1e9) * 1000 + 0.5) AS BIGINT) AS tunnels,
    CAST(floor(least(fetch_p50_ms, 1e9) * 1000 + 0.5) AS BIGINT) AS round_trip
  FROM router_health h JOIN ends e ON e.farm = h.farm
  WHERE unix_millis(h.window_start) >= e.until_ms - ($warned_days + 8) * CAST(86400000 AS BIGINT)
    AND coalesce(h.uptime_ms, 3600000) >= 3600000
),
slots AS (
  SELECT farm, server_id, slot_ms, slot_ms - slot_ms % 3600000 AS hour_ms,
    max(wide_ms) AS wide_ms, max(until_ms) AS until_ms,
    CAST(floor(CAST(sum(lag) AS DOUBLE) / nullif(count(lag), 0)) AS BIGINT) AS lag,
    CAST(floor(CAST(sum(tunnels) AS DOUBLE) / nullif(count(tunnels), 0)) AS BIGINT) AS tunnels,
    CAST(floor(CAST(sum(round_trip) AS DOUBLE) / nullif(count(round_trip), 0)) AS BIGINT) AS round_trip
  FROM windows
  GROUP BY farm, server_id, slot_ms
  HAVING slot_ms + max(wide_ms) <= max(until_ms)
),
measured AS (
  SELECT farm, server_id, 'lag' AS signal, 1 AS worse, 1000 AS least_spread, slot_ms, hour_ms, wide_ms, until_ms,
    lag AS seen
  FROM slots WHERE lag IS NOT NULL
  UNION ALL
  SELECT farm, server_id, 'tunnels' AS signal, -1 AS worse, 5000 AS least_spread, slot_ms, hour_ms, wide_ms, until_ms,
    tunnels AS seen
  FROM slots WHERE tunnels IS NOT NULL
  UNION ALL
  SELECT farm, server_id, 'round-trip' AS signal, 1 AS worse, 50000 AS least_spread, slot_ms, hour_ms, wide_ms, until_ms,
    round_trip AS seen
  FROM slots WHERE round_trip IS NOT NULL
),
judged AS (
  SELECT m.* FROM measured m WHERE slot_ms >= until_ms - $warned_days * CAST(86400000 AS BIGINT)
),
compared AS (
  SELECT h.farm, h.server_id, h.signal, h.hour_ms, b.baseline, m.hour_ms AS of_hour_ms, m.seen
  FROM (SELECT DISTINCT farm, server_id, signal, hour_ms FROM judged) h
  CROSS JOIN (
    SELECT * FROM (VALUES
      ('days', 86400000), ('days', 172800000), ('days', 259200000), ('days', 345600000), ('days', 432000000),
      ('days', 518400000), ('days', 604800000),
      ('hours', 3600000), ('hours', 7200000), ('hours', 10800000), ('hours', 14400000), ('hours', 18000000),
      ('hours', 21600000)
    ) AS offsets (baseline, back_ms)
  ) b
  JOIN measured m ON m.farm = h.farm AND m.server_id = h.server_id AND m.signal = h.signal
    AND m.hour_ms = h.hour_ms - b.back_ms
),
middles AS (
  SELECT farm, server_id, signal, hour_ms, baseline,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY seen) AS usual
  FROM compared
  GROUP BY farm, server_id, signal, hour_ms, baseline
  HAVING CASE baseline WHEN 'days' THEN count(DISTINCT of_hour_ms) >= 3 AND count(*) >= 6 ELSE count(*) >= 12 END
),
spreads AS (
  SELECT c.farm, c.server_id, c.signal, c.hour_ms, c.baseline, m.usual,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY abs(c.seen - m.usual)) AS mad
  FROM compared c
  JOIN middles m ON m.farm = c.farm AND m.server_id = c.server_id AND m.signal = c.signal AND m.hour_ms = c.hour_ms
    AND m.baseline = c.baseline
  GROUP BY c.farm, c.server_id, c.signal, c.hour_ms, c.baseline, m.usual
),
baselines AS (
  SELECT s.*, row_number() OVER (PARTITION BY farm, server_id, signal, hour_ms ORDER BY baseline) AS choice
  FROM spreads s
),
scored AS (
  SELECT j.farm, j.server_id, j.signal, j.slot_ms, j.wide_ms, j.seen, b.baseline, b.usual,
    floor(10 * worse * CAST(j.seen - b.usual AS DOUBLE)
      / greatest(1.4826 * b.mad, 0.1 * b.usual, j.least_spread) + 0.5) / 10 AS score
  FROM judged j
  JOIN baselines b ON b.farm = j.farm AND b.server_id = j.server_id AND b.signal = j.signal AND b.hour_ms = j.hour_ms
    AND b.choice = 1
),
lasting AS (
  SELECT s.*,
    sum(CASE WHEN score >= 5 THEN 1 ELSE 0 END) OVER last_slots AS departing,
    min(CASE WHEN score >= 5 THEN slot_ms END) OVER last_slots AS since_ms,
    max(slot_ms) OVER (PARTITION BY farm, server_id, signal) AS newest_ms
  FROM scored s
  WINDOW last_slots AS (
    PARTITION BY farm, server_id, signal ORDER BY slot_ms ROWS BETWEEN 3 PRECEDING AND CURRENT ROW
  )
),
apart AS (
  SELECT l.*, slot_ms - lag(slot_ms) OVER (PARTITION BY farm, server_id, signal ORDER BY slot_ms) AS apart_ms
  FROM lasting l WHERE departing >= 3
),
numbered AS (
  SELECT a.*,
    sum(CASE WHEN apart_ms > 7200000 THEN 1 ELSE 0 END) OVER (
      PARTITION BY farm, server_id, signal ORDER BY slot_ms
    ) AS warning
  FROM apart a
),
warned AS (
  SELECT n.*,
    min(since_ms) OVER whole AS first_ms,
    min(slot_ms + wide_ms) OVER whole AS warned_ms,
    max(slot_ms + wide_ms) OVER whole AS last_ms,
    max(slot_ms) OVER whole = newest_ms AS is_on,
    row_number() OVER (
      PARTITION BY farm, server_id, signal, warning ORDER BY score DESC, slot_ms DESC
    ) AS place
  FROM numbered n
  WINDOW whole AS (PARTITION BY farm, server_id, signal, warning)
)
SELECT farm, server_id, signal,
  timestamp_millis(first_ms) AS since, timestamp_millis(warned_ms) AS warned_at, timestamp_millis(last_ms) AS until,
  is_on AS lasting, baseline,
  CAST(usual AS DOUBLE) / 1000 AS usual, CAST(seen AS DOUBLE) / 1000 AS seen, score
FROM warned
WHERE place = 1
ORDER BY lasting DESC, score DESC, farm, server_id, signal, since
