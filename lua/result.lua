-- result.lua: what became of a job, for one group.
--
-- KEYS[1]     stream  T:stream         stream
-- KEYS[2..5]  ids     T:ids:<slice>    hashes, job ID -> queued <entry ID> | done <entry ID>
-- KEYS[6..9]  done    T:done:<slice>   hashes, <group>/<job ID> -> running <entry ID> | done <result>
-- ARGV[1]  group
-- ARGV[2]  job ID
--
-- Returns  { 'done', result }  the group has finished it; result is '' where the handler gave none
--          { 'pending' }       the group has it in hand
--          { 'ready' }         the group has not read it yet, or there is no such group yet
--          { 'unknown' }       never added, dead, cancelled, forgotten, or settled without a record
--          error WRONGTYPE     a slice of T:ids or T:done is no hash
--
-- Atomic because a job that is moved on between two looks would be seen nowhere. Writes nothing, but
-- for unlinking what is due. Redis >= 6.2.
-- Uses: fence, ids, groups, records

local stream = KEYS[1]
local ids = { KEYS[2], KEYS[3], KEYS[4], KEYS[5] }
local done = { KEYS[6], KEYS[7], KEYS[8], KEYS[9] }
local group = ARGV[1]
local job_id = ARGV[2]

local wrong = check_slices(ids) or check_slices(done)
if wrong then return wrong end

local now = server_ms()
local word, value = string.match(find_record(done, now, group .. '/' .. job_id) or '', '^(%a+) (.*)$')
if word == 'done' then return { word, value } end
local entry_id = word == 'running' and value
if not entry_id then
  word, value = string.match(find_record(ids, now, job_id) or '', '^(%a+) (.*)$')
  -- Done is what some group says, so another may still have to read that entry.
  entry_id = value or job_id
end
if not is_id(entry_id) then return { 'unknown' } end

-- Only of this group: what others still have to do with the job is theirs.
for _, row in ipairs(group_rows(stream)) do
  if row.name == group then
    if pending_rows(stream, group, entry_id, entry_id, 1)[1] then return { 'pending' } end
    if not id_after(entry_id, row['last-delivered-id']) then return { 'unknown' } end
  end
end
local entry = first_entry(stream, entry_id, entry_id)
return { entry and (only_group(entry[2]) or group) == group and 'ready' or 'unknown' }
