-- rolling: all calls of a rolling limit, of which no interval of a window's length sees more than the limit spent.
--
-- KEYS  1 {k}:roll   hash: h = "since last sum total present idle"; c = "length ahead learn void held until out at calls era",
--                    both without the zeros at their end; one field per slice that was used, named by the character 48 + the
--                    slice modulo 32: tokens that count in it; and one field per client, its name after a dot:
--                    "name slice granted spent returned refunded debt", without the zeros at its end, with a ~ before it if
--                    the client has left, and after it "+idle", or "+" if it was called to return what is idle and has not
--                    stated since, and "@era". Fields of another era are void, and deleted now and then.
--                    since: when the limit got its length, Unix us, by the key's clock; last: the key's clock at the last
--                    write, which never goes back; ahead: of it before the server's clock; learn: until when grants are small;
--                    all in us after since, or 0; at: the same, and 1 more: when clients were called last; void: as at: accounts
--                    that were named until then are void; sum: of the slices and held; total: tokens granted, charged and given back,
--                    cumulative; present: clients that have not left; idle: tokens that clients hold and do not need, at
--                    most; length: of a window, ms; held: tokens of a window of another length that may be unspent until
--                    until; out: clients that were called and have not stated since; calls: how often these were called,
--                    the last of them at least; name: when the account began, us after since; slice: the last in which what is
--                    unspent may be spent, after that of since
--       2 {k}        if it is there, a window of a plain limit is open: conflict; may be left out
-- ARGV  1 op            sync, take, check, settle or reset
--       2 limit         tokens per window
--       3 length        of a window, ms; a slice is a 20th
--       4 open          length that the caller takes for the window's, ms, if the limit has another since; else 0
--   take:
--       5 n             tokens, 1 to limit
--       6 within        how long the call may take, us, at most a quarter of the window
--   settle:
--       5 tokens        to charge, even above the limit; negative = to give back
--       6 window        of the reply by which they were charged, Unix ms
--   sync:
--       5 client        its name
--       6 want          tokens; 0 = only state the account
--       7 need          tokens of want that callers wait for
--       8 least         tokens that the first of them needs: with less, nothing new is granted
--       9 how           the sum of: 1 = grant want as it is, 2 = the client gets no messages, 4 = it has given those that
--                       were called time to answer, 8 = it does not count until it asks again
--    then, unless all of these are 0:
--      10 peers         clients in the last reply; 0 = unknown
--      11 pace          tokens that the client would use in a whole window at its present rate
--      12 account       in the last reply; 0 = it has none
--      13 window        in the last reply, Unix ms
--      14 granted       to it by the replies that it got, tokens; all totals are of the account
--      15 returned      by it, of these
--      16 debt          tokens that it used without a grant
--      17 total         in the last reply; 0 = unknown
--      18 used          tokens charged at that time, less those that this statement is the first to return
--      19 idle          tokens that it holds and that nobody there waits for
--      20 refunded      tokens that requests gave back, of those that were spent or debt
--      21 refunded in   the earliest window of a reply by which a part of these was charged that was not stated before, Unix ms
--    then for each slice in which tokens were spent since, ascending:
--          slice        or a later one
--          spent        tokens by its end, in all
--   then:
--      -2 not after     Unix us; later than this do nothing; 0 = whenever
--      -1 now           Unix us; empty = the server's clock
-- Reply { flags (1 late, 2 carried, 4 learning, 8 allowed or done, 16 conflict: nothing was done because of the length or of KEYS[2], 32 the user
--         may not PUBLISH; if the answer of take is no: 64 tokens lie idle in clients, 128 clients were called to return theirs and have not
--         answered), now us, window ms (when what is granted counts no more), remaining, length of the window ms if it is not the limit's, else 0,
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

-- As in sync, numbers become text by %d, and text numbers by + 0, on the path of every call.
local floor, max, min, abs, format, match, char, call = math.floor, math.max, math.min, math.abs, string.format, string.match, string.char, redis.call
local most = 9007199254740991                          -- the largest exact integer of a double
if format('%d', 4294967296) ~= '4294967296' then return redis.error_reply('BADSTATE the server has no integers of 64 bits') end

local args, op, limit, length = #ARGV, ARGV[1], ARGV[2] + 0, ARGV[3] + 0
local syncs, now, real = op == 'sync', ARGV[args], nil
if now ~= '' then
  now = now + 0
else
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
  real = now
end
local function reply(flags, window, remaining, other, left, frees)
  if syncs then return { flags, now, window, remaining, other, left, frees, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0 } end
  return { flags, now, window, remaining, other, left, frees }
end
local late = ARGV[args - 1] + 0
if late > 0 and now > late then return reply(1, 0, 0, 0, 0, 0) end

-- Read and judge everything before the first write: a script is not rolled back. The slices that a call needs are known only
-- when the head is; those that most calls need are read with it.
local function int(text, what)
  if not text or text == '' then return 0 end
  local n = tonumber(text)
  if n and n == floor(n) and abs(n) <= most then return n end
  error(redis.error_reply('BADSTATE a ' .. what .. ' is not an integer'))
end
local mine, unit = syncs and '.' .. ARGV[5] or 'h', 50 * length
local first = floor(now / unit)
local second = op == 'take' and floor((now + ARGV[6]) / unit) or first + 4
local got = call('HMGET', KEYS[1], 'h', 'c', mine, char(48 + first % 32), char(48 + second % 32))
if op ~= 'settle' and KEYS[2] and call('GET', KEYS[2]) then return reply(16, 0, 0, 0, 0, 0) end

local since, last, sum, total, present, idle = now, now, 0, 0, 0, 0
local span, ahead, learn, void, held, til, out, called, calls, era = length, 0, 0, 0, 0, 0, 0, 0, 0, 0
local count, dirty, cold, alive, low = { }, { }, false, false, nil
if got[1] then
  local a, b, c, d, e, f = match(got[1], '^(%d+) (%d+) ?(%d*) ?(%d*) ?(%d*) ?(%d*)$')
  since, last, sum, total, present, idle = int(a, 'head'), int(b, 'head'), int(c, 'sum'), int(d, 'sum'), int(e, 'sum'), int(f, 'sum')
  span = tonumber(got[2])
  if not span then
    local g, h, i
    span, a, b, c, d, e, f, g, h, i = match(got[2] or '', '^(%d+) (%d*) ?(%d*) ?(%d*) ?(%d*) ?(%d*) ?(%d*) ?(%d*) ?(%d*) ?(%d*)$')
    ahead, learn, void, held, til = int(a, 'head'), int(b, 'head'), int(c, 'head'), int(d, 'head'), int(e, 'head')
    out, called, calls, era = int(f, 'head'), int(g, 'head'), int(h, 'head'), int(i, 'head')
  end
  span = int(span, 'head')
  if since == 0 or span < 20 then return redis.error_reply('BADSTATE the head is not one') end
  last, unit = since + last, 50 * span
  if learn > 0 then learn = since + learn end
  if void > 0 then void = since + void - 1 end
  if til > 0 then til = since + til end
  if called > 0 then called = since + called - 1 end
  low = floor(last / unit) - 20
  alive = floor((now + ahead) / unit) <= low + 45 or now + ahead < til
end

-- The slices: read those that are not known yet, read one, and count n more tokens in one, or fewer.
local function read(from, to)
  local names, slots = { }, { }
  for s = from, to do
    if not count[s % 32] then names[#names + 1], slots[#slots + 1] = char(48 + s % 32), s % 32 end
  end
  if not names[1] then return end
  local values = call('HMGET', KEYS[1], unpack(names))
  for i, s in ipairs(slots) do count[s] = int(values[i], 'slice') end
end
local function slot(s)
  if not count[s % 32] then read(s, s) end
  return count[s % 32]
end
local function add(s, n)
  if s < low then return end
  local c = slot(s)
  n = max(min(n, most - sum, most - c), -sum, -most - c)
  if n ~= 0 then count[s % 32], sum, dirty[s % 32] = c + n, sum + n, true end
end
-- wipe forgets all slices and accounts.
local function wipe()
  read(0, 31)
  for s = 0, 31 do
    if count[s] ~= 0 then count[s], dirty[s] = 0, true end
  end
  present, idle, out, called, calls, learn, held, til, era, cold = 0, 0, 0, 0, 0, 0, 0, 0, era + 1, true
end

if not alive then
  if op == 'settle' then return reply(0, 0, 0, 0, 0, 0) elseif op == 'check' or op == 'reset' then return reply(0, 0, limit, 0, 0, 0) end
  if got[1] or call('HRANDFIELD', KEYS[1], 1)[1] then  -- all that is over, or the head is lost
    if not got[1] then era = now end
    wipe()
  else
    for s = 0, 31 do count[s] = 0 end
  end
  since, last, sum, total, span, unit, ahead, void, cold = now, now, 0, 0, length, 50 * length, 0, 0, true
  low = floor(now / unit) - 20
elseif span == length then
  count[first % 32], count[second % 32] = int(got[4], 'slice'), int(got[5], 'slice')
end

-- Move to now, by the key's clock. That never goes back: if the server's does, tokens of later slices would never count.
local at, before = max(now + ahead, last), low
if at - now ~= ahead then ahead, cold = at - now, true end
last = at
local to = floor(at / unit) - 20
if to > low then
  read(low, min(to, low + 32) - 1)
  for s = low, min(to, low + 32) - 1 do
    local n = count[s % 32]
    if n ~= 0 then sum, count[s % 32], dirty[s % 32] = min(max(sum - n, 0), most), 0, true end
  end
  low = to
end
if til > 0 and at >= til then sum, held, til, cold = max(sum - held, 0), 0, 0, true end

-- state is the reply for a request of need tokens that counts up to a slice.
local function state(flags, slice, need)
  local window, rest, frees = floor(((slice + 1) * unit + span * 1000) / 1000), max(limit - sum, 0), 0
  if need > rest then
    local n, s = min(sum - limit + need, most), low
    while s < low + 31 do
      if not count[s % 32] then read(s, min(s + 7, low + 31)) end
      n = min(n - count[s % 32], most)
      if n <= 0 then break end
      s = s + 1
    end
    frees = (s + 21) * unit - at
  end
  return reply(flags, window, rest, span ~= length and span or 0, max(window * 1000 - at, 0), frees)
end

if op == 'check' then
  if sum == 0 then return reply(0, 0, limit, 0, 0, 0) end
  read(low, low + 31)
  local s = low + 31
  while s > low and count[s % 32] <= 0 do s = s - 1 end
  return state(0, s, 1)
end
if span ~= length then
  if op == 'settle' then return reply(0, 0, 0, 0, 0, 0) end
  if ARGV[4] + 0 ~= span and at - since < max(span, length) * 1000 and sum > 0 then
    local r = state(16, low + 20, 0)
    if syncs then r[13] = present end
    return r
  end
  -- A window of another length takes over all that counts: as spent just now, but for what may be unspent in leases.
  local kept, ends = held, 0
  for s = low + 20, low + 31 do kept = min(max(kept + slot(s), 0), sum) end
  if kept > 0 then ends = max(til, at + span * 300) + length * 1050 end
  wipe()
  held, til, since, void, span, unit = kept, ends, at, at, length, 50 * length
  low = floor(at / unit) - 20
  count[(low + 20) % 32], dirty[(low + 20) % 32] = sum - held, true
end
local today = low + 20

local function waits() return out > 0 and (calls <= 4 or at - called < min(unit, 100000)) end
local function slice_of(window) return window > 9000000000000 and most or floor((window * 1000 - span * 1000 + unit - 1) / unit) - 1 end
local function moved(n) total = min(total + n, most) end

-- The first write is one HSET, so that an error on its line means that nothing was written.
local function head()
  return idle > 0 and format('%d %d %d %d %d %d', since, last - since, sum, total, present, idle)
    or present > 0 and format('%d %d %d %d %d', since, last - since, sum, total, present)
    or format('%d %d %d %d', since, last - since, sum, total)
end
local function tail()
  if ahead + learn + void + held + til + out + calls + era == 0 then return format('%d', span) end
  local function after(t) return t > 0 and t - since or 0 end
  local text = format('%d %d %d %d %d %d %d %d %d %d', span, ahead, after(learn), void > 0 and void - since + 1 or 0, held, after(til), out, called > 0 and called - since + 1 or 0, calls, era)
  while string.sub(text, -2) == ' 0' do text = string.sub(text, 1, -3) end
  return text
end
local function write(name, text)
  local set = { 'h', head() }
  if cold then set[3], set[4] = 'c', tail() end
  local n = #set
  for s in pairs(dirty) do
    set[n + 1], set[n + 2] = char(48 + s), format('%d', count[s])
    n = n + 2
  end
  if text then set[n + 1], set[n + 2] = name, text end
  call('HSET', KEYS[1], unpack(set))
  if cold or floor(low / 5) ~= floor(before / 5) then    -- with five slices to spare
    local t = not real and call('TIME')
    call('PEXPIREAT', KEYS[1], format('%d', ((real or t[1] * 1000000) + max((low + 52) * unit, til) - at) / 1000 + 1000))
  end
end
local prefix, tag = match(KEYS[1], '^([^{]*)(.*):roll$')
local function publish(process, text) return type(redis.pcall('PUBLISH', prefix .. 'reservoir:' .. process, text .. prefix .. tag)) ~= 'table' end

if op == 'take' then
  local n = ARGV[5] + 0
  if sum + n > limit then return state((idle > 0 and 64 or 0) + (waits() and 128 or 0), low + 20, n) end
  local s = floor((at + ARGV[6]) / unit)
  add(s, n)
  moved(n)
  write()
  return state(8, s, 0)
elseif op == 'settle' then
  local n, window = ARGV[5] + 0, ARGV[6] + 0
  local from = min(slice_of(window) - 5, low + 20)
  if window * 1000 < at or n < 0 and from < max(low, floor(void / unit) + 1) then return reply(0, 0, 0, 0, 0, 0) end
  if n < 0 then
    add(from, n)
  else
    add(low + 20, n)
    moved(n)
  end
  write()
  return reply(8, 0, max(sum - limit, 0), 0, 0, 0)
elseif op == 'reset' then
  wipe()
  sum, void = 0, at
  write()
  return state(publish('', '4 0 0 ') and 0 or 32, low + 20, 0)
end

-- The statement.
local _, _, _, _, _, want, need, least, how = unpack(ARGV, 1, 9)
want, need, least = want + 0, need + 0, least + 0
local exact, unheard, waited, leaving = how % 2 == 1, how % 4 > 1, how % 8 > 3, how + 0 > 7
local peers, pace, account, window, G, B, D, T, used, stated, R, into = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
local last_pair = args - 2
if args > 11 then
  peers, pace, account, window, G, B = ARGV[10] + 0, ARGV[11] + 0, ARGV[12] + 0, ARGV[13] + 0, ARGV[14] + 0, ARGV[15] + 0
  D, T, used, stated, R, into = ARGV[16] + 0, ARGV[17] + 0, ARGV[18] + 0, ARGV[19] + 0, ARGV[20] + 0, ARGV[21] + 0
end
local base = floor(since / unit)

-- A field of a client: what it has, or nothing if it is void or not of our form.
local function entry(text)
  local away, n, s, g, x, b, y, d, plus, i, of = match(text, '^(~?)(%-?%d+) (%-?%d+) ?(%d*) ?(%d*) ?(%d*) ?(%d*) ?(%d*)(%+?)(%d*)@?(%d*)$')
  if not n then return nil, true end
  if (of == '' and 0 or of + 0) ~= era then return nil end
  return { name = since + n, slice = base + s, there = away == '' and 1 or 0, called = plus == '+' and i == '' and 1 or 0, spare = int(i, 'account'),
    granted = g, spent = x, returned = b, refunded = y, debt = d }
end
local function forget(a)
  idle, present = max(idle - a.spare, 0), max(present - a.there, 0)
  if a.called > 0 then out, cold = max(out - 1, 0), true end
end

-- The account. What was granted to one that is over counts no more and must not be spent, so another one begins; its client may
-- not know of that yet, and then has used nothing of it. An account that should be there was lost.
local known, foreign = nil, false
if got[3] then
  known, foreign = entry(got[3])
  if foreign then return redis.error_reply('BADSTATE an account is none') end
end
local name, slice, g, x, b, y, d = 0, low, 0, 0, 0, 0, 0
if known then name, slice, g, x, b, y, d = known.name, known.slice, int(known.granted, 'account'), int(known.spent, 'account'), int(known.returned, 'account'), int(known.refunded, 'account'), int(known.debt, 'account') end
local untouched, current, ours, fresh = b + x + y + d == 0, known and slice >= low, false, false
local live = account > void and window * 1000 > at and slice_of(window) < low + 32
if current and account ~= 0 and account < name and not untouched then  -- nobody waits for the reply
  write()
  local r = state(0, slice, 1)
  r[13], r[19] = 0, name
  return r
end
if known then forget(known) end
local reasserted = 0
-- What others were granted, and spent, and the store has lost.
local function unattributed()
  if at >= learn + span * 1000 then learn, cold = at + 5 * unit, true end
  if T > total then
    if used > sum then add(floor(learn / unit), used - sum) end
    total = T
  end
end
if current and (account == name or account < name and untouched) then
  ours = account == name
elseif live and account > name then
  name, slice, g, b, y, d = account, min(slice_of(window), today + 5), G, B, R, D
  x = last_pair > 21 and ARGV[last_pair] + 0 or 0
  reasserted, ours = max(g - b - x, 0), true
  add(slice, reasserted)
  unattributed()
else
  fresh = not current
  name, slice, g, x, b, y, d = min(max(at, name + 1, void + 1), most), low, 0, 0, 0, 0, 0
end

-- Delete accounts that are over, because no window ends that would void them all.
local gone = { }
if not known or floor(low / 5) ~= floor(before / 5) then
  local some = alive and call('HRANDFIELD', KEYS[1], 64, 'WITHVALUES') or gone
  for i = 1, #some, 2 do
    if string.byte(some[i]) == 46 and some[i] ~= mine then
      local a, other = entry(some[i + 1])
      if a and a.slice < low then forget(a) end
      if not other and (not a or a.slice < low) then gone[#gone + 1] = some[i] end
    end
  end
end

if ours then
  if G > g then                                        -- a reply that the store has lost
    add(slice, G - g)
    reasserted, g = reasserted + (G - g), G
    unattributed()
  elseif T > total then
    unattributed()
  end
  local n = min(B - b, g - b - x)
  if n > 0 then
    add(slice, -n)
    b = b + n
    moved(n)
  end
  local latest = window > 0 and max(slice, slice_of(window)) or slice  -- later, if the store has lost a statement
  for i = 22, last_pair, 2 do
    n = min(ARGV[i + 1] - x, g - b - x)
    if n > 0 then
      add(slice, -n)
      add(min(ARGV[i] + 0, latest, today), n)
      x = x + n
    end
  end
  if D > d then
    add(today, D - d)
    moved(D - d)
    d = D
  end
  n = min(R, x + d) - y
  if n > 0 then
    local from = min(slice_of(into) - 5, today)
    if from >= low then
      add(from, -n)
      moved(n)
    end
    y = y + n
  end
end

-- What is unspent may be spent later.
local till = max(slice, today + 4)
if till ~= slice and g - b - x > 0 then
  add(slice, -(g - b - x))
  add(till, g - b - x)
end
slice = till

-- The grant.
local clients, recovered, rest, take = present + (leaving and 0 or 1), ours and g - G or g, max(limit - sum, 0), 0
if rest + recovered >= least and want > 0 then
  local target = want
  if at < learn then
    target = max(need, min(want, max(floor(limit / 1000), 1)))
  elseif exact then
    if need > 0 and calls > 0 then target = need end
  else
    local peers = max(clients, peers, 1)
    local part = floor(limit / peers)
    local least = min(max(min(floor(part / 3), max(5, floor(part / 20))), floor(part / 13)), rest)
    local free = rest + floor(idle / 6)
    target = min(want, max(floor(free * min(max(pace, part) / limit, 1)), least, need))
  end
  take = min(max(target - recovered, 0), rest, most - g)
end
add(slice, take)
moved(take)
g = g + take
local grant, held_by = take + recovered, 0
local none = fresh and g == 0 and D == 0 and (want == 0 or leaving)  -- no account is needed
local text
if none then
  name = 0
  if got[3] then gone[#gone + 1] = mine end
else
  if not (leaving or unheard) then held_by = max(min(g - b - x, (ours and stated or 0) + max(grant - need, 0)) - floor(pace / 5), 0) end  -- it will use that before its lease ends
  if not leaving then present = present + 1 end
  idle = min(idle + held_by, most)
  text = (leaving and '~' or '')
    .. (y + d > 0 and format('%d %d %d %d %d %d %d', name - since, slice - base, g, x, b, y, d)
      or b > 0 and format('%d %d %d %d %d', name - since, slice - base, g, x, b)
      or x > 0 and format('%d %d %d %d', name - since, slice - base, g, x)
      or format('%d %d %d', name - since, slice - base, g))
  if held_by > 0 then text = text .. format('+%d', held_by) end
  if era > 0 then text = text .. format('@%d', era) end
end
if none and not alive then                             -- a ring begins at its first charge
  local r = state(0, slice, max(need - grant, 1))
  r[13] = clients
  return r
end

-- Messages come after the write, so that a server that refuses writes sends none: see sync. A rolling limit is never used up for
-- long, so nobody is told of that.
local others, some, again, mute = idle - held_by, false, false, 0
if want > 0 and (sum >= limit or grant < max(need, 1)) and others > 0 and (need > 0 or calls > 0 or others > floor(limit / 100)) then
  some = 32
elseif want > 0 and (sum >= limit or grant < max(need, 1)) and waited and out > 0 and calls <= 4 then
  some, again, calls, cold = 32, true, calls + 1, true
  if calls > 4 then some = false end                   -- they are given up
elseif out == 0 and calls > 0 then
  calls, cold = 0, true
end
write(mine, text)
if gone[1] then call('HDEL', KEYS[1], unpack(gone)) end
if some then
  local list, found, sent, covered, fields = call('HRANDFIELD', KEYS[1], 288, 'WITHVALUES'), { }, 0, 0, { }
  for i = 1, #list, 2 do
    local a = string.byte(list[i]) == 46 and list[i] ~= mine and entry(list[i + 1])
    if a and a.slice >= low and (again and a.called > 0 or not again and a.spare > 0) then
      a.field, a.text = list[i], list[i + 1]
      found[#found + 1] = a
    end
  end
  table.sort(found, function(a, b) return not again and a.spare > b.spare or (again or a.spare == b.spare) and a.field < b.field end)
  for i, a in ipairs(found) do
    if i > some or not again and covered >= others - covered and covered >= 2 * need then break end
    local to = string.sub(a.field, 2)
    if not publish(match(to, '^(.*)%.') or to, format('1 %d %d ', floor(((a.slice + 1) * unit + span * 1000) / 1000), limit)) then
      mute = 32
      break
    end
    sent = sent + 1
    if not again then
      covered, idle = covered + a.spare, max(idle - a.spare, 0)
      fields[#fields + 1], fields[#fields + 2] = a.field, match(a.text, '^[^+]*') .. '+' .. (match(a.text, '@%d+$') or '')
    end
  end
  if fields[1] then
    called, calls, out = at, 1, out + sent
    call('HSET', KEYS[1], 'h', head(), 'c', tail(), unpack(fields))
  end
end

local r = state((ours and window ~= floor(((slice + 1) * unit + span * 1000) / 1000) and 2 or 0) + (at < learn and 4 or 0) + mute, slice, max(need - grant, 1))
r[8], r[9], r[10], r[11], r[12], r[13], r[14], r[15] = grant, recovered, g, b, d, clients, reasserted, total
r[16], r[17], r[18], r[19] = max(sum - limit, 0), mute > 0 and 0 or max(idle - held_by, 0), waits() and out or 0, name
return r
