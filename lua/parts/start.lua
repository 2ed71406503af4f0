-- start: the arguments, and what the counter's keys hold. Everything is read and judged before the first
-- write, because a script is not rolled back.

-- A first contact with a key should cost little more than a bare count. So numbers are read by + 0 and written by
-- %d (at half the cost of %.0f), names of windows are compared as text, and the path of every call makes no closure and
-- calls no floor, min or max. A rest of division by 1 is a number's fraction.

local call, format, match = redis.call, string.format, string.match
local most = 9007199254740991                          -- the largest exact integer of a double

local args = #ARGV
local limiter, limit, length, need, how = unpack(ARGV, 1, 5)
limit, length, need, how = limit + 0, length + 0, need + 0, how + 0
local now
if how % 128 >= 64 then                                -- tests give the time
  now, args = ARGV[args] + 0, args - 1
else
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
if ARGV[args] ~= '0' and now > ARGV[args] + 0 then return { 1, now } end
local extend = 0
if how >= 128 then extend, args = ARGV[args - 1] + 0, args - 1 end
local want, least, life, seq, window, wmine, change, wused, widle, pace, run, begins, till = 0, 0, '', '', '0', 0, 0, 0, 0, 0, 0, 0, 0
if args > 6 then
  want, least, life, seq = unpack(ARGV, 6, 9)
  want, least = want + 0, least + 0
end
if args > 10 then
  window, wmine, change, wused, widle = unpack(ARGV, 10, 14)
  wmine, change, wused, widle = wmine + 0, change + 0, wused + 0, widle + 0
end
if args > 15 then pace, run = ARGV[15] + 0, ARGV[16] + 0 end
if args > 17 then
  begins, till = ARGV[17] + 0, ARGV[18] + 0
  length = till - begins
  if now < begins * 1000 or now >= till * 1000 then return { 2, now } end
end

local stop, count
if KEYS[2] then
  local keys = call('MGET', KEYS[2], KEYS[1])
  stop, count = keys[1], keys[2]
else                                                   -- where the slot moves to, a command may have one new key at most
  KEYS[2], KEYS[3] = KEYS[1] .. ':exp', KEYS[1] .. ':own'
  stop, count = call('GET', KEYS[2]), call('GET', KEYS[1])
end
local had, used = 0, 0                                 -- the end as the key has it, Unix ms; the count, or 0
if stop then
  stop = tonumber(stop)
  if not stop or not (stop >= 0 and stop < 9007199254740) then return redis.error_reply('BADSTATE the end of the window is not a time') end
  had = stop * 1000 + 0.5
  had = had - had % 1
end
stop = had
if count then
  count = tonumber(count)
  if not count or count % 1 ~= 0 or count > most or count < -most then return redis.error_reply('BADSTATE the count is not an integer') end
  if count > 0 then used = count end
end
local was = used

-- The ledger: a head, and a field of this limiter.
local head, field
if limiter ~= '' then
  local own = call('HMGET', KEYS[3], 'head', limiter)
  head, field = own[1], own[2]
elseif KEYS[3] then
  head = call('HGET', KEYS[3], 'head')
end
local name, hend, hgen, sum, clients, claimable, before, exhausted, idle, out, calls, told, at, hold = '0', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
if head then
  local a, b, c, d, e, more
  name, a, b, c, d, more = match(head, '^((%d+)%.?(%d*)) (%d+) (%d+)(.*)$')
  if not a then return redis.error_reply('BADSTATE the head of the ledger is none') end
  hend, sum, clients = a + 0, c + 0, d + 0
  if b ~= '' then hgen = b + 0 end
  if more ~= '' then
    a, b = match(more, '^!(%d+)(.*)$')
    if a then hold, more = a + 0, b end
  end
  if more ~= '' and (limiter ~= '' or extend > 0) then
    local rare, talk = match(more, '^([ %d]*)(%+?[ %d]*)$')
    a, b, c = match(rare or '', '^ (%d+) (%d+) (%d+)$')
    if a then
      claimable, before, exhausted = a + 0, b + 0, c + 0
    elseif rare ~= '' then
      return redis.error_reply('BADSTATE the head of the ledger is none')
    end
    if talk ~= '' then
      a, b, c, d, e = match(talk, '^%+(%d+) (%d+) (%d+) (%d+) (%d+)$')
      if not a then return redis.error_reply('BADSTATE the head of the ledger is none') end
      idle, out, calls, told, at = a + 0, b + 0, c + 0, d + 0, e + 0
    end
    if claimable > most or idle > most or before + exhausted + out + calls + told + at > most then return redis.error_reply('BADSTATE the head of the ledger is none') end
  end
  if hend > most or hgen > most or sum > most or clients > most or hold > most then return redis.error_reply('BADSTATE the head of the ledger is none') end
end
local fname, flife, fmine, left, spare, called = '', '', 0, true, 0, false
if field then
  local away, fseq, own, more
  away, fname, flife, fseq, own, more = match(field, '^(~?)(%d+%.?%d*) (%d+) (%d+) (%d+)(%+?%d*)$')
  if not away then return redis.error_reply('BADSTATE the ledger has a field that is no account') end
  if flife == life and seq + 0 <= fseq + 0 or flife ~= life and life + 0 < flife + 0 then return { 4, now } end  -- it, or a later one, was here
  fmine, left = own + 0, away ~= ''
  if more == '+' then called = true elseif more ~= '' then spare = more + 0 end
  if fmine > most or spare > most then return redis.error_reply('BADSTATE the ledger has a field that is no account') end
end
