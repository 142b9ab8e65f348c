-- lag from log time to the tables, per farm and hour
-- empty: an earlier version wrote all batches, and did not record the time
--
--     lag_…         milliseconds of a batch: clock of the pipeline's machine when it wrote - newest log time in the batch
--     last_lag_ms   of the last batch of the hour
--
-- The source is the table ranges. Each batch counts once, also a batch of a backlog or of a backfill. Log time and the
-- machine's clock may differ: a lag below 0 shows a machine with a slow clock. Batches without log time, and rows
-- of a repair, do not count. An hour without entries of the farm does not have a row.
WITH batches AS (
  SELECT farm, batch_id, max(stored_at) AS stored_at, max(last_index) AS last_index,
    max(unix_millis(stored_at)) - max(unix_millis(log_time)) AS lag_ms, sum(row_count) AS entries
  FROM ranges WHERE name = 'log' AND kind = 'read' AND stored_at IS NOT NULL
  GROUP BY farm, batch_id
),
in_order AS (
  SELECT b.*, unix_millis(stored_at) - unix_millis(stored_at) % 3600000 AS hour_ms
  FROM batches b WHERE lag_ms IS NOT NULL
),
ranked AS (
  SELECT i.*, row_number() OVER (PARTITION BY farm, hour_ms ORDER BY lag_ms, last_index) AS place,
    count(*) OVER (PARTITION BY farm, hour_ms) AS batches,
    row_number() OVER (PARTITION BY farm, hour_ms ORDER BY last_index DESC) AS place_from_end
  FROM in_order i
)
SELECT farm, timestamp_millis(hour_ms) AS hour, max(batches) AS batches, CAST(sum(entries) AS BIGINT) AS entries,
  max(CASE WHEN 2 * place <= batches + 1 THEN lag_ms END) AS lag_median_ms,
  max(CASE WHEN place = 1 OR 100 * (place - 1) < 99 * batches THEN lag_ms END) AS lag_p99_ms,
  max(lag_ms) AS lag_max_ms, max(CASE WHEN place_from_end = 1 THEN lag_ms END) AS last_lag_ms
FROM ranked
GROUP BY farm, hour_ms
ORDER BY hour DESC, farm
