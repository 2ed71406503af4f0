-- sync: take one client's statement of account with one key, and grant it tokens.
--
-- KEYS  1 {k}      tokens charged in this window, integer
--       2 {k}:exp  the end of the window, Unix seconds; also its id. It expires a length later than the others,
--                  so that it shows the length of the window
--       3 {k}:own  hash: w = "window clients total" or "window clients total learn unattributed exhausted", the last with
--                  a 1 after it if a reset opened the window: any other window is void. After it "+idle" or
--                  "+idle out calls told at". And one field per
--                  client: "granted", "granted returned" or "granted returned debt", cumulative, with a ~ before it
--                  if the client has left, and after it "+idle", or "+" if it was called to return what is idle and has not
--                  stated since, and "@era". era = a number that each new window
--                  of the ledger increases; 0 and "@0" are not written. Fields of another era are void: they stay until
--                  they are overwritten or deleted, a few at a time.
--                  window: its end, Unix ms; clients: those that have not left; total: tokens granted to all
--                  clients and returned by them, and their debt, never less; learn: learning until, Unix ms; unattributed:
--                  tokens charged that a client may claim whose grant is not in the ledger;
--                  exhausted: when the limit was first used up, Unix ms; idle: tokens that clients hold and do
--                  not need, at most, and in w their sum; at: when clients were called last, Unix ms; out: clients that were
--                  called and have not stated since; calls:
--                  how often these were called, the last of them at least; told: 1 = all were told
--                  that the limit is used up, or when some were told that tokens are back, Unix ms
-- ARGV  1 client        name of its field
--       2 limit         tokens per window
--       3 length        of a window, ms
--       4 want          tokens; 0 = only state the account
--       5 need          tokens of want that callers wait for
--       6 least         tokens that the first of them needs: with less, nothing new is granted
--       7 how           the sum of: 1 = grant want as it is, 2 = the client gets no messages, 4 = it has given those that
--                       were called time to answer
--    then, unless all of these are 0:
--       8 peers         clients in the last reply; 0 = unknown
--       9 pace          tokens that the client would use in a whole window at its present rate
--      10 end           of a window that opens now, by a calendar, Unix ms; 0 = a length from now
--      11 next          end, of the window after that one; 0 = a length later
--      12 leaving       1 = the client does not count until it asks again, else 0
--      13 window        of the client's account, Unix ms; 0 = it has none
--      14 granted       to it in that window by the replies that it got, tokens
--      15 returned      by it in that window, of granted and debt, tokens
--      16 debt          tokens that it used in that window without a grant
--      17 total         of the window in the last reply; 0 = unknown
--      18 used          tokens charged at that time, less those that this statement is the first to return
--      19 open          length of that window, ms, if the limit has another since; else 0
--      20 idle          tokens of that window that it holds and that nobody there waits for
--      21 run           tokens of that window that it has got in a row, less what others got meanwhile
--    then:
--      -2 not after     Unix us; later than this do nothing; 0 = whenever
--      -1 now           Unix us; empty = the server's clock
-- Reply { flags (1 late, 2 carried, 4 learning, 16 conflict: nothing was done because of the length, 32 the user may not PUBLISH), now us, window ms (0 = none open), remaining,
--         length of the open window ms if it is not the limit's, else 0,
--         grant, recovered, granted, returned, debt, clients, reasserted,
--         lasted ms (from the window's beginning until the limit was used up; 0 = it is not), total,
--         tokens charged above the limit, tokens idle in other clients that may be called, clients that were called
--         and have not stated since; 0 once they have been called four times, for 100 ms or a 20th of the window };
--         it ends with the grant if that opened the window for a client that named none: granted and total
--         are then the same number, clients is 1, and all else 0
-- Messages, to the channel prefix .. "reservoir:" .. process, where prefix is all before the { of a key, and process is a
-- client's name up to its last dot: "kind window limit {k}"; kind: 1 return what is idle, 2 the limit is used up, 3 tokens are back
--
-- Invariant: charged >= the sum over clients of granted - returned + debt, plus unattributed, and charged <= limit
-- after any new grant. Totals make it idempotent: a repeated or late statement charges nothing twice.

-- A first contact with a key should cost little more than take. So it skips what it does not use, converts text to
-- numbers by + 0 and numbers to text by %d (at half the cost of %.0f), and compares instead of calling min or max on
-- the path of every call.

local floor, max, min, format = math.floor, math.max, math.min, string.format
local most = 9007199254740991                          -- the largest exact integer of a double
if format('%d', 4294967296) ~= '4294967296' then return redis.error_reply('BADSTATE the server has no integers of 64 bits') end

local args = #ARGV
local client, limit, length, want, need, least, how = unpack(ARGV)
limit, length, want, need = limit + 0, length + 0, want + 0, need + 0
local exact, unheard, waited = false, false, false
if how ~= '0' then exact, unheard, waited = how % 2 == 1, how % 4 > 1, how + 0 > 3 end
local now = ARGV[args]
if now ~= '' then
  now = now + 0
else
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
local late = ARGV[args - 1] + 0
if late > 0 and now > late then return { 1, now, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 } end

local slack = length < 10000 and length / 10 or 1000   -- clocks of two servers may differ by this
local peers, pace, till, after, leaving, window, open, runs = 0, 0, 0, 0, false, 0, 0, false
if args > 9 then
  peers, pace, till, after, leaving, window, open = ARGV[8] + 0, ARGV[9] + 0, ARGV[10] + 0, ARGV[11] + 0, ARGV[12] == '1', ARGV[13] + 0, ARGV[19] + 0
  local most = open > 0 and open or length
  runs = window * 1000 >= now and window <= math.ceil(now / 1000) + most + min(most / 10, 1000)
end
local period = after > till and after - till or 0      -- the length of the calendar's next period

-- Read and judge everything before the first write: a script is not rolled back.
local stop, used = redis.call('GET', KEYS[2]), redis.call('GET', KEYS[1])
local fresh, moved, opened, before, conflict = true, false, length, 0, false
if stop and used then
  stop, used = tonumber(stop), tonumber(used)
  if not stop or not (stop >= 0 and stop < 9007199254740) then return redis.error_reply('BADSTATE the end of the window is not a time') end
  if not used or used ~= floor(used) or math.abs(used) > most then return redis.error_reply('BADSTATE the count is not an integer') end
  used = max(used, 0)
  stop = floor(stop * 1000 + 0.5)
  fresh = stop * 1000 < now
  if fresh then before = stop end
end
if before > 0 and window > before and window - before < floor(min((open > 0 and open or length) / 10, 1000)) then runs = false end  -- a reset has closed it
if fresh then                                          -- never opened, over, or half of it lost
  used = 0
else
  opened = redis.call('PEXPIRETIME', KEYS[2]) - stop - 1000
  local differ
  if stop ~= window then open = 0 end                  -- the client knows that length of its own window only
  if opened <= 0 or opened > 31622401000 then          -- another program opened it: the length is unknown
    opened, differ = length, 31622400000 - length
  elseif math.abs(opened - length) <= slack then       -- the move of a slot has changed the time to live
    opened = length
  elseif math.abs(opened - open) <= min(open / 10, 1000) then
    opened = open
  elseif math.abs(opened - period) <= min(period / 10, 1000) then
    opened = period
  else
    conflict = true
  end
  differ = differ or min(opened / 10, 1000)
  moved = stop > math.ceil(now / 1000) + opened + differ  -- our clock stepped back: starve no longer than a window
end

if fresh and runs then
  stop = window
  if open > 0 then opened = open end
elseif fresh or moved then                             -- the end of a window that opens now
  local till = opened == length and till or 0          -- else it is another limit's
  if fresh and till * 1000 <= now and after * 1000 > now then  -- the calendar's next period has begun
    stop, opened = after, period
  elseif till > 0 and till * 1000 <= now then          -- or a later one
    stop = till + (floor((now - till * 1000) / (length * 1000)) + 1) * length
  elseif till > 0 then                                 -- later than possible: an earlier end
    stop = till - max(math.ceil((till - math.ceil(now / 1000) - length - slack) / length), 0) * length
  elseif opened % 1000 == 0 then                       -- a length of whole seconds ends at a whole second
    stop = floor(now / 1000000) * 1000 + opened
  else
    stop = math.ceil(now / 1000) + opened
  end
  if before > 0 and stop > before and stop - before < floor(min(opened / 10, 1000)) then  -- the name of a window that was reset: use the next end
    opened = period > 0 and period or length
    stop = stop + opened
  end
end
local other = opened ~= length and opened or 0
if conflict then                                       -- with others, or with callers of take, who leave no ledger
  local others = string.match(redis.call('HMGET', KEYS[3], 'w')[1] or '', '^' .. format('%d', stop) .. ' (%d+)')
  return { 16, now, stop, max(limit - used, 0), other, 0, 0, 0, 0, 0, others and others + 0 or 1, 0, 0, 0, 0, 0, 0 }
end
length = opened

-- The ledger. If this window has none, all charged tokens are unattributed: either direct callers
-- were charged, or the ledger was lost and its clients will state what they hold.
local own, ours, known, era = { }, false, false, 0
local present, g, b, d = 0, 0, 0, 0
local clients, total, learn, unattributed, exhausted, reset = 0, 0, 0, used, 0, ''
local idle, spare, at, out, calls, told = 0, 0, 0, 0, 0, 0  -- idle in others, and in this one
if not fresh then
  local function int(s)
    local n = tonumber(s)
    if n and n == floor(n) and math.abs(n) <= most then return n end
  end
  local function part(s) return (s == nil or s == '') and 0 or int(s) end
  own = redis.call('HMGET', KEYS[3], 'w', client, 'era')
  era = part(own[3] or '')
  local w, n, t, l, u, e, again, more = string.match(own[1] or '0', '^(%d+) ?(%d*) ?(%d*) ?(%d*) ?(%d*) ?(%d*)( ?1?)(.*)$')
  ours = not moved and tonumber(w) == stop
  if ours then
    clients, total, learn, unattributed, exhausted, reset = part(n), part(t), part(l), part(u), part(e), again
    if more ~= '' then
      idle, out, calls, told, at = string.match(more, '^%+(%d+) ?(%d*) ?(%d*) ?(%d*) ?(%d*)$')
      idle, out, calls, told, at = int(idle), part(out), part(calls), part(told), part(at)
    end
    if own[2] then
      local away, x, y, z, plus, i, of = string.match(own[2], '^(~?)(%d+) ?(%d*) ?(%d*)(%+?)(%d*)@?(%d*)$')
      known = not x or part(of) == era
      if known then
        g, b, d, spare, present = int(x), part(y), part(z), part(i), away == '' and 1 or 0
        if plus ~= '' and i == '' then out = max((out or 0) - 1, 0) end
      end
    end
  end
  if not (w and clients and total and learn and unattributed and exhausted and era and g and b and d and idle and spare and at and out and calls and told) then
    return redis.error_reply('BADSTATE the ledger holds something else than numbers')
  end
  clients, idle = max(clients - present, 0), max(idle - spare, 0)  -- without this one
end

-- The account. What the client holds of a window that still runs elsewhere is carried over, debt as a grant, unless
-- that window is void because a reset opened ours.
local charged, carried, reasserted, recovered, loss = used, false, 0, g > b and g - b or 0, false
local back, stated, old = 0, 0, false                  -- old: a later statement was here before
if window > 0 then
  local G, B, D, heard, last, claims = ARGV[14] + 0, ARGV[15] + 0, ARGV[16] + 0, ARGV[17] + 0, ARGV[18] + 0, unattributed
  if window ~= stop then                               -- tokens held there were not charged here
    claims = 0
    local held = runs and reset == '' and G - B + D or 0
    carried = held > 0
    G, B, D, heard = carried and min(held + b, most) or min(g, b), b, d, 0  -- b > g if debt was returned
  end
  if window == stop or carried then stated = ARGV[20] + 0 end
  old = B < b or D < d
  back = max(B - b, 0)
  local owed = max(D - d, 0)
  reasserted = max(G - g, 0)                      -- grants that the store forgot
  local out = max(reasserted - back, 0)
  local claimed = min(claims, out)                -- charged already
  charged = min(charged + reasserted, most) - claimed
  charged = max(min(charged + owed, most) - back, 0)  -- what goes back may be debt
  unattributed, total = unattributed - claimed, min(total + (out - claimed) + owed, most)
  g, b, d = g + reasserted, b + back, d + owed
  recovered = g - G                                    -- granted before; the reply was lost
  loss = reasserted > 0 and claimed == 0
  if heard > total then                                -- lost: grants to others, or tokens that it gave back and others may have got since
    loss = true
    if last > charged then
      unattributed, charged = min(unattributed + (last - charged), last), last
    end
  end
  total = max(min(total + back, most), heard)
end

local learning = learn > 0 and floor(now / 1000) < learn
-- If the client knows a window and we do not, we have lost it, even if the client holds no tokens of it:
-- a client refused in a full window is often the first to call a server that lost its data.
local adopted = fresh and runs
if (loss or adopted) and not learning then             -- let the other holders speak first
  learn, learning = floor(now / 1000) + floor(length / 20), true
end

-- The grant: guided self-scheduling over what remains. It is sized as if grants whose replies were
-- lost were not made yet, so that a repeated statement gets the same answer.
local rest = limit - charged
if rest < 0 then rest = 0 end
if not leaving then clients = clients + 1 end
local take = 0
if want > 0 and rest + recovered - least >= 0 then
  if peers < clients then peers = clients end          -- after a reset most have not called yet
  if peers < 1 then peers = 1 end
  local target = want
  if learning then                                     -- enough for each, so that a crowd need not come back
    target = max(need, min(want, max(floor(limit / 1000), 1)))
  elseif not exact then
    local base, least, divisor = limit / (20 * peers), 1 / peers, 1
    if unheard then                                    -- what is idle there cannot be called: a hundredth of the limit in all
      base, least, divisor = limit / ((pace > 0 and 100 or 1000) * peers), 0, 1.25
    else
      if base < 5 then base = 5 end
      if base > limit / (3 * peers) then base = limit / (3 * peers) end
      if limit < 15 then base = min(limit / peers, 1) end
      local part = 3 * rest / (peers > 6 and peers or 6)
      if base > part then base = part end
      if window == stop and ARGV[21] ~= '0' then       -- as much again as in a row, less what others got since
        base, part = floor(base), min(ARGV[21] - max(charged - recovered - ARGV[18], 0), rest - floor(rest / 8))
        if base < part then base = part end
      end
    end
    base = floor(base)
    local out, most = charged - recovered, limit
    if out > 0 or peers > 1 or unheard or idle > 0 then
      if out < 0 then out = 0 end
      local free = max(limit - out, 0) + floor(idle / 6)  -- some of what is idle elsewhere may come back
      local left = free / limit
      local prior = max(max(floor(limit / 1000), 1) * left * left, base, 1)  -- the share of a client that has nothing yet
      local part = max(g - b - recovered, 0)           -- what it had, or would have had at its pace
      if pace > 0 then part = max(part, pace * (max(length - (stop * 1000 - now) / 1000, 0) / length)) end
      most = floor(free * max(min((part + prior) / (out + prior * peers), 1), least) / divisor)
    end
    if pace == 0 and target < base then target = base end  -- a newcomer does not know its peers
    if most < base then most = base end
    if most < need then most = need end
    if target > most then target = most end
  elseif need > 0 and calls > 0 then                   -- others may wait for what came back, too
    target = need
  end
  take = target - recovered
  if take > rest then take = rest end
  if take > most - g then take = most - g end
  if take < 0 then take = 0 end
  charged, g, rest, total = charged + take, g + take, rest - take, total + take
  if total > most then total = most end
end

if fresh and not adopted and charged == 0 and g == 0 then  -- a window opens at its first charge
  return { 0, now, 0, limit, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0 }
end

-- The ledger's new fields. A client without a field, without figures and without a want is not written. A client that
-- opens a window and named none has only its grant. What is idle is an upper bound until the client states again; an older
-- statement, or one whose reply was lost, lowers nothing.
local first = fresh and args == 9 and rest > 0
local keep = first or known or g > 0 or d > 0 or want > 0 and not leaving
if not keep or leaving or unheard then
  spare = 0
else
  if take + recovered > need then stated = stated + (take + recovered - need) end
  if (old or recovered > 0) and stated < spare then stated = spare end
  spare = stated <= most - idle and stated or most - idle
end
local account, head, count, header
if not first then header = function()
  local there = (keep or leaving) and clients or clients - 1
  local text = (learn > 0 or unattributed > 0 or exhausted > 0 or reset ~= '')
    and format('%d %d %d %d %d %d', stop, there, total, learn, unattributed, exhausted) .. reset
    or format('%d %d %d', stop, there, total)
  if calls > 0 or told > 0 then return text .. format('+%d %d %d %d %d', idle + spare, out, calls, told, at) end
  return idle + spare > 0 and text .. format('+%d', idle + spare) or text
end end
if first then
  count = format('%d', take)
  account = spare > 0 and format('%d+%d', take, spare) or count
  head = format('%d 1 ', stop) .. account
elseif keep then
  if exhausted == 0 and rest == 0 then exhausted = floor(now / 1000) end
  account = d > 0 and format('%d %d %d', g, b, d) or b > 0 and format('%d %d', g, b) or format('%d', g)
  if leaving then account = '~' .. account end
  if spare > 0 then account = account .. format('+%d', spare) end
  if era > 0 and ours then account = account .. format('@%d', era) end
end
if not first and (keep or learning) then head = header() end

-- An error on the line of the first write means that nothing was written, so the first write of each case is on that
-- line. A charge comes before its account, and a give-back after it: if the user lacks a right to one, less is admitted.
-- A new window opens last. It voids any ledger of an old one by a new era, because a slot that moves takes no new key,
-- and because a ledger may have any number of fields: a client that is new in the window deletes some of those that are void.
local added
if fresh then added = redis.call('HSET', KEYS[3], 'w', head, keep and client or 'w', account or head) elseif charged > used then redis.call('SET', KEYS[1], format('%d', charged), 'KEEPTTL') end
local gone = (fresh or not ours) and format('%d', stop + 1000)
if head and not ours then
  local field = account
  if own[1] or fresh and added < (keep and 2 or 1) then
    era = redis.call('HINCRBY', KEYS[3], 'era', 1)
    field = account and account .. format('@%d', era)
  end
  if not fresh or era > 0 then redis.call('HSET', KEYS[3], 'w', head, keep and client or 'w', field or head) end
  redis.call('PEXPIREAT', KEYS[3], gone)
elseif head and (head ~= own[1] or account and account ~= own[2] or recovered > 0 or d > 0) then  -- also for a recovered grant and for debt, so that a WAIT covers them
  redis.call('HSET', KEYS[3], 'w', head, keep and client or 'w', account or head)
end
if era > 0 and keep and not known then
  local some, void = redis.call('HRANDFIELD', KEYS[3], 16, 'WITHVALUES'), { }
  for i = 1, #some, 2 do
    if some[i] ~= 'w' and some[i] ~= 'era' and (string.match(some[i + 1], '@(%d+)$') or '0') + 0 ~= era then void[#void + 1] = some[i] end
  end
  if void[1] then redis.call('HDEL', KEYS[3], unpack(void)) end
end
if fresh or moved then
  redis.call('SET', KEYS[2], format(stop % 1000 == 0 and '%d' or '%.3f', stop / 1000), 'PXAT', format('%d', stop + 1000 + length))
  redis.call('SET', KEYS[1], count or format('%d', charged), 'PXAT', gone)
elseif charged < used then
  redis.call('SET', KEYS[1], format('%d', charged), 'KEEPTTL')
end

if first then return { 0, now, stop, rest, 0, take } end

-- The messages come last, so that a server that refuses writes sends none. Who has no right to PUBLISH has called nobody.
local sent, kind, sample, most, ms, part = 0, 0, 256, 32, floor(now / 1000), floor(length / 20)
local short, again, mute = want > 0 and (rest == 0 or take + recovered < max(need, 1)), false, 0
if not (ours or head) then                             -- nobody is there
elseif short and idle > 0 and (need > 0 or calls > 0 or idle > floor(limit / 100)) then
  kind = 1
elseif short and waited and out > 0 and calls <= 4 then
  kind, again, calls = 1, true, calls + 1
  if calls > 4 then most = 0 end                       -- they are given up
elseif rest == 0 and take + recovered < need and told == 0 and (out == 0 or calls > 4 and ms - at >= min(part, 100)) then
  kind, told, sample, most = 2, 1, 1024, 1024
elseif told > 0 and rest > 0 and ms - told >= min(part, 250) then
  kind, told, sample, most = 3, ms, rest > 32 and 1024 or -64, max(4, min(rest, 1024))  -- of some that are drawn with repetition
end
if kind > 0 then
  local some, found, mark = redis.call('HRANDFIELD', KEYS[3], sample, 'WITHVALUES'), { }, era > 0 and format('+@%d', era) or '+'
  for i = 1, #some, 2 do
    local name = some[i]
    local away, totals, plus, held, of = string.match(some[i + 1], '^(~?)([%d ]+)(%+?)(%d*)@?(%d*)$')
    if totals and name ~= client and name ~= 'w' and name ~= 'era' and not found[name] and (tonumber(of) or 0) == era then
      local one = { name = name, totals = totals, held = tonumber(held) or 0 }
      if kind > 1 and away == '' or again and plus ~= '' and held == '' or kind == 1 and not again and one.held > 0 then
        found[#found + 1], found[name] = one, true
      end
    end
  end
  if kind == 1 and not again then
    table.sort(found, function(a, b) return a.held > b.held or a.held == b.held and a.name < b.name end)
  end
  local text, fields, covered = format('%d %d %d %s', kind, stop, limit, KEYS[1]), { }, 0
  for i, one in ipairs(found) do
    if i > most or kind == 1 and not again and covered >= idle and covered >= 2 * need then break end
    local to = string.match(KEYS[1], '^[^{]*') .. 'reservoir:' .. (string.match(one.name, '^(.*)%.') or one.name)
    if type(redis.pcall('PUBLISH', to, text)) == 'table' then
      mute = 32
      break
    end
    sent = sent + 1
    if kind == 1 and not again then
      covered, idle = covered + one.held, idle - one.held
      fields[#fields + 1], fields[#fields + 2] = one.name, one.totals .. mark
    end
  end
  if fields[1] then at, calls, out = ms, 1, out + sent end
  if sent > 0 or mute == 0 then redis.call('HSET', KEYS[3], 'w', header(), unpack(fields)) end
end
if mute > 0 then idle = 0 end
if calls > 4 and ms - at >= min(part, 100) then out = 0 end
return { (carried and 2 or 0) + (learning and 4 or 0) + mute, now, stop, rest, other,
  take + recovered, recovered, g, b, d, clients, reasserted,
  exhausted > 0 and max(exhausted - stop + length, 1) or 0, total, max(charged - limit, 0),
  idle, out }
