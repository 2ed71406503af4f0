-- sync: one client's statement of account with one key, and what it is granted.
--
-- KEYS  1 {k}      tokens charged in this window, integer
--       2 {k}:exp  the end of the window, Unix seconds with milliseconds; also its id
--       3 {k}:own  hash: w = the window it belongs to (Unix ms), l = "learn", "learn total" or "learn total loose",
--                  dry = when the limit was first used up (Unix ms), and one field per client: "granted" or "granted returned", cumulative.
--                  learn: learning until (Unix ms); total: tokens granted to all clients and returned by them, never less; loose: tokens charged
--                  that a client knew of when the store had forgotten them, and that nobody has re-asserted yet
-- ARGV  1 client        name of its field
--       2 limit         tokens per window
--       3 length        of a window, ms
--       4 window        that the client speaks of, Unix ms; 0 = it knows none
--       5 granted       to it in that window, as far as it has heard, tokens
--       6 returned      by it in that window, tokens
--       7 want          tokens; 0 = only state the account
--       8 need          tokens of want that callers wait for
--       9 strand        tokens of the limit that may lie idle in all clients; negative = grant want as it is
--      10 peers         clients that shared the key when last heard of; 0 = it does not know
--      11 pace          tokens that the client would use in a whole window at its pace of late
--      12 total         of the window, as the client has last heard; 0 = it has not
--      13 used          tokens that were charged then
--      14 not after     Unix us; later than this do nothing; 0 = whenever
--      15 now           Unix us; empty = the server's clock
-- Reply { flags (1 late, 2 carried, 4 learning), now us, window ms (0 = none open), left us,
--         remaining, grant, recovered, granted, returned, clients, reasserted,
--         lasted ms (from the window's beginning until the limit was used up; 0 = it is not), total }
--
-- Invariant: charged >= the sum over clients of granted - returned, plus loose, and charged <= limit
-- after any grant. Totals make it idempotent: told twice, or late, it charges nobody twice.

local guided = 1.25                                    -- a grant is what remains, times the share, divided by this

local function fail(what) return redis.error_reply('BADSTATE ' .. what) end
local most = 9007199254740991                          -- the largest exact integer of a double
local function int(s)
  local n = tonumber(s)
  if n and n == math.floor(n) and math.abs(n) <= most then return n end
end
local function part(s) return s == '' and 0 or int(s) end
local function text(n) return string.format('%.0f', n) end

local client, limit, length = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local spoken, G, B = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local want, need, strand = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local heard, known = tonumber(ARGV[12]), tonumber(ARGV[13])

local now = tonumber(ARGV[15])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
local late = tonumber(ARGV[14])
if late > 0 and now > late then return { 1, now, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 } end

-- Read and judge everything before the first write: a script is not rolled back.
local stop, used = redis.call('GET', KEYS[2]), redis.call('GET', KEYS[1])
local last = math.ceil(now / 1000) + length            -- the end of a window that would open now
local slack = math.min(length / 10, 1000)              -- clocks of two servers may differ by this
local fresh, moved = true, false
if stop and used then
  stop, used = tonumber(stop), int(used)
  if not stop or not (stop >= 0 and stop < 9007199254740) then return fail('the end of the window is not a time') end
  if not used then return fail('the count is not an integer') end
  used = math.max(used, 0)
  stop = math.floor(stop * 1000 + 0.5)
  fresh = stop * 1000 < now
end
local runs = spoken * 1000 >= now and spoken <= last + slack  -- the client's window, by our clock
if fresh then                                          -- never opened, over, or half of it lost
  stop, used = runs and spoken or last, 0
elseif stop > last + slack then                        -- our clock stepped back: starve no longer than a window
  stop, moved = last, true
end

local own = redis.call('HMGET', KEYS[3], 'w', 'l', client, 'dry')
local ours = not fresh and not moved and own[1] and tonumber(own[1]) == stop
local g, b, learn, total, loose, dry, clients = 0, 0, 0, 0, 0, 0, 1
if ours then
  local x, y, z = string.match(own[2] or '0', '^(%d+) ?(%d*) ?(%d*)$')
  learn, total, loose, dry = int(x), part(y), part(z), int(own[4] or 0)
  clients = math.max(redis.call('HLEN', KEYS[3]) - (own[4] and 3 or 2), own[3] and 1 or 0)
  if own[3] then
    local x, y = string.match(own[3], '^(%d+) ?(%d*)$')
    g, b = int(x), part(y)
  else
    clients = clients + 1
  end
  if not (learn and total and loose and dry and g and b) then return fail('the ledger holds something else than numbers') end
end

-- The account. A window that still runs elsewhere is carried over with what is left of it.
local carried = false
if spoken ~= stop then
  local held = runs and G - B or 0
  carried = held > 0
  G, B, heard = math.min(held + b, most), b, 0
end
local reasserted, back = math.max(G - g, 0), math.max(B - b, 0)  -- grants that the store forgot; given back
local told = math.max(reasserted - back, 0)
local claimed = math.min(loose, told)                  -- it has heard of them from another
local charged = math.max(math.min(used + reasserted, most) - claimed - back, 0)
loose, total = loose - claimed, math.min(total + (told - claimed), most)
g, b = g + reasserted, b + back
local recovered = g - G                                -- granted before, the reply was lost
local forgot = heard > total                           -- grants to others, or what it gave back and others may have been granted since
if forgot and known > charged then
  loose, charged = math.min(loose + (known - charged), known), known
end
total = math.max(math.min(total + back, most), heard)

local now_ms = math.floor(now / 1000)
local learning = now_ms < learn
-- A window that the client knows and we do not is one that we lost, also if it holds none of it:
-- who was refused in a full window is often the first to speak to a server that lost its data.
local adopted = fresh and runs
if (reasserted > 0 and claimed == 0 or forgot or adopted) and not learning then  -- let the other holders speak first
  learn, learning = now_ms + math.floor(length / 20), true
end

-- The grant: guided self-scheduling over what remains. It is sized as if what the client has
-- not heard of were not granted yet, so that a statement told twice is answered twice the same.
local rest = math.max(limit - charged, 0)
local n0 = math.max(math.floor(limit / 1000), 1)
local peers = math.max(clients, tonumber(ARGV[10]))   -- at the reset they are still to come
local target = want
if want > 0 and learning then
  target = math.min(need, n0)
elseif want > 0 and strand >= 0 then
  local out = math.max(charged - recovered, 0)
  local free = math.max(limit - out, 0)
  local left = free / limit
  local floor = math.floor(strand / peers)
  local prior = math.max(n0 * left * left, floor, 1)   -- what a client that has nothing yet counts for
  local passed = math.max(length - (stop * 1000 - now) / 1000, 0) / length
  local part = math.max(g - b - recovered, tonumber(ARGV[11]) * passed)  -- had, or would have had at its pace
  local share = math.min((part + prior) / (out + prior * peers), 1)
  local cap = math.max(math.floor(free * share / guided), floor)
  target = math.min(math.max(want, floor), math.max(cap, need))
end
local take = math.min(math.max(target - recovered, 0), rest, most - g)
charged, g, rest, total = charged + take, g + take, rest - take, math.min(total + take, most)
local dried = rest == 0 and dry == 0 and g > 0
if dried then dry = now_ms end

if fresh and not adopted and charged == 0 and g == 0 then  -- a window opens at its first charge
  return { 0, now, 0, 0, limit, 0, 0, 0, 0, 1, 0, 0, 0 }
end
if fresh or moved then
  local till = text(stop + 1000)
  redis.call('SET', KEYS[2], string.format('%.3f', stop / 1000), 'PXAT', till)
  redis.call('SET', KEYS[1], text(charged), 'PXAT', till)
elseif charged ~= used then
  redis.call('SET', KEYS[1], text(charged), 'KEEPTTL')
end
local account = b > 0 and text(g) .. ' ' .. text(b) or text(g)
local all = text(learn) .. (total > 0 and ' ' .. text(total) or '') .. (loose > 0 and ' ' .. text(loose) or '')
if not ours then
  if g > 0 or learning then
    redis.call('DEL', KEYS[3])
    if g > 0 then
      redis.call('HSET', KEYS[3], 'w', text(stop), 'l', all, client, account)
    else
      redis.call('HSET', KEYS[3], 'w', text(stop), 'l', all)
    end
    redis.call('PEXPIREAT', KEYS[3], text(stop + 1000))
  end
elseif g > 0 and (account ~= own[3] or recovered > 0 or forgot) then  -- a WAIT need not speak of a grant that this does not write
  redis.call('HSET', KEYS[3], 'l', all, client, account)
elseif forgot then
  redis.call('HSET', KEYS[3], 'l', all)
end
if dried then redis.call('HSET', KEYS[3], 'dry', text(dry)) end

return { (carried and 2 or 0) + (learning and 4 or 0), now, stop, stop * 1000 - now,
  rest, take + recovered, recovered, g, b, clients, reasserted,
  dry > 0 and math.max(dry - stop + length, 1) or 0, total }
