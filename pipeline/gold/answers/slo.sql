-- service levels and burned error budget of farms and routers
--
--     good     router       its availability in the window
--              destination  availability * healthy share, on its best server
--              farm         the same for its best destination
--     level    sum of good / windows of the farm since the first one with this name; a window without a row is bad
--     burn     (1 - level) / (1 - objective): 1 uses up the budget exactly in 30 days
--
-- Time is the farm's log time, back from its newest window: if the log of a farm stops, no windows arise.
--
-- A thousand routers have 43 million rows in 30 days of minutes. They are summed during the read; only the rows of
-- destinations on several servers, and a row per window of the farm, stay in memory.
WITH ends AS (
  SELECT farm, max(unix_millis(window_end)) AS until_ms FROM router_health GROUP BY farm
),
windows AS (
  SELECT farm, start_ms, until_ms, row_number() OVER (PARTITION BY farm ORDER BY start_ms DESC) AS due
  FROM (
    SELECT DISTINCT h.farm, unix_millis(h.window_start) AS start_ms, e.until_ms
    FROM router_health h JOIN ends e ON e.farm = h.farm
    WHERE unix_millis(h.window_start) >= e.until_ms - 2592000000
  ) w
),
spans AS (
  SELECT farm, max(until_ms) AS until_ms,
    count(CASE WHEN until_ms - start_ms <= 3600000 THEN 1 END) AS due_1h,
    count(CASE WHEN until_ms - start_ms <= 21600000 THEN 1 END) AS due_6h
  FROM windows GROUP BY farm
),
servers AS (
  SELECT farm, destination, min(server_id) <> max(server_id) AS several FROM destination_health GROUP BY farm, destination
),
measured AS (
  SELECT farm, unix_millis(window_start) AS start_ms, 'router' AS kind, CAST(server_id AS STRING) AS name,
    CAST(floor(availability * 1e6 + 0.5) AS BIGINT) AS good
  FROM router_health
  UNION ALL
  SELECT d.farm, unix_millis(d.window_start) AS start_ms, 'destination' AS kind, d.destination AS name,
    CAST(floor(d.availability * coalesce(d.healthy_share, 0) * 1e6 + 0.5) AS BIGINT) AS good
  FROM destination_health d JOIN servers s ON s.farm = d.farm AND s.destination = d.destination
  WHERE NOT s.several
  UNION ALL
  SELECT d.farm, unix_millis(d.window_start) AS start_ms, 'destination' AS kind, d.destination AS name,
    max(CAST(floor(d.availability * coalesce(d.healthy_share, 0) * 1e6 + 0.5) AS BIGINT)) AS good
  FROM destination_health d JOIN servers s ON s.farm = d.farm AND s.destination = d.destination
  WHERE s.several
  GROUP BY d.farm, d.window_start, d.destination
  UNION ALL
  SELECT farm, unix_millis(window_start) AS start_ms, 'farm' AS kind, farm AS name,
    max(CAST(floor(availability * coalesce(healthy_share, 0) * 1e6 + 0.5) AS BIGINT)) AS good
  FROM destination_health
  GROUP BY farm, window_start
),
summed AS (
  SELECT m.farm, m.kind, m.name, min(m.start_ms) AS since_ms,
    coalesce(sum(m.good), 0) AS good_30d,
    coalesce(sum(CASE WHEN s.until_ms - m.start_ms <= 21600000 THEN m.good ELSE 0 END), 0) AS good_6h,
    coalesce(sum(CASE WHEN s.until_ms - m.start_ms <= 3600000 THEN m.good ELSE 0 END), 0) AS good_1h
  FROM measured m JOIN spans s ON s.farm = m.farm
  WHERE m.start_ms >= s.until_ms - 2592000000
  GROUP BY m.farm, m.kind, m.name
),
levels AS (
  SELECT d.farm, d.kind, d.name,
    CAST(d.good_1h AS DOUBLE) / (1e6 * nullif(least(w.due, s.due_1h), 0)) AS level_1h,
    CAST(d.good_6h AS DOUBLE) / (1e6 * nullif(least(w.due, s.due_6h), 0)) AS level_6h,
    CAST(d.good_30d AS DOUBLE) / (1e6 * w.due) AS level_30d
  FROM summed d
  JOIN windows w ON w.farm = d.farm AND w.start_ms = d.since_ms
  JOIN spans s ON s.farm = d.farm
),
burning AS (
  SELECT l.*,
    1e6 * (1 - level_1h) / (1e6 - $objective_ppm) AS burn_1h,
    1e6 * (1 - level_6h) / (1e6 - $objective_ppm) AS burn_6h,
    1e6 * (1 - level_30d) / (1e6 - $objective_ppm) AS burn_30d
  FROM levels l
)
SELECT farm, kind, name,
  round(level_1h, 6) AS level_1h, round(level_6h, 6) AS level_6h, round(level_30d, 6) AS level_30d,
  round(burn_1h, 3) AS burn_1h, round(burn_6h, 3) AS burn_6h, round(burn_30d, 3) AS burn_30d,
  round(1 - burn_30d, 3) AS budget_left
FROM burning
ORDER BY CASE kind WHEN 'farm' THEN 1 WHEN 'destination' THEN 2 ELSE 3 END, burning.burn_30d DESC, farm, name
