-- refund: give tokens back that take charged.
--
-- KEYS  1 {k}      tokens charged in this window, integer
--       2 {k}:exp  the end of the window, Unix seconds; also its id
--       3 {k}:own  the ledger: see sync
-- ARGV  1 client     name of its field
--       2 total      tokens that it has given back by refund in that window, this time included
--       3 window     that was charged, Unix ms
--       4 not after  Unix us; later than this do nothing; 0 = whenever
--       5 now        Unix us; empty = the server's clock
-- Reply { flags (1 late), now us, total that is known now (0 = the window is not open) }
--
-- Invariant: charged never falls below zero, and no other window is touched.
-- The total makes it idempotent: a repeated or late refund gives nothing back twice.

local function fail(what) return redis.error_reply('BADSTATE ' .. what) end
local most = 9007199254740991                          -- the largest exact integer of a double
local function int(s)
  local n = tonumber(s)
  if n and n == math.floor(n) and math.abs(n) <= most then return n end
end
local function part(s) return (s == nil or s == '') and 0 or int(s) end

local client, given, window = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local now = tonumber(ARGV[5])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
local late = tonumber(ARGV[4])
if late > 0 and now > late then return { 1, now, 0 } end

local stop, used = redis.call('GET', KEYS[2]), redis.call('GET', KEYS[1])
if not (stop and used) then return { 0, now, 0 } end
stop, used = tonumber(stop), int(used)
if not stop or not (stop >= 0 and stop < 9007199254740) then return fail('the end of the window is not a time') end
if not used then return fail('the count is not an integer') end
used = math.max(used, 0)
if math.floor(stop * 1000 + 0.5) ~= window or window * 1000 < now then return { 0, now, 0 } end

local own = redis.call('HMGET', KEYS[3], 'w', client)
local w, clients, total, learn, unattributed, exhausted, reset = string.match(own[1] or '0', '^(%d+) ?(%d*) ?(%d*) ?(%d*) ?(%d*) ?(%d*)( ?1?)$')
local ours = tonumber(w) == window
local away, g, b, d, r = '~', 0, 0, 0, 0               -- a client without a field has left, until it syncs
clients, total, learn, unattributed, exhausted = part(clients), part(total), part(learn), part(unattributed), part(exhausted)
if not ours then
  clients, total, learn, unattributed, exhausted, reset = 0, 0, 0, used, 0, ''  -- see sync
elseif own[2] then
  away, g, b, d, r = string.match(own[2], '^(~?)(%d+) ?(%d*) ?(%d*) ?(%d*)$')
  g, b, d, r = int(g), part(b), part(d), part(r)
end
if not (w and clients and total and learn and unattributed and exhausted and g and b and d and r) then
  return fail('the ledger holds something else than numbers')
end
if given <= r then return { 0, now, r } end

local back = math.min(given - r, used)
unattributed = math.max(unattributed - back, 0)        -- any of these may have been given back
redis.call('HSET', KEYS[3], 'w', string.format('%.0f %.0f %.0f %.0f %.0f %.0f', window, clients, total, learn, unattributed, exhausted) .. reset,
  client, string.format('%s%.0f %.0f %.0f %.0f', away, g, b, d, given))
if not ours then
  for _, name in ipairs(own[1] and redis.call('HKEYS', KEYS[3]) or { }) do
    if name ~= 'w' and name ~= client then redis.call('HDEL', KEYS[3], name) end
  end
  redis.call('PEXPIREAT', KEYS[3], window + 1000)
end
if back > 0 then redis.call('SET', KEYS[1], used - back, 'KEEPTTL') end
return { 0, now, given }
