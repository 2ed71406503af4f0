-- field: the account of the limiter.

local away, fgen, flife, fseq, fasked, did, plus = '', '', '', 0, '0', '', ''
if field then
  away, fgen, flife, fseq, fasked, did, plus = match(field, '^(~?)(%d+) (%d+) (%d+) (%d+)([^+]*)(%+?%d*)$')
  if not away then return redis.error_reply('BADSTATE the ring has a field that is no account') end
  fseq = fseq + 0
  if flife == life and seq + 0 <= fseq or flife ~= life and life + 0 < flife + 0 then return { 4, raw, 0, 0, 0, off } end  -- it, or a later one, was here
end
