-- start.lua: count the start of reclaimed deliveries, immediately before their handlers begin.
--
-- KEYS[1]  stream  T:stream  stream
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3..]  entry ID, target count; entry ID, target count ...
--
-- Returns  per delivery   1  counted: start the handler
--                         0  not pending any more; do not start
--                        -1  another consumer's, or another count; do not start
--
-- Atomic because a plain XCLAIM would steal the entry from whoever has it now. The target is named, so sending it again
-- after a lost reply counts once. A count thus means a start, not a claim. Redis >= 6.2.
-- Uses: fence

local stream = KEYS[1]
local group = ARGV[1]
local consumer = ARGV[2]

local codes = {}
for at = 3, #ARGV, 2 do
  local entry_id, target = ARGV[at], tonumber(ARGV[at + 1])
  local row = pending_rows(stream, group, entry_id, entry_id, 1)[1]
  local code = GONE
  if row then
    code = LOST
    if row[2] == consumer and (row[4] == target or row[4] == target - 1) then
      redis.call('XCLAIM', stream, group, consumer, 0, entry_id, 'RETRYCOUNT', target, 'JUSTID')
      code = MINE
    end
  end
  codes[#codes + 1] = code
end
return codes
