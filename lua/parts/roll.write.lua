-- write: the head and the account, and whether to call idle tokens back.

local ms, held = floor(now / 1000), 0                  -- idle in this client, until it states again
local others, kind, sample, crowd, again, recalls, sent, mute = 0, 0, 256, 32, false, 1, 0, 0
if limiter ~= '' then
  if how % 4 < 2 and not leaving then
    held = max(grant - need, 0)
    if wgen == hgen then held = held + widle end
    held = min(held, most - (idle - spare))
  end
  others, idle = idle - spare, idle - spare + held
  if called then out, at = max(out - 1, 0), ms end
  if need > grant and others > 0 then                  -- in vain, mostly, while tokens are short: so less and less often
    local bucket = floor(length / 20)
    if ms - told > 2 * bucket then calls = 0 end
    told = ms
    if calls == 0 or ms - at >= bucket * 2 ^ min(calls - 1, 3) then kind, out, recalls = 1, 0, calls + 1 end
  end
end

local frees = 0
if lacks then
  local short, first = max(need - grant, 0), limiter == '' and need or least
  if promised == 0 then                                -- else what is free is others'
    short, first = min(short, max(short - (limit - used), 1)), first - (limit - used)
  end
  first = min(short, first)
  frees = leaves(promised + max(first, 1))
  if kind == 0 and frees > 0 then promised = min(promised + max(first, min(short, 1)), limit) end  -- else it asks again before that
elseif used >= limit then
  frees = leaves(1)
end

if bad then return redis.error_reply('BADSTATE the ring has counts that are none') end
if turned and head and call('HLEN', KEYS[1]) > 64 then  -- accounts that have nothing in the ring go, some at a time
  local some, gone = call('HRANDFIELD', KEYS[1], 4, 'WITHVALUES'), { }
  for i = 1, #some, 2 do
    local away, g, a, plus = match(some[i + 1], '^(~?)(%d+) %d+ %d+ (%d+)[^+]*(%+?%d*)$')
    if away and some[i] ~= limiter and some[i] ~= 'head' and a + 10 < low then
      gone[#gone + 1] = some[i]
      if g + 0 == hgen then
        if away == '' then clients = max(clients - 1, 0) end
        if plus ~= '' and plus ~= '+' then idle, others = max(idle - plus, 0), max(others - plus, 0) end
      end
    end
  end
  if gone[1] then call('HDEL', KEYS[1], unpack(gone)) end
end
local fields = { 'head', format('%d %d %d %d %d %d %d %d', hgen, clients, used, promised, asked, before, last, off) }
local where, text = 'idle', ''                         -- a field of its own, so that none is long: Redis packs such hashes
if talk or idle > 0 or out > 0 or calls > 0 or told > 0 or at > 0 then
  fields[3], fields[4] = where, format('+%d %d %d %d %d', idle, out, calls, told, at)
end
for g in pairs(changed) do fields[#fields + 1], fields[#fields + 2] = g, table.concat(parsed[g], ',') end
if limiter ~= '' then
  local account = format('%s%d %s %s %d', leaving and '~' or '', hgen, life, seq, fasked)
  if first then account = account .. format(' %d', first - fasked) end
  while first and first <= final do
    local n, times = done[first] or 0, 1
    while first + times <= final and (done[first + times] or 0) == n do times = times + 1 end
    account = account .. format(' %d', n)
    if times > 1 then account = account .. format('*%d', times) end
    first = first + times
  end
  if held > 0 then account = account .. format('+%d', held) end
  fields[#fields + 1], fields[#fields + 2] = limiter, account
end
call('HSET', KEYS[1], unpack(fields))
if turned then call('PEXPIRE', KEYS[1], 2 * length + 1000) end  -- nothing counts for as long as that

local name, hend = format('%d', hgen), 0
KEYS[3] = KEYS[1]
local wait, all = need, grant
local function reply()
  local r = { mute, raw, stop, hgen, used, off, all, limiter ~= '' and clients or 0, 0, mute == 0 and limiter ~= '' and idle - held or 0, mute == 0 and kind == 1 and out or 0, frees }
  for i = 1, #grants do r[#r + 1] = grants[i] end
  return r
end
need = others                                          -- a recall is of all
