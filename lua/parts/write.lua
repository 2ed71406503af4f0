-- write: an error at the first write means that nothing was written, so each right is needed by the first command that
-- a call makes, or less is admitted: a charge comes before its account, and a give-back after it.

local held = 0                                         -- idle in this client, until it states again
if how % 4 < 2 and not leaving then
  if same or runs then held = widle end
  if grant > need then held = held + (grant - need) end
  if held > most - (idle - spare) then held = most - (idle - spare) end
end
idle = idle - spare + held
if called then out, at = out > 0 and out - 1 or 0, ms end  -- unless it was given up
local short, part = want > 0 and (used >= limit or grant < need or grant == 0), (length - length % 20) / 20
if out > 0 and (ms - at >= part or short and how % 64 >= 32) then out = 0 end

if used > was and not timed then call('SET', KEYS[1], format('%d', used), 'KEEPTTL') end
local own = format('%d', mine)
local all = sum == mine and own or format('%d', sum)
local where, text = 'head', clients == 1 and name .. ' ' .. all .. ' 1' or format('%s %s %d', name, all, clients)
if hold > 0 then text = text .. format('!%d', hold) end
if claimable > 0 or before > 0 or exhausted > 0 then text = text .. format(' %d %d %d', claimable, before, exhausted) end
local whole = text
if idle > 0 or calls > 0 or told > 0 then whole = text .. format('+%d %d %d %d %d', idle, out, calls, told, at) end
local account = (leaving and '~' or '') .. name .. ' ' .. life .. ' ' .. seq .. ' ' .. own
if held > 0 then account = account .. format('+%d', held) end
call('HSET', KEYS[3], 'head', whole, limiter, account)
if began then
  -- Fields of old windows are void; to delete them only tidies. In a slot that moves they stay, because
  -- a key that is deleted there cannot be written again, and EXISTS is an error there.
  if head and call('HLEN', KEYS[3]) > 64 and type(redis.pcall('EXISTS', KEYS[3] .. '-')) == 'number'
    and type(redis.pcall('UNLINK', KEYS[3])) == 'number' then
    call('HSET', KEYS[3], 'head', whole, limiter, account)
  end
  call('PEXPIREAT', KEYS[3], gone)
end
if timed then
  call('SET', KEYS[2], format(stop % 1000 == 0 and '%d' or '%.3f', stop / 1000), 'PXAT', gone)
  call('SET', KEYS[1], used == sum and all or format('%d', used), 'PXAT', gone)
elseif used < was then
  call('SET', KEYS[1], format('%d', used), 'KEEPTTL')
end
