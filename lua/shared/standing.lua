-- standing.lua: where a job is, for one group.

-- scheduled, done (with the result), pending, ready, or unknown: never added, dead, cancelled, forgotten, or settled
-- without a record. Jobs whose ID nobody chose are found until their first retry, or while they are scheduled.
local function standing(stream, scheduled, ids, done, group, job_id, now)
  if timer_for(scheduled, group, job_id) then return 'scheduled' end
  local word, value = string.match(find_record(done, now, group .. '/' .. job_id) or '', '^(%a+) (.*)$')
  if word == 'done' then return word, value end
  local entry_id = word == 'running' and value
  if not entry_id then
    word, value = string.match(find_record(ids, now, job_id) or '', '^(%a+) (.*)$')
    -- Done is what some group says, so another may still have to read that entry.
    entry_id = value or job_id
  end
  if not is_id(entry_id) then return 'unknown' end
  -- Only of this group: what others still have to do with the job is theirs.
  for _, row in ipairs(group_rows(stream)) do
    if row.name == group then
      if pending_rows(stream, group, entry_id, entry_id, 1)[1] then return 'pending' end
      if not id_after(entry_id, row['last-delivered-id']) then return 'unknown' end
    end
  end
  local entry = first_entry(stream, entry_id, entry_id)
  return entry and (only_group(entry[2]) or group) == group and 'ready' or 'unknown'
end
