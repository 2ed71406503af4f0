-- rolling: all calls of a rolling limit, of which no interval of a window's length sees more than the limit spent.
--
-- KEYS  1 {k}:60s:roll   hash: h = "since last sum total present idle"; c = "length ahead learn void out at calls era",
--                    both without the zeros at their end; one field per slice that was used, named by the character 48 + the
--                    slice modulo 32: tokens that count in it; and one field per client, after two dots if its name begins with one
--                    or is shorter than three bytes: "name slice granted unspent returned refunded debt", without the zeros at its
--                    end, with a ~ before it if the client has left, and after it "+busy", what it needs of unspent, if some is
--                    idle, or "+" if it was called to return that and has not stated since, and "@era". Fields of another era are void, and deleted now and then.
--                    since: when the ring began, Unix us, by the key's clock; last: the key's clock at the last
--                    write, which never goes back; ahead: of it before the server's clock; learn: until when grants are small;
--                    all in us after since, or 0; at: the same, and 1 more: when clients were called last; void: as at: accounts
--                    that were named until then are void; sum: of the slices; total: tokens granted, charged and given back,
--                    cumulative; present: clients that have not left; idle: tokens that clients hold and do not need, at
--                    most; length: of a window, ms; out: clients that were called and have not stated since; calls: how often these were called,
--                    the last of them at least; name: when the account began, us after since; slice: the last in which what is
--                    unspent may be spent, after that of since
-- ARGV  1 op            sync, take, check, settle or reset
--       2 limit         tokens per window
--       3 length        of a window, ms; a slice is a 20th
--   take:
--       4 n             tokens, 1 to limit
--       5 within        how long the call may take, us, at most a quarter of the window
--   settle:
--       4 tokens        to charge, even above the limit; negative = to give back
--       5 window        of the reply by which they were charged, Unix ms
--   sync:
--       4 client        its name
--       5 want          tokens; 0 = only state the account
--       6 need          tokens of want that callers wait for
--       7 least         tokens that the first of them needs: with less, nothing new is granted
--       8 how           the sum of: 1 = grant want as it is, 2 = the client gets no messages, 4 = it has given those that
--                       were called time to answer, 8 = it does not count until it asks again
--    then, unless all of these are 0:
--       9 peers         clients in the last reply; 0 = unknown
--      10 pace          tokens that the client would use in a whole window at its present rate
--      11 account       in the last reply; 0 = it has none
--      12 window        in the last reply, Unix ms
--      13 granted       to it by the replies that it got, tokens; all totals are of the account
--      14 returned      by it, of these
--      15 debt          tokens that it used without a grant
--      16 total         in the last reply; 0 = unknown
--      17 used          tokens charged at that time, less those that this statement is the first to return
--      18 idle          tokens that it holds and that nobody there waits for
--      19 refunded      tokens that requests gave back, of those that were spent or debt
--      20 refunded in   the earliest window of a reply by which a part of these was charged that was not stated before, Unix ms
--    then for each slice in which tokens were spent since, ascending:
--          slice        or a later one
--          spent        tokens by its end, in all
--   then:
--      -2 not after     Unix us; later than this do nothing; 0 = whenever
--      -1 now           Unix us; empty = the server's clock
-- Reply { flags (1 late, 2 carried, 4 learning, 8 allowed or done, 32 the user
--         may not PUBLISH; if the answer of take is no: 64 tokens lie idle in clients, 128 clients were called to return theirs and have not
--         answered), now us, window ms (when what is granted counts no more), remaining,
--         us until window by the key's clock, us until enough counts no more for what was asked, or 0;
--         of settle, the 4th is tokens charged above the limit; of sync, further:
--         grant, recovered, granted, returned, debt, clients, reasserted, total, tokens charged above the limit,
--         tokens idle in other clients that may be called, clients that were called and have not stated since (see sync), account }
-- Messages: see sync.
--
-- Invariant: each token that was spent in a window's length before now, or may still be spent, counts in a slice that is not before the
-- one in which it was spent, and sum <= limit after any new grant. check writes nothing. sync is idempotent;
-- never send a take, settle or reset a second time once it may have run.
--
-- It follows internal/rolling line by line.

