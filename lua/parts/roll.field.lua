-- field: the account of the limiter.

local away, fgen, flife, fseq, fasked, did, plus = '', -1, 0, 0, 0, '', ''
if field then
  away, fgen, flife, fseq, fasked, did, plus = match(field, '^(~?)(%d+) (%d+) (%d+) (%d+)([ %d.]*)(%+?%d*)$')
  if not away then return redis.error_reply('BADSTATE the ring has a field that is no account') end
  fgen, flife, fseq, fasked = fgen + 0, flife + 0, fseq + 0, fasked + 0
  if life < flife or life == flife and seq <= fseq then return { 4, raw, 0, 0, 0, off } end  -- it, or a later one, was here
end
