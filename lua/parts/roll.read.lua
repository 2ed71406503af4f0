-- read: what the hash holds, and the time of the ring.

local unit = length * 50                               -- of a bucket, us
local present = floor(now / unit)
local near = (present - present % 8) / 8 % 5           -- the field of its count
local own = call('HMGET', KEYS[1], 'head', 'idle', limiter, string.sub('01234', near + 1, near + 1), string.sub('12340', near + 1, near + 1))
local head, talk, field = own[1], own[2], limiter ~= '' and own[3]
local hgen, gen, clients, used, span, last, asked, before, promised, off, hold = '0', 0, 0, 0, 0, now, '0', '0', 0, 0, 0
local idle, out, calls, told, at = 0, 0, 0, 0, 0
if head then
  local rare
  hgen, clients, used, span, last, asked, before, rare = match(head, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)(.*)$')
  if not hgen then return redis.error_reply('BADSTATE the head of the ring is none') end
  clients, used, span, last = clients + 0, used + 0, span + 0, last + 0
  if rare ~= '' then
    promised, off, hold = match(rare, '^ (%d+) (%d+)!?(%d*)$')
    if not off then return redis.error_reply('BADSTATE the head of the ring is none') end
    promised, off, hold = promised + 0, off + 0, hold == '' and 0 or hold + 0
  end
  if talk then
    idle, out, calls, told, at = match(talk, '^%+(%d+) (%d+) (%d+) (%d+) (%d+)$')
    if not idle then return redis.error_reply('BADSTATE the ring has idle tokens that are none') end
    idle, out, calls, told, at = idle + 0, out + 0, calls + 0, told + 0, at + 0
    if idle > most or out + calls + told + at > most then return redis.error_reply('BADSTATE the ring has idle tokens that are none') end
  end
  gen = hgen + 0
  if gen > most or clients > most or used > most or promised > most or last + off > most or hold > most or span > 31 then return redis.error_reply('BADSTATE the head of the ring is none') end
end
local raw, low = now, floor(last / unit) - 20          -- the first bucket that counts
if last > now + off then now = last else now = now + off end
off, last = now - raw, now
if off > 0 then present = floor(now / unit) end

-- What functions share is in a table, because each local of which one knows costs much. It has the counts by fields, as text, since
-- most do not change, after whether one has changed.
local ring = { low = low, top = low + span - 1, used = used, near = near, text = own[4], next = own[5], shrunk = false, first = false, final = false }
local function group(bucket)
  local g = (bucket - bucket % 8) / 8 % 5
  local is = ring[g]
  if is then return is end
  local text = ring.text
  if g == (ring.near + 1) % 5 then
    text = ring.next
  elseif g ~= ring.near then
    ring.all = ring.all or redis.call('HMGET', KEYS[1], '0', '1', '2', '3', '4')
    text = ring.all[g + 1]
  end
  is = { false, string.match(text or '0,0,0,0,0,0,0,0', '^(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d+),(%d+)$') }
  if not is[2] then is, ring.bad = { false, '0', '0', '0', '0', '0', '0', '0', '0' }, true end
  ring[g] = is
  return is
end
local function add(bucket, n, done)
  if n == 0 or bucket < ring.low or bucket > ring.low + 30 then return 0 end  -- what counts no more cannot change
  local is, i = ring[(bucket - bucket % 8) / 8 % 5] or group(bucket), bucket % 8 + 2
  local has, used = is[i] + 0, ring.used
  if has > 9007199254740991 then ring.bad = true end
  if n < -has then n = -has elseif n > 9007199254740991 - used then n = 9007199254740991 - used end
  if n ~= 0 then
    is[1], is[i] = true, string.format('%d', has + n)
    ring.used = used + n < 0 and 0 or used + n
    if n < 0 then ring.shrunk = true elseif bucket > ring.top then ring.top = bucket end
    if done then                                       -- is to know it
      done[bucket] = (done[bucket] or 0) + n
      if not ring.first or bucket < ring.first then ring.first = bucket end
      if not ring.final or bucket > ring.final then ring.final = bucket end
    end
  end
  return n
end
