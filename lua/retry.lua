-- retry.lua: end a delivery by scheduling its job again, as a new entry with the next attempt's number.
--
-- KEYS[1]       stream     T:stream          stream
-- KEYS[2]       scheduled  T:scheduled       sorted set, timer ID -> due time
-- KEYS[3]       jobs       T:scheduled:jobs  hash, timer ID -> packed entry
-- KEYS[4]       wake       T:wake            stream of one entry, for who sleeps until the first is due
-- KEYS[5]       meta       T:meta            hash, counters
-- KEYS[6..9]    ids        T:ids:<slice>     hashes, job ID -> queued <entry ID> | done <entry ID>
-- KEYS[10..13]  done       T:done:<slice>    hashes, <group>/<job ID> -> running <entry ID> | done <result>
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3]  retention, delete or keep
-- ARGV[4]  slice length in ms
-- ARGV[5]  entry ID
-- ARGV[6]  delivery count
-- ARGV[7]  kind of the job ID, generated or chosen
-- ARGV[8]  job ID
-- ARGV[9]  time the job was first added, ms
-- ARGV[10] number of the next attempt
-- ARGV[11] the last errors, JSON
-- ARGV[12] ms until it is due; 0 adds it to the stream at once
--
-- Returns  { 1, entry ID }  added again under that ID
--          { 1, '' }        scheduled for this group
--          { 0 }            not pending any more; nothing was written
--          { -1 }           another consumer's, or a later delivery; nothing was written
--          { -3 }           the entry's body is gone; nothing was written
--          error            it could not be scheduled or added (memory is full, no permission, ...); nothing was written
--
-- Atomic because the entry must leave the group exactly when the job waits: separately, a crash would lose it
-- (acknowledge first) or run it twice (schedule first). What can fail comes first. Only this group handles the new entry
-- (sq:group). All fields but ours are kept byte for byte and in order. While the job waits no record says so: its
-- timer does. The time is the server's. Redis >= 6.2.
-- Uses: fence, records, ids, groups, settled, types, timers

local stream = KEYS[1]
local scheduled = KEYS[2]
local jobs = KEYS[3]
local wake = KEYS[4]
local meta = KEYS[5]
local ids = { KEYS[6], KEYS[7], KEYS[8], KEYS[9] }
local done = { KEYS[10], KEYS[11], KEYS[12], KEYS[13] }
local group = ARGV[1]
local consumer = ARGV[2]
local retention = ARGV[3]
local slice_ms = tonumber(ARGV[4])
local entry_id = ARGV[5]
local count = tonumber(ARGV[6])
local kind = ARGV[7]
local job_id = ARGV[8]
local enqueued_ms = ARGV[9]
local attempt = ARGV[10]
local errors = ARGV[11]
local delay = tonumber(ARGV[12])

local REPLACED = { ['sq:id'] = true, ['sq:generated'] = true, ['sq:at'] = true, ['sq:attempt'] = true,
  ['sq:group'] = true, ['sq:errors'] = true }

local code = fence(stream, group, consumer, entry_id, count)
if code ~= MINE then return { code } end
check_ack(stream, group)
local wrong = check_timers(scheduled, jobs) or check_slices(ids) or check_slices(done)
if wrong then return wrong end
local entry = first_entry(stream, entry_id, entry_id)
if not entry then return { -3 } end

local fields = {}
for i = 1, #entry[2], 2 do
  if not REPLACED[entry[2][i]] then
    fields[#fields + 1] = entry[2][i]
    fields[#fields + 1] = entry[2][i + 1]
  end
end
local ours = { 'sq:id', job_id, 'sq:at', enqueued_ms, 'sq:attempt', attempt, 'sq:group', group, 'sq:errors', errors }
for _, part in ipairs(ours) do fields[#fields + 1] = part end
if kind == 'generated' then
  fields[#fields + 1] = 'sq:generated'
  fields[#fields + 1] = '1'
end

local now, new_id = server_ms(), ''
if delay > 0 then put_timer(scheduled, jobs, wake, timer_id(group, job_id), now + delay, fields)
else new_id = redis.call('XADD', stream, '*', unpack(fields)) end
redis.call('XACK', stream, group, entry_id)
if retention == 'delete' then delete_settled(stream, other_groups(stream, group), { entry_id }) end
if kind == 'chosen' then
  forget_record(done, now, group .. '/' .. job_id, 'running ' .. entry_id)
  if new_id ~= '' then put_records(ids, now, slice_ms, { job_id }, { job_id, 'queued ' .. new_id }) end
end
redis.pcall('HINCRBY', meta, 'retried:' .. group, 1)
return { 1, new_id }
