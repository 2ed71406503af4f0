-- take: charge exactly n tokens, or none.
--
-- KEYS  1 {k}      tokens charged in this window, integer
--       2 {k}:exp  the end of the window, Unix seconds; also its id. It expires a length later than the others
--       3 {k}:own  the ledger of sync.lua, read if the answer is no; may be left out
-- ARGV  1 n          tokens, 1 to limit
--       2 limit      tokens per window
--       3 length     of a window, ms
--       4 end        of a window that opens now, by a calendar, Unix ms; 0 = a length from now
--       5 next       end, of the window after that one; 0 = a length later
--       6 open       length of the window that the caller takes for open, ms, if the limit has another since; else 0
--       7 not after  Unix us; later than this do nothing; 0 = whenever
--       8 now        Unix us; empty = the server's clock
-- Reply { flags (1 late, 8 allowed, 16 conflict: nothing was done because of the length; if the answer is no: 64 tokens
--         lie idle in clients, 128 clients were called to return theirs and have not answered), now us, window ms, remaining,
--         length of the open window ms if it is not the limit's, else 0 }
--
-- Invariant: charged grows by n and stays <= limit, or nothing is written.
-- Not idempotent: never send it a second time once it may have run.

local function fail(what) return redis.error_reply('BADSTATE ' .. what) end

local n, limit, length = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local now = tonumber(ARGV[8])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
local late = tonumber(ARGV[7])
if late > 0 and now > late then return { 1, now, 0, 0, 0 } end

-- The end of a window of that length that opens now. If the length is in whole seconds, so is the end.
local function opening(length, till)
  local last = math.ceil(now / 1000) + length
  if till > 0 and till * 1000 <= now then              -- over by our clock: a later end of the calendar's
    return till + (math.floor((now - till * 1000) / (length * 1000)) + 1) * length
  elseif till > 0 then                                 -- or later than possible: an earlier end
    return till - math.max(math.ceil((till - last - math.min(length / 10, 1000)) / length), 0) * length
  elseif length % 1000 == 0 then
    return math.floor(now / 1000000) * 1000 + length
  end
  return last
end

local stop, used = redis.call('GET', KEYS[2]), redis.call('GET', KEYS[1])
local fresh, moved, opened, lost = true, false, length, 0
if stop and used then
  stop, used = tonumber(stop), tonumber(used)
  if not stop or not (stop >= 0 and stop < 9007199254740) then return fail('the end of the window is not a time') end
  if not used or used ~= math.floor(used) or math.abs(used) > 9007199254740991 then return fail('the count is not an integer') end
  stop, used = math.floor(stop * 1000 + 0.5), math.max(used, 0)
  fresh = stop * 1000 < now
elseif stop then                                       -- the count is lost
  lost = math.floor((tonumber(stop) or 0) * 1000 + 0.5)
elseif used then                                       -- the end is lost, but the count expires a second later
  lost = redis.call('PEXPIRETIME', KEYS[1]) - 1000
end
local till, after, open = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local period = math.max(after - till, 0)               -- the length of the calendar's next period
local conflict = false
if fresh then                                          -- never opened, over, or half of it lost
  local before = used and stop
  stop, used = opening(length, till), 0
  if till * 1000 <= now and after * 1000 > now then stop, opened = after, period end  -- the calendar's next period has begun
  if before and stop > before and stop - before < math.floor(math.min(opened / 10, 1000)) then  -- the name of a window that was reset: use the next end
    opened = period > 0 and period or length
    stop = stop + opened
  end
  if lost * 1000 >= now then stop = math.min(stop, lost) - 1 end  -- or a ledger that is left would count as this window's
else
  opened = redis.call('PEXPIRETIME', KEYS[2]) - stop - 1000
  local slack
  if opened <= 0 or opened > 31622401000 then          -- another program opened it: the length is unknown
    opened, slack = length, 31622400000 - length
  elseif math.abs(opened - length) <= math.min(length / 10, 1000) then  -- the move of a slot has changed the time to live
    opened = length
  elseif math.abs(opened - open) <= math.min(open / 10, 1000) then
    opened = open
  elseif math.abs(opened - period) <= math.min(period / 10, 1000) then
    opened = period
  else
    conflict = true
  end
  slack = slack or math.min(opened / 10, 1000)
  if stop > math.ceil(now / 1000) + opened + slack then  -- our clock stepped back: starve no longer than a window
    stop, moved = opening(opened, opened == length and till or 0), true
  end
end

local other = opened ~= length and opened or 0
if conflict then return { 16, now, stop, math.max(limit - used, 0), other } end
if used + n > limit then
  local flags, header = 0, KEYS[3] and not moved and redis.call('HMGET', KEYS[3], 'w')[1] or ''
  local of, idle, out, calls, at = string.match(header, '^(%d+)[^+]*%+(%d+) ?(%d*) ?(%d*) ?%d* ?(%d*)')
  if tonumber(of) == stop then
    if tonumber(idle) > 0 then flags = 64 end
    if (tonumber(out) or 0) > 0 and (tonumber(calls) <= 4 or math.floor(now / 1000) - tonumber(at) < math.min(math.floor(opened / 20), 100)) then
      flags = flags + 128
    end
  end
  return { flags, now, stop, math.max(limit - used, 0), other }
end
used = used + n
if fresh or moved then
  redis.call('SET', KEYS[2], stop % 1000 == 0 and stop / 1000 or string.format('%.3f', stop / 1000), 'PXAT', stop + 1000 + opened)
  redis.call('SET', KEYS[1], used, 'PXAT', stop + 1000)
else
  redis.call('SET', KEYS[1], used, 'KEEPTTL')
end
return { 8, now, stop, limit - used, other }
