-- start: the arguments, and what the counter's keys hold. Everything is read and judged before the first
-- write, because a script is not rolled back.

-- A first contact with a key should cost little more than a bare count. So numbers are read by + 0 and written by
-- %d (at half the cost of %.0f), and the path of every call compares instead of calling min or max.

local floor, ceil, max, min, format = math.floor, math.ceil, math.max, math.min, string.format
local most = 9007199254740991                          -- the largest exact integer of a double
if format('%d', 4294967296) ~= '4294967296' then return redis.error_reply('BADSTATE the server has no integers of 64 bits') end

local args = #ARGV
local limiter, limit, length, want, need, least, how, life, seq = unpack(ARGV, 1, 9)
limit, length, want, need, least, how, life, seq = limit + 0, length + 0, want + 0, need + 0, least + 0, how + 0, life + 0, seq + 0
local exact, deaf, waited, leaving = how % 2 >= 1, how % 4 >= 2, how % 8 >= 4, how % 16 >= 8
local now
if how >= 32 then                                      -- tests give the time
  now, args = ARGV[args] + 0, args - 1
else
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
local late = ARGV[args] + 0
if late > 0 and now > late then return { 1, now } end
local wend, wgen, wmine, change, wused, widle, pace, run, begins, till = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
if args > 10 then
  wend, wgen, wmine, change, wused = ARGV[10] + 0, ARGV[11] + 0, ARGV[12] + 0, ARGV[13] + 0, ARGV[14] + 0
  widle, pace, run = ARGV[15] + 0, ARGV[16] + 0, ARGV[17] + 0
  if args > 18 then
    begins, till = ARGV[18] + 0, ARGV[19] + 0
    length = till - begins
    if now < begins * 1000 or now >= till * 1000 then return { 2, now } end
  end
end

local stop, used, own = redis.call('GET', KEYS[2]) or '0', redis.call('GET', KEYS[1]) or '0', { false, false }
stop, used = tonumber(stop), tonumber(used)
if not stop or not (stop >= 0 and stop < 9007199254740) then return redis.error_reply('BADSTATE the end of the window is not a time') end
if not used or used ~= floor(used) or used > most or used < -most then return redis.error_reply('BADSTATE the count is not an integer') end
stop, used = floor(stop * 1000 + 0.5), used > 0 and used or 0
local was, had = used, stop                            -- as the keys hold them

-- The ledger: a head, and a field of this limiter.
own = redis.call('HMGET', KEYS[3], 'head', limiter)
local head, field = own[1], own[2]
local hend, hgen, sum, claimable, clients, before, exhausted, idle, out, calls, told, at = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
local fend, fgen, flife, fseq, fmine, fgrant, left, spare, called = 0, 0, 0, 0, 0, 0, true, 0, false
local valid = true
local function ints(...)
  for i = 1, select('#', ...) do
    if not (select(i, ...) <= most) then valid = false end
  end
  return ...
end
if head then
  local a, b, c, d, e, f, g, more = string.match(head, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)(.*)$')
  if not a then
    valid = false
  else
    hend, hgen, sum, claimable, clients, before, exhausted = ints(a + 0, b + 0, c + 0, d + 0, e + 0, f + 0, g + 0)
    if more ~= '' then
      a, b, c, d, e = string.match(more, '^ (%d+) (%d+) (%d+) (%d+) (%d+)$')
      if a then idle, out, calls, told, at = ints(a + 0, b + 0, c + 0, d + 0, e + 0) else valid = false end
    end
  end
end
if field and limiter ~= '' then
  local away, a, b, c, d, e, f, plus, i = string.match(field, '^(~?)(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)(%+?)(%d*)$')
  if not a then
    valid = false
  else
    fend, fgen, flife, fseq, fmine, fgrant = ints(a + 0, b + 0, c + 0, d + 0, e + 0, f + 0)
    left, called, spare = away ~= '', plus ~= '' and i == '', i ~= '' and ints(i + 0) or 0
  end
end
if not valid then return redis.error_reply('BADSTATE the ledger holds something else than numbers') end
