-- write: an error at the first write means that nothing was written, so each right is needed by the first command that
-- a call makes, or less is admitted: a charge comes before its account, and a give-back after it.

local function header()
  local text = format('%d %d %d %d %d %d %d', hend, hgen, sum, claimable, clients, before, exhausted)
  if idle > 0 or calls > 0 or told > 0 then text = text .. format(' %d %d %d %d %d', idle, out, calls, told, at) end
  return text
end
local held = 0                                         -- idle in this client, until it states again
if wrote and not (deaf or leaving) then
  held = (wend == hend and wgen == hgen or runs) and widle or 0
  if grant > need then held = held + (grant - need) end
  if held > most - (idle - spare) then held = most - (idle - spare) end
end
idle = idle - spare + held
if called then out = out - 1 end
local gone = format('%d', stop + 1000)
local function charge() redis.call('SET', KEYS[1], format('%d', used), 'PXAT', gone) end

local timed = stop ~= had                              -- the end is written anew
if stop > 0 and used > was and not timed then charge() end
if wrote then
  local account = format('%d %d %d %d %d %d', hend, hgen, life, seq, mine, grant)
  if leaving then account = '~' .. account end
  if held > 0 then account = account .. format('+%d', held) end
  redis.call('HSET', KEYS[3], 'head', header(), limiter, account)
  if began and own[1] and redis.call('HLEN', KEYS[3]) > 64 and type(redis.pcall('EXISTS', KEYS[3] .. '-')) == 'number' then
    -- Fields of old windows are void; to delete them only tidies. In a slot that moves they stay, because
    -- a key that is deleted there cannot be written again, and EXISTS is an error there.
    if type(redis.pcall('UNLINK', KEYS[3])) == 'number' then redis.call('HSET', KEYS[3], 'head', header(), limiter, account) end
  end
elseif limiter ~= '' and head then                     -- nothing is open: a late copy of an earlier statement must not open a window
  redis.call('HSET', KEYS[3], limiter, format('~0 %d %d %d 0 0', hgen, life, seq))
elseif began or head and header() ~= head then
  redis.call('HSET', KEYS[3], 'head', header())
end
if began then redis.call('PEXPIREAT', KEYS[3], format('%d', hend + 1000 + min(length, 60000))) end
if stop > 0 and timed then
  redis.call('SET', KEYS[2], format(stop % 1000 == 0 and '%d' or '%.3f', stop / 1000), 'PXAT', gone)
  charge()
elseif stop > 0 and used < was then
  charge()
end
