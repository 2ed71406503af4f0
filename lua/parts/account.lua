-- account: set what the client was charged to what it says, and charge or give back the difference. What unread
-- replies granted goes by that, what an earlier statement gave back in vain is said again, and what a loss of data
-- took is charged.

local mine, grant, wrote = 0, 0, open and limiter ~= ''
if field and fend == hend and fgen == hgen then
  of = flife == life + 0
else
  left, spare, called = true, 0, false
end
if wrote then
  local claim = wmine
  mine = wmine + change
  if mine > most then mine = most end
  if mine < 0 or (wend ~= hend or wgen ~= hgen) and not runs then mine, claim = 0, 0 end
  local differ = mine
  if of then
    differ = mine - fmine
  elseif claimable > 0 and wend == stop then           -- charged to nobody known: claim it before anything goes back
    if claim > claimable then claim = claimable end
    claimable, used = claimable - claim, used - claim
  end
  used, sum = used + differ, sum + differ
  if used < 0 then used = 0 elseif used > most then used = most end
  if sum < 0 then sum = 0 elseif sum > most then sum = most end
  if not left then clients = clients - 1 end
  if how % 16 < 8 then clients = clients + 1 end
end
