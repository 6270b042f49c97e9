-- drop_group.lua: remove a consumer group, so that it pins no entries any more.
--
-- KEYS[1]  stream  T:stream  stream
-- KEYS[2]  meta    T:meta    hash; the group's counters and cursor go with it
-- ARGV[1]  group
-- ARGV[2]  1 to drop it with the work that it has left, else 0
--
-- Returns  { 1, pending, unread }   dropped; unread is 1 if it had entries to read
--          { 0 }                    there is no such group
--          { -1, pending, unread }  it has work left; nothing was written
--
-- Atomic because the group may read or be given work between the look and the removal. Redis >= 6.2.
-- Uses: ids, groups

local stream = KEYS[1]
local meta = KEYS[2]
local group = ARGV[1]
local force = ARGV[2] == '1'

for _, row in ipairs(group_rows(stream)) do
  if row.name == group then
    local unread = entry_behind(stream, row['last-delivered-id']) and 1 or 0
    if not force and (row.pending > 0 or unread == 1) then return { -1, row.pending, unread } end
    redis.call('HDEL', meta, '') -- writes nothing; what a script writes after another write is not refused for lack of memory
    redis.call('XGROUP', 'DESTROY', stream, group)
    redis.pcall('HDEL', meta, 'done:' .. group, 'retried:' .. group, 'dead:' .. group, 'redriven:' .. group,
      'passed:' .. group, 'cursor:reclaim:' .. group)
    return { 1, row.pending, unread }
  end
end
return { 0 }
