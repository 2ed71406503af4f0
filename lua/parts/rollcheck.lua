-- rollcheck: read a rolling limit, charge nothing, write nothing. Runs on a replica too.
--
-- KEYS  1 {k}:60s:roll: see roll
-- ARGV  1 length  of a window, ms
--       2 limit   tokens per window
--       3 now     Unix us; left out = the server's clock
-- Reply { flags (0), now us (of the server), end ms (when nothing counts any more; 0 = nothing does), gen, tokens that count, off, us until the first of them count no more, if there are limit or more,
--         us for which the limit is still held }

