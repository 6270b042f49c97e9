-- pass_over.lua: settle deliveries that only another group handles (sq:group), unseen.
--
-- KEYS[1]  stream  T:stream  stream
-- KEYS[2]  meta    T:meta    hash, counters
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3]  retention, delete or keep
-- ARGV[4..]  per delivery: entry ID, delivery count, the group that handles it
--
-- Returns  per delivery   1  acknowledged
--                         2  the group that handles it does not exist, and this one is the last to let go of it: to be
--                            dead-lettered by it; nothing was written
--                         0  not pending any more; nothing was written
--                        -1  another consumer's, or a later delivery; nothing was written
--
-- Atomic because a group may be made or dropped at any time, and exactly one of the others must dead-letter what nobody
-- handles: scripts come one after another, so there is one last. Redis >= 6.2.
-- Uses: fence, ids, records, groups, settled

local stream = KEYS[1]
local meta = KEYS[2]
local group = ARGV[1]
local consumer = ARGV[2]
local retention = ARGV[3]

local known, others = {}, {}
for _, row in ipairs(group_rows(stream)) do
  known[row.name] = true
  if row.name ~= group then others[#others + 1] = row end
end

local codes, acknowledged = {}, {}
for at = 4, #ARGV, 3 do
  local entry_id, count, handler = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2]
  local code = fence(stream, group, consumer, entry_id, count)
  if code == MINE and not known[handler] and not is_needed(stream, others, entry_id) then
    code = 2
  elseif code == MINE then
    redis.call('XACK', stream, group, entry_id)
    acknowledged[#acknowledged + 1] = entry_id
  end
  codes[#codes + 1] = code
end
if #acknowledged > 0 then
  if retention == 'delete' then delete_settled(stream, others, acknowledged) end
  redis.pcall('HINCRBY', meta, 'passed:' .. group, #acknowledged)
end
return codes
