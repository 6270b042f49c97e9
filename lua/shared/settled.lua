-- settled.lua: may an entry leave the stream, or does another group still need it?

local function other_groups(stream, group)
  local others = {}
  for _, row in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local info = {}
    for i = 1, #row, 2 do info[row[i]] = row[i + 1] end
    if info.name ~= group then others[#others + 1] = info end
  end
  return others
end

-- XDEL those of ids (which group has acknowledged) that every other group has read and settled.
local function delete_settled(stream, group, ids)
  if #ids == 0 then return end
  local others = other_groups(stream, group)
  local free = ids
  if #others > 0 then
    free = {}
    for _, id in ipairs(ids) do
      local needed = false
      for _, other in ipairs(others) do
        if id_after(id, other['last-delivered-id'])
          or redis.call('XPENDING', stream, other.name, id, id, 1)[1] then
          needed = true
          break
        end
      end
      if not needed then free[#free + 1] = id end
    end
  end
  if #free > 0 then redis.call('XDEL', stream, unpack(free)) end
end
