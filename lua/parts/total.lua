-- total: what counts, and until when.

local top, stop = ring.top, 0                          -- the last bucket that has tokens
used = ring.used
while ring.shrunk and top >= low and group(top)[top % 8 + 2] == '0' do top = top - 1 end
if top >= low then
  stop = ((top + 21) * unit + 999) / 1000
  stop = stop - stop % 1
end
