-- What reports say about destinations, with a log time. `repeated`: a submission (`submission.sql`) that came again
-- within an hour.
WITH named AS (
  SELECT farm, index, log_time, server_id, destination, healthy, uptime_ms, configured_tunnels, current_tunnels,
    configured_bandwidth_bytes_per_s, bandwidth_bytes_per_s, connections,
    $submission AS submission
  FROM destination_reports
  WHERE log_time IS NOT NULL
),
in_order AS (
  SELECT n.*,
    lag(unix_millis(log_time)) OVER (
      PARTITION BY farm, destination, coalesce(submission, CAST(index AS STRING)) ORDER BY index
    ) AS copy_ms
  FROM named n
)
SELECT i.*,
  timestamp_millis(unix_millis(log_time) - unix_millis(log_time) % $window_ms) AS window_start,
  coalesce(submission IS NOT NULL AND unix_millis(log_time) - copy_ms <= 3600000, FALSE) AS repeated
FROM in_order i
