-- drop_group.lua: remove a consumer group, so that it pins no entries any more.
--
-- KEYS[1]  stream     T:stream     stream
-- KEYS[2]  scheduled  T:scheduled  sorted set, timer ID -> due time
-- KEYS[3]  meta       T:meta       hash; the group's counters and cursor go with it
-- ARGV[1]  group
-- ARGV[2]  1 to drop it with the work that it has left, else 0
--
-- Returns  { 1, pending, unread, waits }   dropped; unread is 1 if it had entries to read, waits if it had next attempts
--          { 0 }                           there is no such group
--          { -1, pending, unread, waits }  it has work left; nothing was written
--
-- Atomic because the group may read or be given work between the look and the removal. Of what is scheduled some 10,000 jobs
-- are looked at. The next attempts of a group that is gone become dead letters when they are due (unknown_group).
-- Redis >= 6.2.
-- Uses: ids, groups

local stream = KEYS[1]
local scheduled = KEYS[2]
local meta = KEYS[3]
local group = ARGV[1]
local force = ARGV[2] == '1'

-- 1 if jobs wait for an attempt of this group, as far as that can be seen at once.
local function has_timers()
  local cursor = '0'
  for _ = 1, 20 do
    local page = redis.pcall('ZSCAN', scheduled, cursor, 'MATCH', group .. '/*', 'COUNT', 500)
    if page.err then return 0 end
    if #page[2] > 0 then return 1 end
    cursor = page[1]
    if cursor == '0' then return 0 end
  end
  return 0
end

for _, row in ipairs(group_rows(stream)) do
  if row.name == group then
    local unread = entry_behind(stream, row['last-delivered-id']) and 1 or 0
    local waits = has_timers()
    if not force and (row.pending > 0 or unread + waits > 0) then return { -1, row.pending, unread, waits } end
    redis.call('HDEL', meta, '') -- writes nothing; what a script writes after another write is not refused for lack of memory
    redis.call('XGROUP', 'DESTROY', stream, group)
    redis.pcall('HDEL', meta, 'done:' .. group, 'retried:' .. group, 'dead:' .. group, 'redriven:' .. group,
      'passed:' .. group, 'cursor:reclaim:' .. group)
    return { 1, row.pending, unread, waits }
  end
end
return { 0 }
