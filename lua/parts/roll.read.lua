-- read: what the hash holds, and the time of the ring.

local unit = length * 50                               -- of a bucket, us
local own = call('HMGET', KEYS[1], 'head', limiter)
local head, field = own[1], limiter ~= '' and own[2]
local hgen, clients, used, promised, asked, before, last, off, low = 0, 0, 0, 0, 0, 0, now, 0, floor(now / unit) - 20
local counts, idle, out, calls, told, at = { }, 0, 0, 0, 0, 0
if head then
  local rest, talk
  hgen, clients, used, promised, asked, before, last, off, low, rest, talk = match(head, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)([ %d]*)(%+?[ %d]*)$')
  if not hgen then return redis.error_reply('BADSTATE the head of the ring is none') end
  hgen, clients, used, promised, asked, before, last, off, low = hgen + 0, clients + 0, used + 0, promised + 0, asked + 0, before + 0, last + 0, off + 0, low + 0
  for n in string.gmatch(rest, '%d+') do counts[#counts + 1] = n end  -- most stay text, because most do not change
  if talk ~= '' then
    idle, out, calls, told, at = match(talk, '^%+(%d+) (%d+) (%d+) (%d+) (%d+)$')
    if not idle then return redis.error_reply('BADSTATE the head of the ring is none') end
    idle, out, calls, told, at = idle + 0, out + 0, calls + 0, told + 0, at + 0
  end
  if hgen > most or used > most or low > most or last + off > most or #counts > 31 then return redis.error_reply('BADSTATE the head of the ring is none') end
end
local raw = now
now = max(now + off, last)
off, last = now - raw, now
