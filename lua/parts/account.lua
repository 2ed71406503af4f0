-- account: set what the client was charged to what it says, and charge or give back the difference. What unread
-- replies granted goes by that, what an earlier statement gave back in vain is said again, and what a loss of data
-- took is charged.

local leaving = how % 16 >= 8
if stop == 0 then                                      -- nothing is open: a late copy of an earlier statement must not open a window
  if not head and leaving and window == '0' then       -- it has heard of no reply, though there were statements
    call('HSET', KEYS[3], 'head', '0 0 0')
    call('PEXPIREAT', KEYS[3], format('%d', ms + length + 1000))
    head = true
  end
  if head then call('HSET', KEYS[3], limiter, format(hgen > 0 and '~0.%d %s %s 0' or '~0%.0s %s %s 0', hgen, life, seq)) end
  if hold > 0 then return { mute, now, 0, hgen, 0, 0, 0, 0, 0, 0, 0, hold * 1000 - now } end
  return { 0, now, 0, hgen, 0 }
end
same = wend == hend and wgen == hgen
if fname ~= name then left, spare, called = true, 0, false end
if spare > idle then spare = idle end                  -- a field of another program's
local mine, claim = wmine + change, wmine
if mine > most then mine = most end
if mine < 0 or not same and not runs then mine, claim = 0, 0 end
local differ = mine
if fname == name and flife == life then
  differ = mine - fmine
elseif claimable > 0 and wend == stop then             -- charged to nobody known: claim it before anything goes back
  if claim > claimable then claim = claimable end
  claimable, used = claimable - claim, used - claim
end
used, sum = used + differ, sum + differ
if used < 0 then used = 0 elseif used > most then used = most end
if sum < 0 then sum = 0 elseif sum > most then sum = most end
if not left then clients = clients - 1 end
if not leaving then clients = clients + 1 end
