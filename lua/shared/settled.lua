-- settled.lua: what a settled entry leaves behind, and whether it may leave the stream or another group still needs it.

local function other_groups(stream, group)
  local others = {}
  for _, row in ipairs(group_rows(stream)) do
    if row.name ~= group then others[#others + 1] = row end
  end
  return others
end

-- Whether another group has not read the entry, or not settled it.
local function is_needed(stream, others, id)
  for _, other in ipairs(others) do
    if id_after(id, other['last-delivered-id']) or redis.call('XPENDING', stream, other.name, id, id, 1)[1] then return true end
  end
  return false
end

-- XDEL those of ids (which this group has acknowledged) that every other group has read and settled.
local function delete_settled(stream, others, ids)
  if #ids == 0 then return end
  local free = ids
  if #others > 0 then
    free = {}
    for _, id in ipairs(ids) do
      if not is_needed(stream, others, id) then free[#free + 1] = id end
    end
  end
  if #free > 0 then redis.call('XDEL', stream, unpack(free)) end
end

-- Job IDs are done, but where another group's retry of the same job still waits: then that is where the job is.
local function put_done_ids(stream, others, group, ids, now, slice_ms, job_ids, entry_ids)
  local known = #others > 0 and find_records(ids, now, job_ids) or {}
  local names, pairs_ = {}, {}
  for i, job_id in ipairs(job_ids) do
    local other = string.match(known[job_id] or '', '^queued (.*)$')
    local entry = other and other ~= entry_ids[i] and is_id(other) and first_entry(stream, other, other)
    local only = entry and only_group(entry[2])
    if not only or only == group then
      names[#names + 1] = job_id
      pairs_[#pairs_ + 1] = job_id
      pairs_[#pairs_ + 1] = 'done ' .. entry_ids[i]
    end
  end
  if #names > 0 then put_records(ids, now, slice_ms, names, pairs_) end
end
