-- entries read, gaps, repetitions and missing rows, per day
--
--     complete        true if the five numbers after it are 0
--     unread          entries up to the last entry of this day that no batch read. In a topic, also entries that are
--                     not for its readers. Entries before the first one read do not count
--     repeated        entries that were read in two batches
--     gone            entries that were lost and that the farm did not have any more (`garlicfarm pipeline repair`)
--     missing_rows    rows that batches wrote into base tables and that the tables lack now
--     surplus_rows    rows in base tables that no batch counted
--     quarantined     entries that could not be decoded: rows of quarantine
--
-- The batches counted the rows that they wrote (table ranges). missing_rows and surplus_rows are NULL up to the last
-- day with rows that an earlier version did not count, or that --keep-days dropped. A gap counts on the day of the
-- batch after it. Entries without log time are in the row without a day.
WITH batches AS (
  SELECT farm, kind, batch_id, min(day) AS day, min(coalesce(first_index, 0)) AS first_index,
    max(last_index) AS last_index, sum(row_count) AS entries
  FROM ranges WHERE name = 'log' AND kind <> 'dropped'
  GROUP BY farm, kind, batch_id
),
in_order AS (
  SELECT farm, kind, day, first_index, last_index, entries,
    max(last_index) OVER (
      PARTITION BY farm ORDER BY first_index, last_index ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS before
  FROM batches
),
written AS (
  SELECT farm, day, name, row_count FROM ranges WHERE kind = 'read' AND name <> 'log'
  UNION ALL SELECT farm, day, 'reports', -1 FROM reports
  UNION ALL SELECT farm, day, 'destination_reports', -1 FROM destination_reports
  UNION ALL SELECT farm, day, 'clocks', -1 FROM clocks
  UNION ALL SELECT farm, day, 'publications', -1 FROM publications
  UNION ALL SELECT farm, day, 'configurations', -1 FROM configurations
  UNION ALL SELECT farm, day, 'factors', -1 FROM factors
  UNION ALL SELECT farm, day, 'operator_actions', -1 FROM operator_actions
  UNION ALL SELECT farm, day, 'quarantine', -1 FROM quarantine
),
differences AS (
  SELECT farm, day, name, sum(row_count) AS missing FROM written GROUP BY farm, day, name
),
figures AS (
  SELECT farm, day, first_index, last_index, row_count AS entries, 0 AS unread, 0 AS repeated, 0 AS gone, 0 AS missing,
    0 AS surplus, 0 AS quarantined
  FROM ranges WHERE name = 'log' AND kind = 'read'
  UNION ALL
  SELECT farm, day, NULL, NULL, 0, 0, 0, row_count, 0, 0, 0 FROM ranges WHERE kind = 'gone'
  UNION ALL
  SELECT farm, day, NULL, NULL, 0,
    greatest(coalesce(first_index - before - 1, 0), 0) + last_index - first_index + 1 - entries,
    greatest(coalesce(before - first_index + 1, 0), 0), 0, 0, 0, 0
  FROM in_order WHERE kind = 'read'
  UNION ALL
  SELECT farm, day, NULL, NULL, 0, 0, 0, 0, greatest(missing, 0), greatest(-missing, 0), 0 FROM differences
  UNION ALL
  SELECT farm, day, NULL, NULL, 0, 0, 0, 0, 0, 0, 1 FROM quarantine
),
limits AS (
  SELECT farm, max(day) AS through FROM ranges WHERE kind IN ('uncounted', 'dropped') GROUP BY farm
),
compared AS (
  SELECT f.farm, f.day, min(f.first_index) AS first_index, max(f.last_index) AS last_index,
    CAST(sum(f.entries) AS BIGINT) AS entries, CAST(sum(f.unread) AS BIGINT) AS unread,
    CAST(sum(f.repeated) AS BIGINT) AS repeated, CAST(sum(f.gone) AS BIGINT) AS gone,
    CASE WHEN l.farm IS NULL OR f.day > l.through THEN CAST(sum(f.missing) AS BIGINT) END AS missing_rows,
    CASE WHEN l.farm IS NULL OR f.day > l.through THEN CAST(sum(f.surplus) AS BIGINT) END AS surplus_rows,
    CAST(sum(f.quarantined) AS BIGINT) AS quarantined
  FROM figures f LEFT JOIN limits l ON l.farm = f.farm
  GROUP BY f.farm, f.day, l.farm, l.through
)
SELECT farm, day, first_index, last_index, entries,
  unread + repeated + gone + coalesce(missing_rows, 0) + coalesce(surplus_rows, 0) = 0 AS complete,
  unread, repeated, gone, missing_rows, surplus_rows, quarantined
FROM compared
ORDER BY complete, day DESC NULLS LAST, farm
