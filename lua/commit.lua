-- commit.lua: acknowledge one delivery together with its effects and its result.
--
-- KEYS[1]      stream  T:stream         stream
-- KEYS[2]      meta    T:meta           hash, counters
-- KEYS[3..6]   ids     T:ids:<slice>    hashes, job ID -> queued <entry ID> | done <entry ID>
-- KEYS[7..10]  done    T:done:<slice>   hashes, <group>/<job ID> -> running <entry ID> | done <result>
-- KEYS[11]     probe   T:probe          written and unlinked to learn what the user may do, on servers before 7.0
-- KEYS[12..]   data    T:data:<key>     keys of the effects
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3]  retention, delete or keep
-- ARGV[4]  slice length in ms
-- ARGV[5]  entry ID
-- ARGV[6]  delivery count
-- ARGV[7]  kind of the job ID, generated or chosen
-- ARGV[8]  job ID, or '' (nothing to remember)
-- ARGV[9]  result, encoded; may be empty
-- ARGV[10..]  effects: how many; then for each its command, the number of its key among data, the number of its
--             arguments, the arguments
--
-- Returns  { 1 }   done
--          { 0 }   not pending any more; nothing was written
--          { -1 }  another consumer's, or a later delivery; nothing was written
--          { -2, effect, reason }  that effect (1 is the first) cannot be applied; nothing was written
--          error                   refused for now (memory is full, ...), or a slice of T:ids or T:done is no hash; nothing was written
--
-- Atomic because effects must be applied exactly when the job is done. Effects are the writes that can fail, so they come
-- before XACK; what comes after it cannot. Redis >= 6.2.
-- Uses: fence, records, ids, groups, settled, effects

local stream = KEYS[1]
local meta = KEYS[2]
local ids = { KEYS[3], KEYS[4], KEYS[5], KEYS[6] }
local done = { KEYS[7], KEYS[8], KEYS[9], KEYS[10] }
local probe = KEYS[11]
local data = {}
for i = 12, #KEYS do data[i - 11] = KEYS[i] end
local group = ARGV[1]
local consumer = ARGV[2]
local retention = ARGV[3]
local slice_ms = tonumber(ARGV[4])
local entry_id = ARGV[5]
local count = tonumber(ARGV[6])
local kind = ARGV[7]
local job_id = ARGV[8]
local result = ARGV[9]

local code = fence(stream, group, consumer, entry_id, count)
if code ~= MINE then return { code } end
check_ack(stream, group)
local wrong = check_slices(ids) or check_slices(done)
if wrong then return wrong end

local bad, why = apply_effects(read_effects(ARGV, 10, data), probe)
if bad then
  if type(why) == 'table' then return why end
  return { -2, bad, why }
end

redis.call('XACK', stream, group, entry_id)
local others = (retention == 'delete' or kind == 'chosen') and other_groups(stream, group)
if retention == 'delete' then delete_settled(stream, others, { entry_id }) end
if job_id ~= '' then
  local now = server_ms()
  local field = group .. '/' .. job_id
  put_records(done, now, slice_ms, { field }, { field, 'done ' .. result })
  if kind == 'chosen' then put_done_ids(stream, others, group, ids, now, slice_ms, { job_id }, { entry_id }) end
end
redis.pcall('HINCRBY', meta, 'done:' .. group, 1)
return { 1 }
