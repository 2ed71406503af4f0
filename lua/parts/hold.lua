-- hold: write the head, if the hold lasts longer now, or if a head begins that no account writes. All keys last as long as the hold.

local mute = 0
if KEYS[3] and (longer or began and limiter == '') then
  head = format(hold > 0 and '%s %d %d!%d' or '%s %d %d', name, sum, clients, hold)
  if claimable > 0 or before > 0 or exhausted > 0 then head = head .. format(' %d %d %d', claimable, before, exhausted) end
  if idle > 0 or calls > 0 or told > 0 then head = head .. format('+%d %d %d %d %d', idle, out, calls, told, at) end
  call('HSET', KEYS[3], 'head', head)
  if began then call('PEXPIREAT', KEYS[3], gone) end
end
if longer then
  local ends = format('%d', hold + 1000)
  call('PEXPIREAT', KEYS[3], ends, 'NX')
  for i = 1, 3 do
    if i < 3 then call('SET', KEYS[i], 0, 'NX', 'PXAT', ends) end
    call('PEXPIREAT', KEYS[i], ends, 'GT')
  end
  local heard = redis.pcall('PUBLISH', match(KEYS[1], '^[^{]*') .. 'reservoir:', format('6 %d %d 0 %s', hold, gen, KEYS[1]))
  if type(heard) == 'table' then mute = 32 end
end
