-- release.lua: give deliveries back unrun, for others to take.
--
-- KEYS[1]     stream  T:stream         stream
-- KEYS[2]     dead    T:dead           stream of dead letters
-- KEYS[3]     meta    T:meta           hash, counters
-- KEYS[4..7]  done    T:done:<slice>   hashes, <group>/<job ID> -> running <entry ID> | done <result>
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3..]  per delivery: entry ID, delivery count, count from now on, idle time in ms from now on, job ID or ''
--
-- Returns  per delivery   1  released
--                         0  not pending any more
--                        -1  another consumer's, or a later delivery; untouched
--                        -3  its body is gone: a tombstone was written and it is not pending any more; or, where the
--                            tombstone cannot be written, it was left as it was
--
-- Atomic because the check and the change of owner's terms must see the same delivery. An idle time of a whole lease makes
-- it due at once. Redis >= 6.2.
-- Uses: fence, records, tombstone

local stream = KEYS[1]
local dead = KEYS[2]
local meta = KEYS[3]
local done = { KEYS[4], KEYS[5], KEYS[6], KEYS[7] }
local group = ARGV[1]
local consumer = ARGV[2]

local codes = {}
for at = 3, #ARGV, 5 do
  local entry_id, count, next_count, idle, job_id = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local code = fence(stream, group, consumer, entry_id, count)
  if code == MINE then
    if bury_if_missing(stream, dead, meta, group, consumer, entry_id, count) then
      code = -3
    else
      redis.call('XCLAIM', stream, group, consumer, 0, entry_id, 'IDLE', idle, 'RETRYCOUNT', next_count, 'JUSTID')
    end
    if job_id ~= '' then
      forget_record(done, server_ms(), group .. '/' .. job_id, 'running ' .. entry_id)
    end
  end
  codes[#codes + 1] = code
end
return codes
