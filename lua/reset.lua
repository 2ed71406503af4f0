-- reset: open a fresh window in place of the open one, if there is one.
--
-- KEYS  1 {k}      tokens charged in this window, integer
--       2 {k}:exp  the end of the window, Unix seconds; also its id. It expires a length later than the others
--       3 {k}:own  the ledger: see sync
-- ARGV  1 limit      tokens per window
--       2 length     of a window, ms
--       3 end        of a window that opens now, by a calendar, Unix ms; 0 = a length from now
--       4 next       end, of the window after that one; 0 = a length later
--       5 open       length of the window that the caller takes for open, ms, if the limit has another since; else 0
--       6 not after  Unix us; later than this do nothing; 0 = whenever
--       7 now        Unix us; empty = the server's clock
-- Reply { flags (1 late, 16 conflict: nothing was done because of the length, 32 the user may not PUBLISH), now us, window ms (0 = none open), remaining,
--         length of the window ms if it is not the limit's, else 0 }
--
-- Invariant: the fresh window has another name than the old one. Its ledger is empty and marks all other windows as
-- void, so nothing of the old one is charged to it. If both ends are close together, the new one is at least
-- a millisecond earlier, so names differ from those that earlier resets have closed, unless ends go back by more than
-- the slack.
-- Not idempotent: a second call opens another window.

local function fail(what) return redis.error_reply('BADSTATE ' .. what) end

local limit, length, till, after, open = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local now = tonumber(ARGV[7])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
local late = tonumber(ARGV[6])
if late > 0 and now > late then return { 1, now, 0, 0, 0 } end

local before, used = redis.call('GET', KEYS[2]), redis.call('GET', KEYS[1])
if not (before and used) then return { 0, now, 0, limit, 0 } end
before, used = tonumber(before), tonumber(used)
if not before or not (before >= 0 and before < 9007199254740) then return fail('the end of the window is not a time') end
if not used or used ~= math.floor(used) or math.abs(used) > 9007199254740991 then return fail('the count is not an integer') end
before, used = math.floor(before * 1000 + 0.5), math.max(used, 0)
if before * 1000 < now then return { 0, now, 0, limit, 0 } end
local slack = math.min(length / 10, 1000)
local opened = redis.call('PEXPIRETIME', KEYS[2]) - before - 1000
local period = math.max(after - till, 0)               -- the length of the calendar's next period
if opened > 0 and opened <= 31622401000 and math.abs(opened - length) > slack
  and math.abs(opened - open) > math.min(open / 10, 1000) and math.abs(opened - period) > math.min(period / 10, 1000) then
  return { 16, now, before, math.max(limit - used, 0), opened }
end

-- The end of a window that opens now: see take.
local stop, last = till, math.ceil(now / 1000) + length
opened = length
if till * 1000 <= now and after * 1000 > now then      -- the calendar's next period has begun
  stop, opened = after, period
elseif till == 0 then
  stop = length % 1000 == 0 and math.floor(now / 1000000) * 1000 + length or last
elseif till * 1000 <= now then
  stop = till + (math.floor((now - till * 1000) / (length * 1000)) + 1) * length
else
  stop = till - math.max(math.ceil((till - last - slack) / length), 0) * length
end
if stop ~= after and stop * 1000 - now <= math.floor(slack) * 1000 and math.abs(before - after) <= math.floor(slack) then
  stop, opened = before, period                        -- the calendar's next period was opened a moment early, and stop names one that is void
end
if math.abs(stop - before) < math.max(math.floor(slack), 1) then stop = math.min(stop, before - 1) end
if stop * 1000 < now then                              -- in the last millisecond: the calendar's next end
  opened = period > 0 and period or length
  stop = stop + opened
end

-- Commands that the user may have no right to come first: if one is refused, the old window stays open, and its
-- ledger counts as lost. A new era voids the old ledger's fields: see sync.
local gone = string.format('%.0f', stop + 1000)
redis.call('HSET', KEYS[3], 'w', string.format('%.0f 0 0 0 0 0 1', stop))
redis.call('HINCRBY', KEYS[3], 'era', 1)
redis.call('PEXPIREAT', KEYS[3], gone)
redis.call('SET', KEYS[2], stop % 1000 == 0 and stop / 1000 or string.format('%.3f', stop / 1000), 'PXAT', stop + 1000 + opened)
redis.call('SET', KEYS[1], 0, 'PXAT', gone)
local heard = redis.pcall('PUBLISH', string.match(KEYS[1], '^[^{]*') .. 'reservoir:', string.format('4 %.0f 0 %s', before, KEYS[1]))  -- to all: see sync
return { type(heard) == 'table' and 32 or 0, now, stop, limit, opened ~= length and opened or 0 }
