-- claim_id.lua: before a job with a chosen ID runs, note that this entry runs it, unless the ID is done or running.
--
-- KEYS[1]     stream  T:stream         stream
-- KEYS[2..5]  done    T:done:<slice>   hashes, <group>/<job ID> -> running <entry ID> | done <result>
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3]  slice length in ms
-- ARGV[4]  n entry IDs, none twice, joined by blanks; fast if they ascend
-- ARGV[5]  their n delivery counts, joined by blanks; '' if each is 1
-- ARGV[6..]  their n job IDs
--
-- Returns  per delivery   1  run it
--                         2  the ID is done: acknowledge this entry unrun
--                         3  another entry, still pending in this group, runs the ID: release this one
--                         0  not pending any more; nothing was written
--                        -1  another consumer's, or a later delivery; nothing was written
--          error WRONGTYPE  a slice of T:done is no hash; nothing was written
--
-- Atomic because of two entries with one ID only one may run. The record is bound to an entry, not to a worker: whoever
-- owns that entry may run it, and an entry that is no longer pending holds nothing. Redis >= 6.2.
-- Uses: fence, records

local stream = KEYS[1]
local done = { KEYS[2], KEYS[3], KEYS[4], KEYS[5] }
local group = ARGV[1]
local consumer = ARGV[2]
local slice_ms = tonumber(ARGV[3])

local wrong = check_slices(done)
if wrong then return wrong end

local job_ids = { unpack(ARGV, 6, #ARGV) }
local entry_ids, counts, fields = {}, {}, {}
for id in string.gmatch(ARGV[4], '[^ ]+') do
  local i = #entry_ids + 1
  entry_ids[i] = id
  fields[i] = group .. '/' .. job_ids[i]
end
for count in string.gmatch(ARGV[5], '%d+') do counts[#counts + 1] = tonumber(count) end
local n = #entry_ids
local now = server_ms()
local records = find_records(done, now, fields)
local held = counts_of(rows_between(stream, group, consumer, n, entry_ids[1], entry_ids[n]))

local answers, running, pairs_ = {}, {}, {}
for i, field in ipairs(fields) do
  local entry_id = entry_ids[i]
  local code = fence_held(held, stream, group, consumer, entry_id, counts[i] or 1)
  if code == MINE then
    local word, value
    if records[field] then word, value = string.match(records[field], '^(%a+) (.*)$') end
    if word == 'done' then
      code = 2
    elseif word == 'running' and value ~= entry_id and pending_rows(stream, group, value, value, 1)[1] then
      code = 3
    else
      local record = 'running ' .. entry_id
      records[field] = record -- for a later entry of this batch with the same ID
      running[#running + 1] = field
      pairs_[2 * #running - 1], pairs_[2 * #running] = field, record
    end
  end
  answers[i] = code
end
if #running > 0 then put_records(done, now, slice_ms, running, pairs_) end
return answers
