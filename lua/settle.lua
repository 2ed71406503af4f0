-- settle: charge more than take has charged, or give a part of that back.
--
-- KEYS  1 {k}      tokens charged in this window, integer
--       2 {k}:exp  the end of the window, Unix seconds; also its id
--       3 {k}:own  the ledger: see sync
-- ARGV  1 tokens     to charge, even above the limit; negative = to give back
--       2 limit      tokens per window
--       3 window     that take has charged, Unix ms
--       4 not after  Unix us; later than this do nothing; 0 = whenever
--       5 now        Unix us; empty = the server's clock
-- Reply { flags (1 late, 8 done: the window is open), now us, tokens charged above the limit }
--
-- Invariant: charged never falls below zero, and no other window is touched.
-- Not idempotent: never send it a second time once it may have run.

local function fail(what) return redis.error_reply('BADSTATE ' .. what) end
local most = 9007199254740991                          -- the largest exact integer of a double

local tokens, limit, window = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local now = tonumber(ARGV[5])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
local late = tonumber(ARGV[4])
if late > 0 and now > late then return { 1, now, 0 } end

local stop, used = redis.call('GET', KEYS[2]), redis.call('GET', KEYS[1])
if not (stop and used) then return { 0, now, 0 } end
stop, used = tonumber(stop), tonumber(used)
if not stop or not (stop >= 0 and stop < 9007199254740) then return fail('the end of the window is not a time') end
if not used or used ~= math.floor(used) or math.abs(used) > most then return fail('the count is not an integer') end
if math.floor(stop * 1000 + 0.5) ~= window or window * 1000 < now then return { 0, now, 0 } end

-- Unattributed tokens, which the ledger's clients may claim, may be the ones that are given back.
local header
if tokens < 0 then
  local w, counts, unattributed, rest = string.match(redis.call('HMGET', KEYS[3], 'w')[1] or '', '^(%d+)( %d+ %d+ %d+) (%d+)( .*)$')
  if tonumber(w) == window and unattributed + 0 > 0 then
    header = w .. counts .. string.format(' %.0f', math.max(unattributed + tokens, 0)) .. rest
  end
end
if header then redis.call('HSET', KEYS[3], 'w', header) end
used = math.max(math.min(math.max(used, 0) + tokens, most), 0)
redis.call('SET', KEYS[1], string.format('%.0f', used), 'KEEPTTL')
return { 8, now, math.max(used - limit, 0) }
