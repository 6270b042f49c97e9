-- copying.lua: an entry of one stream, put into another with what each group has done of it.

-- Groups that only the other stream has, in this one, too: of this one they have read nothing.
local function create_missing_groups(stream, groups)
  local there = {}
  for _, group in ipairs(group_rows(stream)) do there[group.name] = true end
  for _, group in ipairs(groups) do
    if not there[group.name] then redis.call('XGROUP', 'CREATE', stream, group.name, '0', 'MKSTREAM') end
  end
end

-- Group name -> { owner, idle ms, count } where it is pending, or true where it is unread; nil if nobody needs it any more.
-- A group that only the new stream has would have to read it.
local function standing_of(old, old_groups, groups, id, fields)
  local last, exists = {}, {}
  for _, group in ipairs(old_groups) do last[group.name] = group['last-delivered-id'] end
  for _, group in ipairs(groups) do exists[group.name] = true end
  local only = only_group(fields)
  if only and not exists[only] then only = nil end -- somebody has to say that its group does not exist
  local wanted, any = {}, #groups == 0
  for _, group in ipairs(groups) do
    local row = last[group.name] and redis.call('XPENDING', old, group.name, id, id, 1)[1]
    local is_unread = not last[group.name] or id_after(id, last[group.name])
    if (row or is_unread) and (not only or only == group.name) then
      wanted[group.name], any = row and { row[2], row[3], row[4] } or true, true
    end
  end
  return any and wanted or nil
end

-- The fields of the copy: it keeps the ID and the time that the entry had.
local function copied_fields(id, fields, group)
  local copy = { unpack(fields) }
  local function add(name, value) copy[#copy + 1], copy[#copy + 2] = name, value end
  if not value_of(fields, 'sq:id') then
    add('sq:id', id)
    add('sq:generated', '1')
  end
  if not value_of(fields, 'sq:at') then add('sq:at', string.match(id, '^%d+')) end
  if group and not only_group(fields) then add('sq:group', group) end
  return copy
end

-- One copy for all groups; or, where one is done with it, one for each that is not. The ID of the first.
local function copy_entry(stream, groups, id, fields, wanted)
  local count = 0
  for _ in pairs(wanted) do count = count + 1 end
  local targets = count == #groups and { false } or {}
  for _, group in ipairs(groups) do
    if count ~= #groups and wanted[group.name] then targets[#targets + 1] = group.name end
  end
  if #targets == 0 then targets[1] = false end
  local first
  for _, target in ipairs(targets) do
    local has_read_all = {}
    for _, row in ipairs(group_rows(stream)) do
      has_read_all[row.name] = not entry_behind(stream, row['last-delivered-id'])
    end
    local new = redis.call('XADD', stream, '*', unpack(copied_fields(id, fields, target)))
    first = first or new
    for _, group in ipairs(groups) do
      local what = wanted[group.name]
      if not has_read_all[group.name] then
        -- What lies in front would be skipped: it reads the copy, too, when it comes there.
      elseif type(what) == 'table' and (not target or target == group.name) then
        redis.call('XCLAIM', stream, group.name, what[1], 0, new, 'IDLE', what[2], 'RETRYCOUNT', what[3], 'FORCE',
          'JUSTID', 'LASTID', new)
      elseif target and target ~= group.name then
        redis.call('XGROUP', 'SETID', stream, group.name, new)
      end
    end
  end
  return first
end

-- What is remembered of the job names the copy now, wherever it is.
local function point_records(slices, job_id, old_id, new_id)
  for _, key in ipairs(slices) do
    if redis.call('HGET', key, job_id) == 'queued ' .. old_id then redis.call('HSET', key, job_id, 'queued ' .. new_id) end
  end
end
