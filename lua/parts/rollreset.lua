-- rollreset: empty a rolling limit, and void what clients hold of it. A hold ends, too. Only the ring's clock goes on.
--
-- KEYS  1 {k}:60s:roll: see roll
-- ARGV  1 length     of a window, ms
--       2 not after  Unix us; later than this do nothing; 0 = whenever
--       3 now        Unix us; left out = the server's clock
-- Reply { flags (1 late, 32 the user may not PUBLISH), now us (of the server), end ms of what counted (0 = nothing did), its gen, the next gen }
-- Message to all, to the channel prefix .. "reservoir:": as of a reset, "4 end gen 0 {k}:60s:roll"

