-- start: the arguments, and what the counter's keys hold. Everything is read and judged before the first
-- write, because a script is not rolled back.

-- A first contact with a key should cost little more than a bare count. So numbers are read by + 0 and written by
-- %d (at half the cost of %.0f), and the path of every call makes no closure and compares instead of calling min or max.

local floor, ceil, max, min, format, match = math.floor, math.ceil, math.max, math.min, string.format, string.match
local most = 9007199254740991                          -- the largest exact integer of a double
if format('%d', 4294967296) ~= '4294967296' then return redis.error_reply('BADSTATE the server has no integers of 64 bits') end

local args = #ARGV
local limiter, limit, length, want, need, least, how, life, seq = unpack(ARGV, 1, 9)
limit, length, want, need, how = limit + 0, length + 0, want + 0, need + 0, how + 0
local now
if how >= 32 then                                      -- tests give the time
  now, args = ARGV[args] + 0, args - 1
else
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
if ARGV[args] ~= '0' and now > ARGV[args] + 0 then return { 1, now } end
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

local stop, used
if KEYS[2] then
  local keys = redis.call('MGET', KEYS[2], KEYS[1])
  stop, used = keys[1], keys[2]
else                                                   -- where the slot moves to, a command may have one new key at most
  KEYS[2], KEYS[3] = KEYS[1] .. ':exp', KEYS[1] .. ':own'
  stop, used = redis.call('GET', KEYS[2]), redis.call('GET', KEYS[1])
end
local had, was = 0, 0                                  -- as the keys have them
if stop then
  stop = tonumber(stop)
  if not stop or not (stop >= 0 and stop < 9007199254740) then return redis.error_reply('BADSTATE the end of the window is not a time') end
  had = floor(stop * 1000 + 0.5)
end
if used then
  used = tonumber(used)
  if not used or used ~= floor(used) or used > most or used < -most then return redis.error_reply('BADSTATE the count is not an integer') end
  if used > 0 then was = used end
end
stop, used = had, was

-- The ledger: a head, and a field of this limiter.
local own = KEYS[3] and redis.call('HMGET', KEYS[3], 'head', limiter) or { }
local head, field = own[1], limiter ~= '' and own[2]
local hend, hgen, sum, clients, claimable, before, exhausted, idle, out, calls, told, at = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
if head then
  local a, b, c, d, more = match(head, '^(%d+)%.?(%d*) (%d+) (%d+)(.*)$')
  if not a then return redis.error_reply('BADSTATE the head of the ledger is none') end
  hend, sum, clients = a + 0, c + 0, d + 0
  if b ~= '' then hgen = b + 0 end
  if more ~= '' and limiter ~= '' then
    local rare, talk = match(more, '^([ %d]*)(%+?[ %d]*)$')
    a, b, c = match(rare or '', '^ (%d+) (%d+) (%d+)$')
    if a then
      claimable, before, exhausted = a + 0, b + 0, c + 0
    elseif rare ~= '' then
      return redis.error_reply('BADSTATE the head of the ledger is none')
    end
    if talk ~= '' then
      local e, f
      a, b, c, e, f = match(talk, '^%+(%d+) (%d+) (%d+) (%d+) (%d+)$')
      if not a then return redis.error_reply('BADSTATE the head of the ledger is none') end
      idle, out, calls, told, at = a + 0, b + 0, c + 0, e + 0, f + 0
    end
  end
  if hend > most or hgen > most or sum > most or claimable > most or idle > most
    or clients + before + exhausted + out + calls + told + at > most then return redis.error_reply('BADSTATE the head of the ledger is none') end
end
local of, fend, fgen, flife, fmine, left, spare, called = false, 0, 0, 0, 0, true, 0, false
if field then
  local away, a, b, c, d, e, plus, i = match(field, '^(~?)(%d+)%.?(%d*) (%d+) (%d+) (%d+)(%+?)(%d*)$')
  if not a then return redis.error_reply('BADSTATE the ledger has a field that is no account') end
  fend, flife, fmine = a + 0, c + 0, e + 0
  if life + 0 < flife or life + 0 == flife and seq + 0 <= d + 0 then return { 4, now } end  -- it, or a later one, was here
  if b ~= '' then fgen = b + 0 end
  left = away ~= ''
  if i ~= '' then spare = i + 0 else called = plus ~= '' end
  if fmine > most or spare > most then return redis.error_reply('BADSTATE the ledger has a field that is no account') end
end
