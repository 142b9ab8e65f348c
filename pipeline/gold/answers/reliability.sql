-- failures, MTBF and MTTR of each server, the longest down first
--
--     failure    healthy ──▶ unhealthy or silent          repair    ──▶ healthy
--     mtbf_ms    time healthy / failures                  mttr_ms   time not healthy / repairs, for ended outages
--
-- A server becomes silent after three reporting periods, so an outage lasted that much longer than these figures. If a
-- correction set log time back during a state by more than its length, the state counts as 0 ms.
WITH placed AS (
  -- Rows of earlier versions lack `after_index`.
  SELECT farm, server_id, previous, state, unix_millis(t.at) AS at_ms, t.index AS at_index,
    coalesce(t.index, t.after_index, max(t.index) OVER (
      PARTITION BY farm, server_id ORDER BY t.at, t.index NULLS FIRST)) AS place
  FROM transitions t
),
followed AS (
  SELECT p.*, lead(at_ms) OVER in_order AS until_ms, row_number() OVER in_order AS step
  FROM placed p
  WINDOW in_order AS (PARTITION BY farm, server_id ORDER BY place NULLS FIRST, at_index NULLS LAST)
),
lasting AS (
  SELECT f.*, greatest(coalesce(f.until_ms, unix_millis(c.log_time)) - f.at_ms, 0) AS lasted_ms
  FROM followed f LEFT JOIN current_farm c ON c.farm = f.farm
),
summed AS (
  SELECT farm, server_id,
    sum(CASE WHEN state <> 'healthy' AND previous = 'healthy' THEN 1 ELSE 0 END) AS failures,
    sum(CASE WHEN state = 'healthy' AND previous IN ('unhealthy', 'silent') THEN 1 ELSE 0 END) AS repairs,
    CAST(sum(CASE WHEN state = 'healthy' THEN lasted_ms ELSE 0 END) AS BIGINT) AS healthy_ms,
    CAST(sum(CASE WHEN state <> 'healthy' THEN lasted_ms ELSE 0 END) AS BIGINT) AS down_ms,
    CAST(sum(CASE WHEN state <> 'healthy' AND until_ms IS NOT NULL THEN lasted_ms ELSE 0 END) AS BIGINT) AS repaired_ms,
    max_by(state, step) AS state
  FROM lasting
  GROUP BY farm, server_id
)
SELECT farm, server_id, state, failures, repairs, healthy_ms, down_ms,
  CAST(floor(CAST(healthy_ms AS DOUBLE) / nullif(failures, 0)) AS BIGINT) AS mtbf_ms,
  CAST(floor(CAST(repaired_ms AS DOUBLE) / nullif(repairs, 0)) AS BIGINT) AS mttr_ms
FROM summed
ORDER BY down_ms DESC, failures DESC, farm, server_id
