-- add.lua: put a job with an ID chosen by the caller into the stream, unless the ID is known already.
--
-- KEYS[1]     stream  T:stream        stream
-- KEYS[2..5]  ids     T:ids:<slice>   hashes, job ID -> queued <entry ID> | done <entry ID>
-- ARGV[1]  job ID
-- ARGV[2]  slice length in ms
-- ARGV[3..]  field, value, field, value ... of the entry
--
-- Returns  { 1, entry ID, 'ready' }    added
--          { 0, entry ID, 'ready' }    known: no group has read it yet
--          { 0, entry ID, 'pending' }  known: a group has read it and not settled it
--          { 0, entry ID, 'done' }     known: settled within the last idempotency_ttl
--          error WRONGTYPE             a slice of T:ids is no hash; nothing was written
--
-- Atomic because two producers with one ID must get one entry. A record whose entry was removed by somebody else does
-- not count, else a flushed stream would refuse its jobs for a day. Redis >= 6.2.
-- Uses: records

local stream = KEYS[1]
local ids = { KEYS[2], KEYS[3], KEYS[4], KEYS[5] }
local job_id = ARGV[1]
local slice_ms = tonumber(ARGV[2])

local wrong = check_slices(ids)
if wrong then return wrong end

local function state_of(entry_id)
  if redis.call('EXISTS', stream) == 0 then return end
  local stored = #redis.call('XRANGE', stream, entry_id, entry_id, 'COUNT', 1) > 0
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    if redis.call('XPENDING', stream, group[2], entry_id, entry_id, 1)[1] then return 'pending' end
  end
  if stored then return 'ready' end
end

local now = server_ms()
local record = find_record(ids, now, job_id)
if record then
  local word, entry_id = string.match(record, '^(%a+) (.*)$')
  local state = word == 'done' and 'done' or state_of(entry_id)
  if state then return { 0, entry_id, state } end
end

local fields = {}
for i = 3, #ARGV do fields[i - 2] = ARGV[i] end
local entry_id = redis.call('XADD', stream, '*', unpack(fields))
put_records(ids, now, slice_ms, { job_id }, { job_id, 'queued ' .. entry_id })
return { 1, entry_id, 'ready' }
