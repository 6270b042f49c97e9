-- renew.lua: begin the leases of deliveries anew.
--
-- KEYS[1]  stream  T:stream  stream
-- KEYS[2]  dead    T:dead    stream of dead letters
-- KEYS[3]  meta    T:meta    hash, counters
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3..]  entry ID, delivery count; entry ID, delivery count ...
--
-- Returns  per delivery   1  renewed
--                         0  not pending any more
--                        -1  another consumer's, or a later delivery; untouched
--                        -3  its body is gone: a tombstone was written and it is not pending any more; or, where the
--                            tombstone cannot be written, it was left as it was
--
-- Atomic because XCLAIM takes an entry from whoever has it: a renewal that comes late would steal it back. From Redis 7.0
-- XCLAIM drops an entry without body from the group, so the tombstone belongs into the same step. Redis >= 6.2.
-- Uses: fence, records, tombstone

local stream = KEYS[1]
local dead = KEYS[2]
local meta = KEYS[3]
local group = ARGV[1]
local consumer = ARGV[2]

local codes = {}
for at = 3, #ARGV, 2 do
  local entry_id, count = ARGV[at], tonumber(ARGV[at + 1])
  local code = fence(stream, group, consumer, entry_id, count)
  if code == MINE then
    if bury_if_missing(stream, dead, meta, group, consumer, entry_id, count) then
      code = -3
    else
      redis.call('XCLAIM', stream, group, consumer, 0, entry_id, 'IDLE', 0, 'JUSTID')
    end
  end
  codes[#codes + 1] = code
end
return codes
