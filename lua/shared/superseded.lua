-- superseded.lua: does this layout have a job that the previous one has, too?

-- By what is remembered of its ID: then that is the job that counts. Records move, too, and streams give out IDs by the
-- clock: so a record counts only if its entry is here, and is this job's.
local function is_superseded(stream, job_id, record)
  local word, value = string.match(record or '', '^(%a+) (.*)$')
  if word == 'done' then return true end
  local entry = word == 'queued' and is_id(value) and first_entry(stream, value, value)
  return entry and value_of(entry[2], 'sq:id') == job_id or false
end
