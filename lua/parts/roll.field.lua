-- field: the account of the limiter.

local away, fgen, flife, fseq, fasked, ffirst, did, plus = '', -1, '', 0, 0, 0, '', ''
if field then
  away, fgen, flife, fseq, fasked, ffirst, did, plus = match(field, '^(~?)(%d+) (%d+) (%d+) (%d+) ?(%-?%d*)([^+]*)(%+?%d*)$')
  if not away then return redis.error_reply('BADSTATE the ring has a field that is no account') end
  fgen, fseq, fasked, ffirst = fgen + 0, fseq + 0, fasked + 0, ffirst ~= '' and ffirst + 0 or 0
  if flife == life and seq + 0 <= fseq or flife ~= life and life + 0 < flife + 0 then return { 4, raw, 0, 0, 0, off } end  -- it, or a later one, was here
end
