-- claim_id.lua: before a job with a chosen ID runs, note that this entry runs it, unless the ID is done or running.
--
-- KEYS[1]     stream  T:stream         stream
-- KEYS[2..5]  done    T:done:<slice>   hashes, <group>/<job ID> -> running <entry ID> | done <result>
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3]  slice length in ms
-- ARGV[4..]  entry ID, delivery count, job ID; entry ID, delivery count, job ID ...
--
-- Returns  per delivery  { 1 }            run it
--                        { 2, result }    the ID is done: acknowledge this entry unrun
--                        { 3, entry ID }  that entry, still pending in this group, runs the ID: release this one
--                        { 0 }            not pending any more; nothing was written
--                        { -1 }           another consumer's, or a later delivery; nothing was written
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

local now = server_ms()
local answers = {}
for at = 4, #ARGV, 3 do
  local entry_id, count, job_id = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2]
  local field = group .. '/' .. job_id
  local code = fence(stream, group, consumer, entry_id, count)
  local answer = { code }
  if code == MINE then
    local record = find_record(done, now, field)
    local word, value = string.match(record or '', '^(%a+) (.*)$')
    if word == 'done' then
      answer = { 2, value }
    elseif word == 'running' and value ~= entry_id and pending_rows(stream, group, value, value, 1)[1] then
      answer = { 3, value }
    else
      put_records(done, now, slice_ms, { field }, { field, 'running ' .. entry_id })
    end
  end
  answers[#answers + 1] = answer
end
return answers