-- As in sync, numbers become text by %d, and text numbers by + 0, on the path of every call, which has few functions.
local floor, max, min, format, match, char, call = math.floor, math.max, math.min, string.format, string.match, string.char, redis.call
local most = 9007199254740991                          -- the largest exact integer of a double

local args, op, limit, length = #ARGV, ARGV[1], ARGV[2] + 0, ARGV[3] + 0
local syncs, now, real = op == 'sync', ARGV[args], nil
if now ~= '' then
  now = now + 0
else
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
  real = now
end
local function reply(flags, window, remaining, left, frees)
  if syncs then return { flags, now, window, remaining, left, frees, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0 } end
  return { flags, now, window, remaining, left, frees }
end
local late = ARGV[args - 1] + 0
if late > 0 and now > late then return reply(1, 0, 0, 0, 0) end

-- Read and judge everything before the first write: a script is not rolled back. Which slices a call needs is known only
-- when the head is; those that most calls need are read with it.
local function int(text)
  if not text or text == '' then return 0 end
  local n = tonumber(text)
  if n and n % 1 == 0 and n <= 9007199254740991 and n >= -9007199254740991 then return n end
  error(redis.error_reply('BADSTATE the ring holds something else than numbers'))
end
local unit, far = 50 * length, 7                       -- the length of a slice, us; slices ahead of the present one to the end of a lease
local first = floor(now / unit)
local second = op == 'take' and floor((now + ARGV[5]) / unit) or first + far
local third = args > 11 and floor((ARGV[12] * 1000 - 1) / unit) - 20 or second  -- of the account, most likely
local mine = syncs and ARGV[4] or 'h'
if syncs and (#mine < 3 or string.byte(mine) == 46) then mine = '..' .. mine end
local got = call('HMGET', KEYS[1], 'h', 'c', mine, char(48 + first % 32), char(48 + second % 32), third == second and 'h' or char(48 + third % 32))

local since, last, sum, total, present, idle = now, now, 0, 0, 0, 0
local ahead, learn, void, out, called, calls, era = 0, 0, 0, 0, 0, 0, 0
local count, dirty, gone, cold, alive, empty, low = { }, { }, { }, false, false, false, nil
if got[1] then
  local a, b, c, d, e, f = match(got[1], '^(%d+) (%d+) ?(%d*) ?(%d*) ?(%d*) ?(%d*)$')
  since, last, sum, total, present, idle = int(a), int(b), int(c), int(d), int(e), int(f)
  local span = tonumber(got[2])
  if not span then
    local g
    span, a, b, c, d, e, f, g = match(got[2] or '', '^(%d+) (%d*) ?(%d*) ?(%d*) ?(%d*) ?(%d*) ?(%d*) ?(%d*)$')
    ahead, learn, void, out, called, calls, era = int(a), int(b), int(c), int(d), int(e), int(f), int(g)
  end
  if since == 0 or int(span) ~= length then return redis.error_reply('BADSTATE the ring has no head') end
  last = since + last
  if learn > 0 then learn = since + learn end
  if void > 0 then void = since + void - 1 end
  if called > 0 then called = since + called - 1 end
  low = floor(last / unit) - 20
  alive = floor((now + ahead) / unit) <= low + 41 + far
  if alive then
    count[first % 32], count[second % 32] = int(got[4]), int(got[5])
    if third ~= second then count[third % 32] = int(got[6]) end
  end
end

-- The count of a slice, or n more tokens in it, or fewer.
local function slot(s)
  s = s % 32
  if not count[s] then count[s] = empty and 0 or int(call('HMGET', KEYS[1], char(48 + s))[1]) end
  return count[s], s
end
local function add(at, n)
  if at < low or n == 0 then return end
  local c, s = slot(at)
  if sum + n > most or sum + n < 0 or c + n > most or c + n < -most then  -- absurd
    n = max(min(n, most - sum, most - c), -sum, -most - c)
  end
  count[s], sum, dirty[s] = c + n, sum + n, true
end
-- Read all counts, or forget them, and all accounts.
local function all(forget)
  local list = empty and { } or call('HMGET', KEYS[1], '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', ':', ';', '<', '=', '>', '?',
    '@', 'A', 'B', 'C', 'D', 'E', 'F', 'G', 'H', 'I', 'J', 'K', 'L', 'M', 'N', 'O')
  for s = 0, 31 do
    local n = list[s + 1]
    count[s] = count[s] or (not n or n == '0') and 0 or int(n)
    if forget and count[s] ~= 0 then count[s], dirty[s] = 0, true end
  end
  if forget then present, idle, out, called, calls, learn, era, cold = 0, 0, 0, 0, 0, 0, era + 1, true end
end

if not alive then
  if op == 'settle' then return reply(0, 0, 0, 0, 0) elseif op == 'check' or op == 'reset' then return reply(0, 0, limit, 0, 0) end
  if format('%d', 4294967296) ~= '4294967296' then return redis.error_reply('BADSTATE the server has no integers of 64 bits') end
  empty = not (got[1] or call('HRANDFIELD', KEYS[1], 1)[1])
  if not empty then                                    -- all is over, or the head is lost
    if not got[1] then era = now end
    all(true)
  end
  -- The key's clock goes on after the last slice, or tokens that count no more, and are given back, would seem to be of later ones.
  since = got[1] and max(now, (low + 42 + far) * unit) or now
  last, sum, total, ahead, void, cold = since, 0, 0, since - now, 0, true
  low = floor(since / unit) - 20
end

-- Move to now, by the key's clock. That never goes back: if the server's does, tokens of later slices would never count.
local at, before, heard = max(now + ahead, last), low, total
local stepped = at - now ~= ahead
if stepped then ahead, cold = at - now, true end
last = at
local to = floor(at / unit) - 20
if to > low then
  if to > low + 1 then all() end
  for over = low, min(to, low + 32) - 1 do
    local n, s = slot(over)
    if n ~= 0 then sum, count[s], dirty[s] = min(max(sum - n, 0), most), 0, true end
  end
  low = to
end

-- The reply for a request of need tokens that counts up to a slice.
local function state(flags, slice, need)
  local window, rest, frees = floor((slice + 21) * unit / 1000), max(limit - sum, 0), 0
  if need > rest then
    local s, n = low, min(sum - limit + need - slot(low), most)
    if n > 0 then all() end
    while n > 0 and s < low + 31 do
      s = s + 1
      n = min(n - count[s % 32], most)
    end
    frees = (s + 21) * unit - at
  end
  return reply(flags, window, rest, max(window * 1000 - at, 0), frees)
end

if op == 'check' then
  if sum == 0 then return reply(0, 0, limit, 0, 0) end
  all()
  local s = low + 31
  while s > low and count[s % 32] <= 0 do s = s - 1 end
  return state(0, s, 1)
end
local today = low + 20

-- The first write is one HSET, so that an error on its line means that nothing was written.
local function write(set)
  if total > most then total = most end
  local n = #set
  set[2] = idle > 0 and format('%d %d %d %d %d %d', since, last - since, sum, total, present, idle)
    or format('%d %d %d %d %d', since, last - since, sum, total, present)
  if cold then
    local text = format('%d', length)
    if ahead + learn + void + out + calls + era > 0 then
      text = format('%d %d %d %d %d %d %d %d', length, ahead, learn > 0 and learn - since or 0, void > 0 and void - since + 1 or 0, out, called > 0 and called - since + 1 or 0, calls, era)
      while string.sub(text, -2) == ' 0' do text = string.sub(text, 1, -3) end
    end
    set[n + 1], set[n + 2] = 'c', text
    n = n + 2
  end
  for s in pairs(dirty) do
    set[n + 1], set[n + 2] = char(48 + s), format('%d', count[s])
    n = n + 2
    if count[s] == 0 then gone[#gone + 1] = char(48 + s) end
  end
  call('HSET', KEYS[1], unpack(set))
  if gone[1] then call('HDEL', KEYS[1], unpack(gone)) end
  if cold or floor(low / 5) ~= floor(before / 5) then  -- with five slices to spare; when the server's clock is after the key's
    if not real then
      local t = call('TIME')
      real = t[1] * 1000000 + t[2]
    end
    call('PEXPIREAT', KEYS[1], format('%d', (real - now + (low + 48 + far) * unit) / 1000 + 1000))
  end
end

if op == 'take' then
  local n, s = ARGV[4] + 0, floor((at + ARGV[5]) / unit)
  if sum + n > limit then
    if stepped then write({ 'h', '' }) end                -- or the key's clock would stand still until the server's has caught up
    local waits = out > 0 and (calls <= 4 or at - called < min(unit, 100000))
    return state((idle > 0 and 64 or 0) + (waits and 128 or 0), today, n)
  end
  add(s, n)
  total = total + n
  write({ 'h', '' })
  return state(8, s, 0)
elseif op == 'settle' then
  local n, window = ARGV[4] + 0, ARGV[5] * 1000
  local from = min(floor((window - 1) / unit) - 21 - far, today)
  if window < at or n < 0 and from < max(low, floor(void / unit) + 1) then return reply(0, 0, 0, 0, 0) end
  add(n < 0 and from or today, n)
  total = total + max(n, 0)
  write({ 'h', '' })
  return reply(8, 0, max(sum - limit, 0), 0, 0)
elseif op == 'reset' then
  all(true)
  sum, void = 0, at
  write({ 'h', '' })
  local told = redis.pcall('PUBLISH', match(KEYS[1], '^[^{]*') .. 'reservoir:', '4 0 0 0 ' .. KEYS[1])  -- to all: see sync
  return state(type(told) == 'table' and 32 or 0, today, 0)
end

-- The statement.
local _, _, _, _, want, need, least, how = unpack(ARGV, 1, 8)
want, need, least = want + 0, need + 0, least + 0
local exact, unheard, waited, leaving = false, false, false, false
if how ~= '0' then exact, unheard, waited, leaving = how % 2 == 1, how % 4 > 1, how % 8 > 3, how + 0 > 7 end
local peers, pace, account, window, G, B, D, T, used, stated, R, into = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
if args > 10 then
  peers, pace, account, window, G, B = ARGV[9] + 0, ARGV[10] + 0, ARGV[11] + 0, ARGV[12] + 0, ARGV[13] + 0, ARGV[14] + 0
  D, T, used, stated, R, into = ARGV[15] + 0, ARGV[16] + 0, ARGV[17] + 0, ARGV[18] + 0, ARGV[19] + 0, ARGV[20] + 0
end
local base, ends = floor(since / unit), floor((window * 1000 - 1) / unit) - 20  -- ends: the slice of window

-- The account. What was granted to one that is over counts no more and must not be spent, so another one begins; its client may
-- not know of that yet, and then has used nothing of it. An account that should be there was lost.
local form = '^(~?)(%-?%d+) (%-?%d+) ?(%d*) ?(%-?%d*) ?(%d*) ?(%d*) ?(%d*)(%+?)(%d*)@?(%d*)$'
local known, name, slice, g, x, b, y, d = false, 0, low, 0, 0, 0, 0, 0
local fresh, ours, untouched, spare = true, false, true, 0  -- spare: what is idle here
if got[3] then
  local away, a, s, granted, unspent, returned, refunded, debt, plus, busy, of = match(got[3], form)
  if not a then return redis.error_reply('BADSTATE an account is none') end
  if int(of) == era then
    known, name, slice, g, x, b, y, d = true, since + int(a), base + int(s), int(granted), int(unspent), int(returned), int(refunded), int(debt)
    if busy ~= '' then spare = max(x - int(busy), 0) end
    x = g - b - x
    untouched, fresh = b + x + y + d == 0, slice < low
    if not fresh and account ~= 0 and account < name and not untouched then  -- nobody waits for the reply
      local r = state(0, slice, 1)
      r[12], r[18] = 0, name
      return r
    end
    idle = max(idle - spare, 0)
    if away == '' then present = max(present - 1, 0) end
    if plus ~= '' and busy == '' then out, cold = max(out - 1, 0), true end
  end
end
local reasserted, had, swept = 0, known and got[3] or nil, false
-- What others were granted, and spent, and the store has lost.
local function unattributed()
  if at >= learn + length * 1000 then learn, cold = at + (far + 1) * unit, true end
  if T > total then
    if used > sum then add(floor(learn / unit), used - sum) end
    total = T
  end
end
if not fresh and (account == name or account < name and untouched) then
  ours = account == name
elseif account > void and account > name and window * 1000 > at and ends < low + 32 then
  fresh, ours, name, slice, g, b, y, d = false, true, account, min(ends, today + far + 1), G, B, R, D
  x = args > 22 and min(ARGV[args - 2] + 0, max(g - b, 0)) or 0
  reasserted = max(g - b - x, 0)
  add(slice, reasserted)
  unattributed()
else
  name, slice, g, x, b, y, d = max(at, name + 1, void + 1), low, 0, 0, 0, 0, 0
  if name == account then name = name + 1 end            -- the clock has stepped back to that very instant
  if name > most then name = most end
end

-- Delete accounts that are over, because no window ends that would void them all.
if alive and (not known or floor(low / 5) ~= floor(before / 5)) then
  local some = call('HRANDFIELD', KEYS[1], 64, 'WITHVALUES')
  for i = 1, #some, 2 do
    local away, s, unspent, plus, busy, of, _
    if #some[i] > 2 and some[i] ~= mine then           -- an account: to match c, for example, takes long
      away, _, s, _, unspent, _, _, _, plus, busy, of = match(some[i + 1], form)
    end
    if away then
      local void = int(of) ~= era
      if void or base + s < low then gone[#gone + 1] = some[i] end
      if not void and base + s < low then
        swept = true
        if busy ~= '' then idle = max(idle - (int(unspent) - int(busy)), 0) elseif plus ~= '' then out, cold = max(out - 1, 0), true end
        if away == '' then present = max(present - 1, 0) end
      end
    end
  end
end

if ours then
  if G > g then                                        -- a reply that the store has lost
    reasserted = reasserted + (G - g)
    add(slice, G - g)
    g = G
    unattributed()
  elseif T > total then
    unattributed()
  end
  local n = min(B - b, g - b - x)
  if n > 0 then
    add(slice, -n)
    b, total = b + n, total + n
  end
  local latest = max(slice, ends)                      -- later, if the store has lost a statement
  for i = 21, args - 2, 2 do
    n = min(ARGV[i + 1] - x, g - b - x)
    if n > 0 then
      add(slice, -n)
      add(min(ARGV[i] + 0, latest, today), n)
      x = x + n
    end
  end
  if D > d then
    add(today, D - d)
    d, total = D, total + (D - d)
  end
  n = min(R, x + d) - y
  if n > 0 then
    local from = min(floor((into * 1000 - 1) / unit) - 21 - far, today)
    if from >= low then
      add(from, -n)
      total = total + n
    end
    y = y + n
  end
  if total > most then total = most end
end

-- What is unspent may be spent later.
if slice < today + far then
  if g - b - x > 0 then
    add(slice, -(g - b - x))
    add(today + far, g - b - x)
  end
  slice = today + far
end

-- The grant.
local clients, recovered, rest, take = present + (leaving and 0 or 1), ours and g - G or g, max(limit - sum, 0), 0
if want > 0 and rest + recovered >= least then
  local target = want
  if at < learn then
    target = max(need, min(want, max(floor(limit / 1000), 1)))
  elseif exact then
    if need > 0 and calls > 0 then target = need end
  else
    if peers < clients then peers = clients end
    if peers < 1 then peers = 1 end
    local part = floor(limit / peers)
    local base, free = max(min(floor(part / 3), max(5, floor(part / 20))), floor(part / 12)), rest + floor(idle / 6)
    if limit < 15 then base = min(part, 1) end           -- it has no room for three batches of five
    if pace > part then
      base = max(base, min(floor(part / 6), 100))
    else
      free = free + 6 * max(rest - floor(limit / 16), 0)
    end
    target = min(want, max(floor(free * min(max(pace, part) / limit, 1)), min(base, rest), need))
  end
  take = min(max(target - recovered, 0), rest, most - g)
  add(slice, take)
  g, total = g + take, total + take
  if total > most then total = most end
end
local grant, set = take + recovered, { 'h', '' }
spare = 0
local none = fresh and g == 0 and D == 0 and (want == 0 or leaving)  -- no account is needed
if none then
  name = 0
  if known then gone[1 + #gone] = mine end
else
  if not (leaving or unheard) then spare = max(min(g - b - x, (ours and stated or 0) + max(grant - need, 0)) - floor(min(pace, 1e15) * far / 20), 0) end  -- it will use that before its lease ends
  if not leaving then present = present + 1 end
  idle = min(idle + spare, most)
  local unspent = g - b - x
  local text = y + d > 0 and format('%d %d %d %d %d %d %d', name - since, slice - base, g, unspent, b, y, d)
    or b > 0 and format('%d %d %d %d %d', name - since, slice - base, g, unspent, b)
    or format('%d %d %d %d', name - since, slice - base, g, unspent)
  if leaving then text = '~' .. text end
  if spare > 0 then text = text .. format('+%d', unspent - spare) end
  if era > 0 then text = text .. format('@%d', era) end
  set[3], set[4] = mine, text
end

-- Messages come after the write, so that a server that refuses writes sends none: see sync. A rolling limit is never used up for
-- long, so nobody is told of that.
local others, short, some, again, mute = idle - spare, want > 0 and (sum >= limit or grant < max(need, 1)), 0, false, 0
if short and others > 0 and (need > 0 or calls > 0 or others > floor(limit / 100)) then
  some = 32
elseif short and waited and out > 0 and calls <= 4 then
  again, calls, cold = true, calls + 1, true
  some = calls <= 4 and 32 or 0                        -- or they are given up
elseif out == 0 and calls > 0 then
  calls, cold = 0, true
end
local r = state((ours and window ~= floor((slice + 21) * unit / 1000) and 2 or 0) + (at < learn and 4 or 0), slice, max(need - grant, 1))
if (alive or not none) and (next(dirty) or cold or swept or total ~= heard or set[4] ~= had or recovered + D > 0) then
  write(set)                                           -- a ring begins at its first charge, and a refusal writes nothing
end
if some > 0 then
  local list, found, set = call('HRANDFIELD', KEYS[1], 288, 'WITHVALUES'), { }, { 'h', '' }
  for i = 1, #list, 2 do
    local totals, s, unspent, plus, busy, of = match(list[i + 1], '^(~?%-?%d+ (%-?%d+) %d+ (%-?%d+)[%d ]*)(%+?)(%d*)@?(%d*)$')
    if totals and #list[i] > 2 and list[i] ~= mine and base + s >= low and (of == '' and 0 or of + 0) == era and plus ~= '' and again == (busy == '') then
      found[#found + 1] = { field = list[i], totals = totals, held = again and 0 or unspent - busy, slice = base + s }
    end
  end
  table.sort(found, function(a, b) return a.held > b.held or a.held == b.held and a.field < b.field end)
  local covered, prefix = 0, match(KEYS[1], '^[^{]*')
  for i, one in ipairs(found) do
    if i > some or not again and covered >= others - covered and covered >= 2 * need then break end
    local process = match(one.field, '^%.?%.?(.*)$')
    local to = prefix .. 'reservoir:' .. (match(process, '^(.*)%.') or process)
    if type(redis.pcall('PUBLISH', to, format('1 %d 0 %d %s', floor((one.slice + 21) * unit / 1000), limit, KEYS[1]))) == 'table' then
      mute = 32
      break
    end
    if not again then
      covered, idle, out = covered + one.held, max(idle - one.held, 0), out + 1
      set[#set + 1], set[#set + 2] = one.field, one.totals .. (era > 0 and format('+@%d', era) or '+')
    end
  end
  if set[3] then
    called, calls, cold = at, 1, true
    write(set)
  end
end

local waits = out > 0 and (calls <= 4 or at - called < min(unit, 100000))
r[1], r[7], r[8], r[9], r[10], r[11], r[12], r[13], r[14] = r[1] + mute, grant, recovered, g, b, d, clients, reasserted, total
r[15], r[16], r[17], r[18] = max(sum - limit, 0), mute > 0 and 0 or max(idle - spare, 0), waits and out or 0, name
return r
