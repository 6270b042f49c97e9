-- reschedule.lua: give a job that waits another time.
--
-- KEYS[1]      stream     T:stream         stream
-- KEYS[2]      scheduled  T:scheduled      sorted set, timer ID -> due time
-- KEYS[3]      wake       T:wake           stream of one entry, for who sleeps until the first is due
-- KEYS[4..7]   ids        T:ids:<slice>    hashes, job ID -> queued <entry ID> | done <entry ID>
-- KEYS[8..11]  done       T:done:<slice>   hashes, <group>/<job ID> -> running <entry ID> | done <result>
-- ARGV[1]  group
-- ARGV[2]  job ID
-- ARGV[3]  in or at
-- ARGV[4]  ms from now, or ms of the server's clock; what is past is now
-- ARGV[5]  most ms that it may be ahead
--
-- Returns  { 1, due time in ms }  done
--          { 0, state }           it does not wait, but is ready, pending, done or unknown; nothing was written
--          { -1, ms }             it would be so many ms ahead; nothing was written
--          error                  it could not be written (WRONGTYPE, memory is full, ...); nothing was
--
-- Atomic because a job that is moved into the stream between the look and the write must not wait again. Redis >= 6.2.
-- Uses: fence, ids, groups, records, types, timers, standing

local stream = KEYS[1]
local scheduled = KEYS[2]
local wake = KEYS[3]
local ids = { KEYS[4], KEYS[5], KEYS[6], KEYS[7] }
local done = { KEYS[8], KEYS[9], KEYS[10], KEYS[11] }
local group = ARGV[1]
local job_id = ARGV[2]

local wrong = check_type(scheduled, 'zset') or check_slices(ids) or check_slices(done)
if wrong then return wrong end
local now = server_ms()
local timer = timer_for(scheduled, group, job_id)
if not timer then
  local state = standing(stream, scheduled, ids, done, group, job_id, now)
  return { 0, state }
end
local due = due_time(now, ARGV[3], ARGV[4], tonumber(ARGV[5]))
if not due then return { -1, string.format('%.0f', tonumber(ARGV[4]) - now) } end
set_due(scheduled, wake, timer, due)
return { 1, string.format('%.0f', due) }
