-- trim.lua: remove finished entries from the stream; one bounded pass.
--
-- KEYS[1]  stream  T:stream  stream
-- KEYS[2]  meta    T:meta    hash; cursor:trim is where the next pass starts, kept:<entry ID> and kept what letters refer to
-- ARGV[1]  ms that finished entries are kept, or '' for no such rule
-- ARGV[2]  most entries that the stream may hold before finished ones go, or '' for no such rule
-- ARGV[3]  most entries to look at one by one
-- ARGV[4]  entry ID to start at, or '' to start where the last such pass ended, and to note where this one ends
-- ARGV[5]  entry ID to stop at, or '' for the last one that every group has read
--
-- Returns  { removed, cursor, stop }
--          removed  how many entries
--          cursor   entry ID to go on from, or '' when the end was reached
--          stop     entry ID at which this walk stops
--          error WRONGTYPE  the stream's key holds something else; nothing was written
--
-- An entry is finished when every group has read it, none has it pending, and no dead letter refers to it. Without rules all
-- finished entries go; with rules those that are older than the first, and the oldest while there are more than the second.
--
-- Atomic because a group may read, settle, or be made at any time, and what it still needs must stay. Redis >= 6.2.
-- Uses: ids, groups, records, types

local stream = KEYS[1]
local meta = KEYS[2]
local keep_ms = tonumber(ARGV[1])
local keep_last = tonumber(ARGV[2])
local look = tonumber(ARGV[3])
local from = ARGV[4]
local stop = ARGV[5]

local NODES = 10000 -- most entries of one XTRIM, which removes whole nodes of about 100

local wrong = check_stream(stream)
if wrong then return wrong end
local stored = from == ''
if stored then from = redis.call('HGET', meta, 'cursor:trim') or '0-0' end
local function answer(removed, cursor)
  if stored then
    if cursor == '' then redis.call('HDEL', meta, 'cursor:trim')
    else redis.pcall('HSET', meta, 'cursor:trim', cursor) end
  end
  return { removed, cursor, stop }
end

local groups = group_rows(stream)
if #groups == 0 then return answer(0, '') end
local read_by_all, first_pending
for _, group in ipairs(groups) do
  local last = group['last-delivered-id']
  if not read_by_all or id_after(read_by_all, last) then read_by_all = last end
  local row = redis.call('XPENDING', stream, group.name, '-', '+', 1)[1]
  if row and (not first_pending or id_after(first_pending, row[1])) then first_pending = row[1] end
end
if stop == '' or id_after(stop, read_by_all) then stop = read_by_all end
local cutoff = keep_ms and string.format('%.0f', math.max(server_ms() - keep_ms, 0)) .. '-0'
local kept = redis.call('HEXISTS', meta, 'kept') == 1

-- Most of it goes by whole nodes, from the head: everything below the first entry that somebody needs.
if not kept and not keep_last then
  local bound = stop
  if first_pending and id_after(bound, first_pending) then bound = first_pending end
  if cutoff and id_after(bound, cutoff) then bound = cutoff end
  local removed = redis.call('XTRIM', stream, 'MINID', '~', bound, 'LIMIT', NODES)
  if removed > 0 then return answer(removed, from) end
end

local excess = keep_last and redis.call('XLEN', stream) - keep_last or 0
local function may_go(id)
  if kept and redis.call('HEXISTS', meta, 'kept:' .. id) == 1 then return false end
  if not cutoff and not keep_last then return true end
  return (cutoff and id_after(cutoff, id)) or excess > 0
end

-- The rest one by one, between entries that are pending. Bodies come with the IDs, so pages grow only while those are small.
local removed, page = 0, 10
local cursor = from
while look > 0 do
  local rows = redis.call('XRANGE', stream, cursor, stop, 'COUNT', math.min(page, look))
  if #rows == 0 then return answer(removed, '') end
  local bytes, pending, gone = 0, {}, {}
  local last = rows[#rows][1]
  for _, group in ipairs(groups) do
    for _, row in ipairs(redis.call('XPENDING', stream, group.name, rows[1][1], last, #rows)) do pending[row[1]] = true end
  end
  for _, row in ipairs(rows) do
    for _, part in ipairs(row[2]) do bytes = bytes + #part end
    if not pending[row[1]] and may_go(row[1]) then
      gone[#gone + 1] = row[1]
      excess = excess - 1
    end
  end
  if #gone > 0 then removed = removed + redis.call('XDEL', stream, unpack(gone)) end
  look = look - #rows
  page = bytes < 65536 and 100 or 10
  cursor = '(' .. last
end
return answer(removed, string.sub(cursor, 2))
