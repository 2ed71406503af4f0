-- reply: the figures, before what it grants.

reply[1], reply[2], reply[3], reply[4], reply[5], reply[6], reply[12] = mute, raw, stop, gen, used, off, frees
if limiter ~= '' then reply[8] = clients end
if hold > 0 then
  reply[9] = hold * 1000 - now
elseif limiter ~= '' and mute == 0 then
  reply[10], reply[11] = idle - held, kind == 1 and out or waits
end
return reply
