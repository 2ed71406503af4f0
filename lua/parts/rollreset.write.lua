-- write: a head without counts. The accounts stay: their generation is over, but late copies of their statements must do nothing.

local next = max(gen + 1, floor(raw / 1000))
if ring.bad then return redis.error_reply('BADSTATE the ring has counts that are none') end
call('HSET', KEYS[1], 'head', format(off > 0 and '%d 0 0 0 %d 0 0 0 %d' or '%d 0 0 0 %d 0 0', next, last, off))
call('HDEL', KEYS[1], '0', '1', '2', '3', '4', 'idle')
call('PEXPIRE', KEYS[1], 2 * length + 1000)
local heard = redis.pcall('PUBLISH', match(KEYS[1], '^[^{]*') .. 'reservoir:', format('4 %d %d 0 %s', stop, gen, KEYS[1]))
return { type(heard) == 'table' and 32 or 0, raw, stop, gen, next }
