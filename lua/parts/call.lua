-- call: a message of the kind, if there is one, to other clients, the largest holders first if it is a recall.

if kind > 0 then
  local all = clients > 32 and (kind == 2 or kind == 3 and rest > math.floor(clients / 4))  -- one message to all
  local some, found = all and { } or call('HRANDFIELD', KEYS[#KEYS], sample, 'WITHVALUES'), { all and { name = '' } or nil }
  local mark = name .. ' '
  for i = 1, #some, 2 do
    local name = some[i]
    if name ~= limiter and name ~= 'head' and not found[name] then
      local away, figures, plus, has = match(some[i + 1], '^(~?)([^+]+)(%+?)(%d*)$')
      if figures and string.sub(figures, 1, #mark) == mark then
        local one = { name = name, figures = away .. figures, held = tonumber(has) or 0 }
        if kind > 1 and away == '' or again and plus ~= '' and has == '' or kind == 1 and not again and one.held > 0 then
          found[#found + 1], found[name] = one, true
        end
      end
    end
  end
  if kind == 1 and not again then
    table.sort(found, function(a, b) return a.held > b.held or a.held == b.held and a.name < b.name end)
  end
  local fields, covered = { }, 0
  local message = format('%d %d %d %d %s', kind, hend, hgen, limit, KEYS[1])
  for i, one in ipairs(found) do
    if i > crowd or kind == 1 and not again and covered >= others - covered and covered >= 2 * need then break end
    local to = match(KEYS[1], '^[^{]*') .. 'reservoir:' .. (match(one.name, '^(.*)%.') or one.name)
    if type(redis.pcall('PUBLISH', to, message)) == 'table' then
      mute = 32
      break
    end
    sent = sent + 1
    if kind == 1 and not again then
      covered, idle = covered + one.held, math.max(idle - one.held, held)
      fields[#fields + 1], fields[#fields + 2] = one.name, one.figures .. '+'
    end
  end
  if fields[1] then at, calls, out = out > 0 and at or ms, recalls, out + sent end
  if sent > 0 or mute == 0 then call('HSET', KEYS[#KEYS], where, text .. format('+%d %d %d %d %d', idle, out, calls, told, at), unpack(fields)) end
end
