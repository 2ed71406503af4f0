-- check: read a counter, charge nothing, write nothing. Runs on a replica too. A replica may
-- still hold windows that are over, so the stored end decides whether one is open.
--
-- KEYS  1 {k}:60s, 2 {k}:60s:exp, 3 {k}:60s:own: see sync
-- ARGV  1 now  Unix us; left out = the server's clock
-- Reply { flags (0), now us, end and gen of the open window (an end of 0 = none is open), tokens charged in it,
--         us for which the limit is still held }
--
-- Invariant: no write. If the count or the end is lost, the ledger tells it, as in sync.

if not KEYS[2] then KEYS[2], KEYS[3] = KEYS[1] .. ':exp', KEYS[1] .. ':own' end
local now = tonumber(ARGV[1])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
local stop, used = tonumber(redis.call('GET', KEYS[2]) or '0'), tonumber(redis.call('GET', KEYS[1]) or '0')
local head = KEYS[3] and redis.call('HMGET', KEYS[3], 'head')[1] or '0 0 0'
local hend, gen, sum, hold = string.match(head, '^(%d+)%.?(%d*) (%d+) %d+!?(%d*)')
if not stop or not (stop >= 0 and stop < 9007199254740) then return redis.error_reply('BADSTATE the end of the window is not a time') end
if not used or used ~= math.floor(used) or math.abs(used) > 9007199254740991 then return redis.error_reply('BADSTATE the count is not an integer') end
hold = tonumber(hold) or 0
stop, used, hend, gen = math.floor(stop * 1000 + 0.5), math.max(used, 0), (hend or 0) + 0, tonumber(gen) or 0
if not sum or hend > 9007199254740991 or gen > 9007199254740991 or hold > 9007199254740991 or sum + 0 > 9007199254740991 then
  return redis.error_reply('BADSTATE the head of the ledger is none')
end
if hend * 1000 > now and (stop == 0 or stop == hend) then stop, used = hend, math.max(used, sum + 0) end
if stop * 1000 <= now then stop, used = 0, 0 end
return { 0, now, stop, gen, used, math.max(hold * 1000 - now, 0) }
