-- the farms in the tables, and the last entry read of each
--
--     name               the name in the file of several farms; NULL without that file
--     behind_ms          newest log time of all farms - newest log time of this farm
--     entries            the number read; NULL if an earlier version began the table
SELECT farm, name, first_index, c.index AS last_index, log_time AS last_log_time, entries,
  max(unix_millis(log_time)) OVER () - unix_millis(log_time) AS behind_ms
FROM current_farm c
ORDER BY log_time NULLS FIRST, farm
