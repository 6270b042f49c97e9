-- groups.lua: the consumer groups of a stream and their consumers, and where an entry stands among them.

-- Rows of XINFO as tables by name.
local function by_name(rows)
  local tables = {}
  for _, row in ipairs(rows) do
    local named = {}
    for i = 1, #row, 2 do named[row[i]] = row[i + 1] end
    tables[#tables + 1] = named
  end
  return tables
end

-- One table per group: name, pending, consumers, last-delivered-id and, from Redis 7.0, lag. None without the stream.
local function group_rows(stream)
  if redis.call('EXISTS', stream) == 0 then return {} end
  return by_name(redis.call('XINFO', 'GROUPS', stream))
end

-- One table per consumer of a group: name, pending, idle. None without stream or group; any other error comes second.
local function consumer_rows(stream, group)
  local rows = redis.pcall('XINFO', 'CONSUMERS', stream, group)
  if not rows.err then return by_name(rows) end
  local words = string.lower(rows.err)
  if string.find(words, 'nogroup', 1, true) or string.find(words, 'no such key', 1, true) then return {} end
  return nil, rows
end

local function first_entry(stream, first, last)
  return redis.call('XRANGE', stream, first, last, 'COUNT', 1)[1]
end

local function size_of(entry)
  local bytes = 0
  for _, part in ipairs(entry[2]) do bytes = bytes + #part end
  return bytes
end

local function value_of(fields, name)
  for i = 1, #fields, 2 do
    if fields[i] == name then return fields[i + 1] end
  end
end

-- The group that alone handles an entry, or nil.
local function only_group(fields) return value_of(fields, 'sq:group') end

-- The first entry behind an ID, or nil.
local function entry_behind(stream, id)
  if id == '18446744073709551615-18446744073709551615' then return nil end -- there is nothing, and the server refuses to look
  return first_entry(stream, '(' .. id, '+')
end

-- pending: some group has it in hand. ready: some group that handles it has not read it. nil: it is not in the stream, or
-- every group is done with it. The entry itself comes second.
local function entry_state(stream, id, groups)
  for _, group in ipairs(groups) do
    -- What it has not read it cannot hold; with many groups that spares most of the looks.
    if not id_after(id, group['last-delivered-id']) and redis.call('XPENDING', stream, group.name, id, id, 1)[1] then
      return 'pending'
    end
  end
  local entry = first_entry(stream, id, id)
  if not entry then return nil end
  local only = only_group(entry[2])
  local handlers = 0
  for _, group in ipairs(groups) do
    if not only or group.name == only then
      handlers = handlers + 1
      if id_after(id, group['last-delivered-id']) then return 'ready', entry end
    end
  end
  if handlers == 0 then return 'ready', entry end
  return nil, entry
end
