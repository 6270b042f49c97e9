-- start.lua: count the start of reclaimed deliveries, immediately before their handlers begin.
--
-- KEYS[1]  stream  T:stream  stream
-- KEYS[2]  dead    T:dead    stream of dead letters
-- KEYS[3]  meta    T:meta    hash, counters
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3..]  entry ID, target count; entry ID, target count ...
--
-- Returns  per delivery   1  counted: start the handler
--                         0  not pending any more; do not start
--                        -1  another consumer's, or another count; do not start
--                        -3  its body is gone; do not start: a tombstone was written and it is not pending any more; or,
--                            where the tombstone cannot be written, it was left as it was
--
-- Atomic because a plain XCLAIM would steal the entry from whoever has it now, and from Redis 7.0 drop one without body
-- from the group, so the tombstone belongs into the same step. The target is named, so sending it again after a lost reply
-- counts once. A count thus means a start, not a claim. Redis >= 6.2.
-- Uses: fence, records, tombstone

local stream = KEYS[1]
local dead = KEYS[2]
local meta = KEYS[3]
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
      if bury_if_missing(stream, dead, meta, group, consumer, entry_id, row[4]) then
        code = -3
      else
        redis.call('XCLAIM', stream, group, consumer, 0, entry_id, 'RETRYCOUNT', target, 'JUSTID')
        code = MINE
      end
    end
  end
  codes[#codes + 1] = code
end
return codes
