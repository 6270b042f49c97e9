-- fence.lua: is this delivery still the caller's?

local MINE, GONE, LOST = 1, 0, -1

-- XPENDING rows from first to last, of one consumer if it is named; none when the stream or the group is gone.
local function pending_rows(stream, group, first, last, count, consumer)
  local asked = { stream, group, first, last, count, consumer }
  local rows = redis.pcall('XPENDING', unpack(asked))
  if rows.err then
    if string.find(rows.err, 'NOGROUP', 1, true) then return {} end
    return redis.call('XPENDING', unpack(asked)) -- raises it with its code
  end
  return rows
end

-- MINE: consumer holds the entry, in its count-th delivery. GONE: it is not pending. LOST: anything else.
-- The count is part of the fence: the same consumer may hold a later delivery of the same entry.
local function fence(stream, group, consumer, id, count)
  local row = pending_rows(stream, group, id, id, 1)[1]
  if not row then return GONE end
  if row[2] == consumer and row[4] == count then return MINE end
  return LOST
end

-- The fence of n entries at once: their IDs, a code for each, and the IDs of those that are MINE. joined holds the IDs
-- with blanks between; counts those delivery counts that are not 1.
--
-- One range over what the consumer holds answers for all if the IDs ascend. It lists just them unless the consumer still
-- holds others in between: so it may list as many again, and what it does not list is asked for by itself.
local function fence_batch(stream, group, consumer, n, first, last, joined, counts)
  local rows = pending_rows(stream, group, first, last, 2 * n + 20, consumer)
  local ids, codes, mine, found = {}, {}, {}, {}
  local function take(i, id, code)
    ids[i], codes[i] = id, code
    if code == MINE then mine[#mine + 1] = id end
  end
  if #rows == n then
    local same = true
    for i = 1, n do
      local row = rows[i]
      ids[i], codes[i] = row[1], MINE
      same = same and row[4] == (counts[i] or 1)
    end
    if same and table.concat(ids, ' ') == joined then return ids, codes, ids end
  end
  for _, row in ipairs(rows) do found[row[1]] = row[4] end
  local i = 0
  for id in string.gmatch(joined, '[^ ]+') do
    i = i + 1
    local count = counts[i] or 1
    if found[id] then take(i, id, found[id] == count and MINE or LOST)
    else take(i, id, fence(stream, group, consumer, id, count)) end
  end
  return ids, codes, mine
end
