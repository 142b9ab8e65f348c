-- service levels and burnt error budget of farms and routers
--
--     good     router       its availability in the window
--              destination  availability * healthy share, of the server that serves it best
--              farm         the same of its best destination
--     level    sum of good / windows of the farm since the first one that names it; a window without a row is bad
--     burn     (1 - level) / (1 - objective): 1 uses the budget up just at the end of 30 days
--
-- Time is the farm's log time, back from its newest window: a farm whose log stands still has no windows meanwhile.
WITH ends AS (
  SELECT farm, max(window_end) AS until FROM router_health GROUP BY farm
),
windows AS (
  SELECT farm, window_start, age_ms, row_number() OVER (PARTITION BY farm ORDER BY window_start DESC) AS due
  FROM (
    SELECT DISTINCT h.farm, h.window_start, epoch_ms(e.until) - epoch_ms(h.window_start) AS age_ms
    FROM router_health h JOIN ends e ON e.farm = h.farm
    WHERE h.window_start >= e.until - INTERVAL 30 DAY
  ) w
),
spans AS (
  SELECT farm,
    count(CASE WHEN age_ms <= 3600000 THEN 1 END) AS due_1h,
    count(CASE WHEN age_ms <= 21600000 THEN 1 END) AS due_6h
  FROM windows GROUP BY farm
),
served AS (
  SELECT farm, window_start, destination,
    max(CAST(floor(availability * coalesce(healthy_share, 0) * 1e6 + 0.5) AS BIGINT)) AS good
  FROM destination_health
  GROUP BY farm, window_start, destination
),
measured AS (
  SELECT farm, window_start, 'router' AS kind, CAST(server_id AS VARCHAR) AS name,
    CAST(floor(availability * 1e6 + 0.5) AS BIGINT) AS good
  FROM router_health
  UNION ALL SELECT farm, window_start, 'destination' AS kind, destination AS name, good FROM served
  UNION ALL SELECT farm, window_start, 'farm' AS kind, farm AS name, max(good) AS good
  FROM served GROUP BY farm, window_start
),
summed AS (
  SELECT m.farm, m.kind, m.name,
    max(w.due) AS due_30d,
    sum(m.good) AS good_30d,
    sum(CASE WHEN w.age_ms <= 21600000 THEN m.good ELSE 0 END) AS good_6h,
    sum(CASE WHEN w.age_ms <= 3600000 THEN m.good ELSE 0 END) AS good_1h
  FROM measured m JOIN windows w ON w.farm = m.farm AND w.window_start = m.window_start
  GROUP BY m.farm, m.kind, m.name
),
levels AS (
  SELECT d.farm, d.kind, d.name,
    CAST(d.good_1h AS DOUBLE) / (1e6 * nullif(least(d.due_30d, s.due_1h), 0)) AS level_1h,
    CAST(d.good_6h AS DOUBLE) / (1e6 * nullif(least(d.due_30d, s.due_6h), 0)) AS level_6h,
    CAST(d.good_30d AS DOUBLE) / (1e6 * d.due_30d) AS level_30d
  FROM summed d JOIN spans s ON s.farm = d.farm
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
