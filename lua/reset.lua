-- reset: end the open window, if there is one, and void its name in any case, so that nothing of it is charged again. A hold
-- ends, too.
--
-- KEYS  1 {k}:60s, 2 {k}:60s:exp, 3 {k}:60s:own: see sync
-- ARGV  1 length     of a window, ms
--       2 not after  Unix us; later than this do nothing; 0 = whenever
--       3 now        Unix us; left out = the server's clock
-- Reply { flags (1 late, 32 the user may not PUBLISH), now us, end and gen of the window that is void now,
--         the generation of those that open from now on }
-- Message, to all: "4 end gen 0 {k}:60s"
--
-- Invariant: the generation grows, and is not less than the clock's milliseconds, so it is new even if an older one was lost.
-- Not idempotent: a second call voids what has opened since. Keys are written, not deleted, because a slot that moves takes
-- no key back.

if not KEYS[2] then KEYS[2], KEYS[3] = KEYS[1] .. ':exp', KEYS[1] .. ':own' end
local length, late, now = ARGV[1] + 0, ARGV[2] + 0, tonumber(ARGV[3])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
if late > 0 and now > late then return { 1, now, 0, 0, 0 } end

local stop = tonumber(redis.call('GET', KEYS[2]) or '0')
local head = redis.call('HMGET', KEYS[3], 'head')[1] or '0 0 0'
local hend, gen, clients, before = string.match(head, '^(%d+)%.?(%d*) %d+ (%d+)!?%d* ?%d* ?(%d*)')
if not stop or not (stop >= 0 and stop < 9007199254740) then return redis.error_reply('BADSTATE the end of the window is not a time') end
if gen == '' then gen = 0 end
if not hend or hend + 0 > 9007199254740991 or gen + 0 > 9007199254740990 or clients + 0 > 9007199254740991 then
  return redis.error_reply('BADSTATE the head of the ledger is none')
end
if before == '' then before = 0 end
clients = math.max(clients + 0, before + 0) -- most may not have come to a window that has just opened
stop = math.floor(stop * 1000 + 0.5)
if stop == 0 then stop = hend + 0 end
if stop * 1000 <= now then stop = 0 end

local next = math.max(gen + 1, math.floor(now / 1000))
local gone = string.format('%.0f', math.floor(now / 1000) + length + 1000)
redis.call('HSET', KEYS[3], 'head', string.format('0.%.0f 0 %.0f', next, clients))
redis.call('PEXPIREAT', KEYS[3], gone)
redis.call('SET', KEYS[2], 0, 'PXAT', gone)
redis.call('SET', KEYS[1], 0, 'PXAT', gone)
local text = string.format('4 %.0f %s 0 %s', stop, gen, KEYS[1])
local heard = redis.pcall('PUBLISH', string.match(KEYS[1], '^[^{]*') .. 'reservoir:', text)
return { type(heard) == 'table' and 32 or 0, now, stop, gen + 0, next }
