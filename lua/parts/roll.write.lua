-- write: the head and the account.

if lacks and kind + waits == 0 and frees > 0 then promised = min(promised + promise, limit) end  -- else it asks again before that
if turned and head and call('HLEN', KEYS[1]) > 64 then  -- accounts that have nothing in the ring go, some at a time
  local some, gone = call('HRANDFIELD', KEYS[1], 4, 'WITHVALUES'), { }
  for i = 1, #some, 2 do
    local away, g, a, plus = match(some[i + 1], '^(~?)(%d+) %d+ %d+ (%d+)[^+]*(%+?%d*)$')
    if away and some[i] ~= limiter and some[i] ~= 'head' and a + 10 < low then
      gone[#gone + 1] = some[i]
      if g == hgen then
        if away == '' then clients = max(clients - 1, 0) end
        if plus ~= '' and plus ~= '+' then idle, others = max(idle - plus, 0), max(others - plus, 0) end
      end
    end
  end
  if gone[1] then call('HDEL', KEYS[1], unpack(gone)) end
end
local figures = format('%d %d %d %d ', clients, used, top < low and 0 or top - low + 1, last)
local fields = { 'head', hgen .. ' ' .. figures .. asked .. ' ' .. before, nil, nil, nil, nil, nil, nil }
if promised > 0 or off > 0 or hold > 0 then
  fields[2] = fields[2] .. format(hold > 0 and ' %d %d!%d' or ' %d %d', promised, off, hold)
end
if limiter ~= '' then
  local account, first, final = (leaving and '~' or '') .. hgen .. ' ' .. life .. ' ' .. seq .. ' ' .. fasked, ring.first, ring.final
  if first then account = account .. format(' %d', first - fasked) end
  while first and first <= final do
    local n, times = done[first] or 0, 1
    while first + times <= final and (done[first + times] or 0) == n do times = times + 1 end
    account = account .. format(times > 1 and ' %d*%d' or ' %d', n, times)
    first = first + times
  end
  if held > 0 then account = account .. format('+%d', held) end
  fields[3], fields[4] = limiter, account
end
for g = 0, 4 do
  if ring[g] and ring[g][1] then fields[#fields + 1], fields[#fields + 2] = g, table.concat(ring[g], ',', 2, 9) end
end
local where, text = 'idle', ''                         -- a field of its own, so that none is long: Redis packs such hashes
if talk or idle > 0 or out > 0 or calls > 0 or told > 0 or at > 0 then
  fields[#fields + 1], fields[#fields + 2] = where, format('+%d %d %d %d %d', idle, out, calls, told, at)
end
call('HSET', KEYS[1], unpack(fields))
if turned or longer then call('PEXPIRE', KEYS[1], max(2 * length, hold - ms) + 1000) end  -- nothing counts for as long as that
if longer then
  local heard = redis.pcall('PUBLISH', match(KEYS[1], '^[^{]*') .. 'reservoir:', format('6 %d %s 0 %s', hold, hgen, KEYS[1]))
  if type(heard) == 'table' then mute = 32 end
end

local name, hend, wait = hgen, 0, need
need = others                                          -- a recall is of all
