-- result.lua: what became of a job, for one group.
--
-- KEYS[1]      stream     T:stream         stream
-- KEYS[2]      scheduled  T:scheduled      sorted set, timer ID -> due time
-- KEYS[3..6]   ids        T:ids:<slice>    hashes, job ID -> queued <entry ID> | done <entry ID>
-- KEYS[7..10]  done       T:done:<slice>   hashes, <group>/<job ID> -> running <entry ID> | done <result>
-- ARGV[1]  group
-- ARGV[2]  job ID
--
-- Returns  { 'scheduled' }     it waits for its time: of all groups, or this group's next attempt
--          { 'done', result }  the group has finished it; result is '' where the handler gave none
--          { 'pending' }       the group has it in hand
--          { 'ready' }         the group has not read it yet, or there is no such group yet
--          { 'unknown' }       never added, dead, cancelled, forgotten, or settled without a record
--          error WRONGTYPE     a slice of T:ids or T:done is no hash
--
-- Atomic because a job that is moved on between two looks would be seen nowhere. Writes nothing, but
-- for unlinking what is due. Redis >= 6.2.
-- Uses: fence, ids, groups, records, types, timers, standing

local stream = KEYS[1]
local scheduled = KEYS[2]
local ids = { KEYS[3], KEYS[4], KEYS[5], KEYS[6] }
local done = { KEYS[7], KEYS[8], KEYS[9], KEYS[10] }
local group = ARGV[1]
local job_id = ARGV[2]

local wrong = check_type(scheduled, 'zset') or check_slices(ids) or check_slices(done)
if wrong then return wrong end
local state, result = standing(stream, scheduled, ids, done, group, job_id, server_ms())
return { state, result }
