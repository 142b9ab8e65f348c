-- What names the submission of `request`: CLIENT-BORN-SEQUENCE, the sequence from 1 on. A request that names none is no
-- repetition of another, since the farm applies each.
CASE
  WHEN regexp_like(request, '(?s)^.{1,64}-[0-9]{1,19}-[0-9]{1,19}$')
    AND NOT regexp_like(request, '-0+$') AND NOT regexp_like(request, '[^0-9]$')
    THEN request
END
