-- write: an error at the first write means that nothing was written, so each right is needed by the first command that
-- a call makes, or less is admitted: a charge comes before its account, and a give-back after it.

local held, timed = 0, stop ~= had                     -- held: idle in this client, until it states again; timed: the end is written anew
if wrote and how % 4 < 2 and how % 16 < 8 then
  if wend == hend and wgen == hgen or runs then held = widle end
  if grant > need then held = held + (grant - need) end
  if held > most - (idle - spare) then held = most - (idle - spare) end
end
idle = idle - spare + held
if called then out = out - 1 end
local function header()
  local text = hgen > 0 and format('%d.%d %d %d', hend, hgen, sum, clients) or format('%d %d %d', hend, sum, clients)
  if claimable > 0 or before > 0 or exhausted > 0 then text = text .. format(' %d %d %d', claimable, before, exhausted) end
  if idle > 0 or calls > 0 or told > 0 then text = text .. format('+%d %d %d %d %d', idle, out, calls, told, at) end
  return text
end
local gone = format('%d', stop + 1000 + (length < 60000 and length or 60000))  -- all keys go at once: in a slot that moves, some alone serve nobody

if used > was and not timed then redis.call('SET', KEYS[1], format('%d', used), 'PXAT', gone) end
if wrote then
  local account = hgen > 0 and format('%s%d.%d %s %s %d', how % 16 < 8 and '' or '~', hend, hgen, life, seq, mine)
    or format('%s%d %s %s %d', how % 16 < 8 and '' or '~', hend, life, seq, mine)
  if held > 0 then account = account .. format('+%d', held) end
  redis.call('HSET', KEYS[3], 'head', header(), limiter, account)
  if began then
    -- Fields of old windows are void; to delete them only tidies. In a slot that moves they stay, because
    -- a key that is deleted there cannot be written again, and EXISTS is an error there.
    if head and redis.call('HLEN', KEYS[3]) > 64 and type(redis.pcall('EXISTS', KEYS[3] .. '-')) == 'number'
      and type(redis.pcall('UNLINK', KEYS[3])) == 'number' then
      redis.call('HSET', KEYS[3], 'head', header(), limiter, account)
    end
    redis.call('PEXPIREAT', KEYS[3], gone)
  end
elseif began and KEYS[3] then
  redis.call('HSET', KEYS[3], 'head', header())
  redis.call('PEXPIREAT', KEYS[3], gone)
elseif limiter ~= '' and head then                     -- nothing is open: a late copy of an earlier statement must not open a window
  redis.call('HSET', KEYS[3], limiter, format(hgen > 0 and '~0.%d %s %s 0' or '~0%.0s %s %s 0', hgen, life, seq))
end
if stop > 0 and timed then
  redis.call('SET', KEYS[2], format(stop % 1000 == 0 and '%d' or '%.3f', stop / 1000), 'PXAT', gone)
  redis.call('SET', KEYS[1], format('%d', used), 'PXAT', gone)
elseif stop > 0 and used < was then
  redis.call('SET', KEYS[1], format('%d', used), 'PXAT', gone)
end
