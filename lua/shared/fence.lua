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

-- Before a write that XACK must follow: an error if the user may not acknowledge any more, for scripts do not roll back.
-- Before 7.0 nobody can ask: to try it would be a write, after which the server lets the rest of a script exceed its memory.
local function check_ack(stream, group)
  if redis.acl_check_cmd and not redis.acl_check_cmd('XACK', stream, group, '0-0') then
    error({ err = 'NOPERM the user may not run XACK' })
  end
end

-- Rows of what the consumer holds from first to last: enough for n entries that ascend, if it does not hold more than as
-- many others in between. What is not among them must be asked for by itself.
local function rows_between(stream, group, consumer, n, first, last)
  return pending_rows(stream, group, first, last, 2 * n + 20, consumer)
end

local function counts_of(rows)
  local held = {}
  for _, row in ipairs(rows) do held[row[1]] = row[4] end
  return held
end

-- The fence, by what counts_of made of those rows.
local function fence_held(held, stream, group, consumer, id, count)
  if held[id] then return held[id] == count and MINE or LOST end
  return fence(stream, group, consumer, id, count)
end
