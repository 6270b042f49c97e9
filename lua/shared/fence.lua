-- fence.lua: is this delivery still the caller's?

local MINE, GONE, LOST = 1, 0, -1

-- XPENDING rows from first to last; none when the stream or the group is gone.
local function pending_rows(stream, group, first, last, count)
  local rows = redis.pcall('XPENDING', stream, group, first, last, count)
  if rows.err then
    if string.find(rows.err, 'NOGROUP', 1, true) then return {} end
    return redis.call('XPENDING', stream, group, first, last, count) -- raises it with its code
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
