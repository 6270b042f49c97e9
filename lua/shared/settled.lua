-- settled.lua: what a settled entry leaves behind, and whether it may leave the stream or another group still needs it.

-- The stream is there: the caller holds a delivery of it.
local function other_groups(stream, group)
  local others = {}
  for _, row in ipairs(by_name(redis.call('XINFO', 'GROUPS', stream))) do
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

-- The least and the greatest of some IDs.
local function bounds(ids)
  local first, last = ids[1], ids[1]
  for i = 2, #ids do
    local id = ids[i]
    if id_after(id, last) then last = id elseif id_after(first, id) then first = id end
  end
  return first, last
end

-- Those of ids, between first and last, that the group has read and settled. One look at what it holds there is enough, if it
-- has read them all and does not hold many others in between.
local function settled_by(stream, group, ids, first, last)
  local most = #ids + 20
  local rows = not id_after(last, group['last-delivered-id']) and redis.call('XPENDING', stream, group.name, first, last, most)
  if rows and #rows == 0 then return ids end
  local held = rows and #rows < most and {}
  for _, row in ipairs(held and rows or {}) do held[row[1]] = true end
  local free = {}
  for _, id in ipairs(ids) do
    local needed
    if held then needed = held[id] else needed = is_needed(stream, { group }, id) end
    if not needed then free[#free + 1] = id end
  end
  return free
end

-- XDEL those of ids (which this group has acknowledged) that every other group has read and settled.
local function delete_settled(stream, others, ids)
  if #ids == 0 then return end
  local free = ids
  if #others > 0 then
    local first, last = bounds(ids)
    for _, other in ipairs(others) do
      if #free > 0 then free = settled_by(stream, other, free, first, last) end
    end
  end
  if #free > 0 then redis.call('XDEL', stream, unpack(free)) end
end

-- Job IDs are done, but where another group's retry of the same job still waits: then that is where the job is.
local function put_done_ids(stream, others, group, ids, now, slice_ms, job_ids, entry_ids)
  local known = #others > 0 and find_records(ids, now, job_ids) or {}
  local names, pairs_ = {}, {}
  for i, job_id in ipairs(job_ids) do
    local other = known[job_id] and string.match(known[job_id], '^queued (.*)$')
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
