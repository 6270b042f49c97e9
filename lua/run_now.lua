-- run_now.lua: move one job that waits into the stream, before its time.
--
-- KEYS[1]       stream     T:stream          stream
-- KEYS[2]       scheduled  T:scheduled       sorted set, timer ID -> due time
-- KEYS[3]       jobs       T:scheduled:jobs  hash, timer ID -> packed entry
-- KEYS[4..7]    ids        T:ids:<slice>     hashes, job ID -> queued <entry ID> | done <entry ID>
-- KEYS[8..11]   done       T:done:<slice>    hashes, <group>/<job ID> -> running <entry ID> | done <result>
-- ARGV[1]  group
-- ARGV[2]  job ID
-- ARGV[3]  slice length in ms
--
-- Returns  { 1, entry ID }  in the stream under that ID
--          { 0, state }     it does not wait, but is ready, pending, done or unknown; nothing was written
--          { -1, '' }       it waits, but its entry is lost or malformed: promote.lua takes it out; nothing was written
--          error            it could not be added (WRONGTYPE, memory is full, ...); nothing was written
--
-- Atomic because this run takes the place of the one that waits: a job that stayed would run twice. Redis >= 6.2.
-- Uses: fence, ids, groups, records, types, timers, standing

local stream = KEYS[1]
local scheduled = KEYS[2]
local jobs = KEYS[3]
local ids = { KEYS[4], KEYS[5], KEYS[6], KEYS[7] }
local done = { KEYS[8], KEYS[9], KEYS[10], KEYS[11] }
local group = ARGV[1]
local job_id = ARGV[2]
local slice_ms = tonumber(ARGV[3])

local wrong = check_stream(stream) or check_timers(scheduled, jobs) or check_slices(ids) or check_slices(done)
if wrong then return wrong end
local now = server_ms()
local timer = timer_for(scheduled, group, job_id)
if not timer then
  local state = standing(stream, scheduled, ids, done, group, job_id, now)
  return { 0, state }
end
local packed = redis.call('HGET', jobs, timer)
local fields = packed and unpack_entry(packed)
if not fields then return { -1, '' } end
local entry_id = redis.call('XADD', stream, '*', unpack(fields))
drop_timers(scheduled, jobs, { timer })
local chosen = chosen_id(fields)
if chosen then put_records(ids, now, slice_ms, { chosen }, { chosen, 'queued ' .. entry_id }) end
return { 1, entry_id }
