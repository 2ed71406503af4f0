-- single: a statement without an account charges all that it needs, or what was used above a charge in its window.

if limiter == '' then
  local grant = 0
  if change > 0 then
    if stop > 0 and wend == stop and wgen == gen then used = used + change end
    if used > most then used = most end
  elseif stop > 0 and used + need <= limit then
    used, grant = used + need, need
  elseif fresh then                                    -- a window opens at its first charge
    stop, used = 0, 0
  end
  if timed and stop > 0 then
    call('SET', KEYS[2], format(stop % 1000 == 0 and '%d' or '%.3f', stop / 1000), 'PXAT', gone)
    call('SET', KEYS[1], format('%d', used), 'PXAT', gone)
  elseif stop > 0 and used ~= was then
    call('SET', KEYS[1], format('%d', used), 'KEEPTTL')
  end
  if hold > 0 then return { mute, now, stop, stop > 0 and gen or hgen, used, 0, 0, 0, 0, 0, 0, hold * 1000 - now } end
  return { 0, now, stop, stop > 0 and gen or hgen, used, 0, grant }
end
