-- read: what the hash holds, and the time of the ring.

local unit = length * 50                               -- of a bucket, us
local own = call('HMGET', KEYS[1], '0', '1', '2', '3', '4', 'head', 'idle', limiter)
local head, talk, field = own[6], own[7], limiter ~= '' and own[8]
local hgen, clients, used, promised, asked, before, last, off = 0, 0, 0, 0, 0, 0, now, 0
local idle, out, calls, told, at = 0, 0, 0, 0, 0
if head then
  hgen, clients, used, promised, asked, before, last, off = match(head, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  if not hgen then return redis.error_reply('BADSTATE the head of the ring is none') end
  hgen, clients, used, promised, asked, before, last, off = hgen + 0, clients + 0, used + 0, promised + 0, asked + 0, before + 0, last + 0, off + 0
  if talk then
    idle, out, calls, told, at = match(talk, '^%+(%d+) (%d+) (%d+) (%d+) (%d+)$')
    if not idle then return redis.error_reply('BADSTATE the head of the ring is none') end
    idle, out, calls, told, at = idle + 0, out + 0, calls + 0, told + 0, at + 0
  end
  if max(hgen, clients, used, promised, asked, before, last + off, idle, out, calls, told, at) > most then return redis.error_reply('BADSTATE the head of the ring is none') end
end
local raw, low = now, floor(last / unit) - 20          -- the first bucket that counts
now = max(now + off, last)
off, last = now - raw, now

local parsed, changed, bad = { }, { }, false           -- by groups of eight buckets. Counts stay text, because most do not change
local none = '0,0,0,0,0,0,0,0'
local function group(bucket)
  local g = (bucket - bucket % 8) / 8 % 5
  local is = parsed[g]
  if not is then
    is = { match(own[g + 1] or none, '^(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d+)$') }
    if not is[1] then is, bad = { 0, 0, 0, 0, 0, 0, 0, 0 }, true end
    parsed[g] = is
  end
  return is, bucket % 8 + 1, g
end
local function add(bucket, n)
  if bucket < low or bucket > low + 30 then return 0 end  -- what counts no more cannot change
  local is, i, g = group(bucket)
  local has = is[i] + 0
  if n < -has then n = -has elseif n > most - used then n = most - used end
  if n ~= 0 then is[i], used, changed[g] = format('%d', has + n), max(used + n, 0), true end
  return n
end
