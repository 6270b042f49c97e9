-- records.lua: what is remembered of job IDs, in hashes (slices) that take turns by server time.
--
-- A slice is written for one turn of slice_ms and kept for as many more as there are other slices. Its field '' holds the
-- time when that is over, so processes that disagree on slice_ms at worst keep a record longer. A slice that is due is
-- unlinked by the next script that looks, a worker's maintenance (sweep.lua) at the latest: its memory is then freed in the
-- background. PEXPIREAT is only for streams that nobody uses any more. With default settings Redis stands still when it
-- expires a large hash, so it lies far enough behind for somebody to come first: the time a record is kept, and 10 s more,
-- since workers look four times a turn, but at most every 2 s and at least every 60 s.

local EXPIRE_AFTER_MS = 10000

local function server_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- When each slice is due, looked up once; 0 if there is none.
local slice_ends = {}

local function ends_of(key)
  local ends = slice_ends[key]
  if not ends then
    ends = tonumber(redis.call('HGET', key, '') or 0)
    slice_ends[key] = ends
  end
  return ends
end

-- Unlinks slices that are due, all or none: an error is returned before anything is written.
local function check_slices(slices)
  local now, due = server_ms(), {}
  for _, key in ipairs(slices) do
    local ends = redis.pcall('HGET', key, '')
    if type(ends) == 'table' then
      local kind = redis.call('TYPE', key).ok
      if kind == 'hash' then return ends end
      return redis.error_reply('WRONGTYPE ' .. key .. ' holds a ' .. kind .. ', not a hash')
    end
    slice_ends[key] = ends and tonumber(ends) or 0
    if ends and slice_ends[key] <= now then
      due[#due + 1] = key
      slice_ends[key] = 0
    end
  end
  if #due > 0 then redis.call('UNLINK', unpack(due)) end
end

local function find_record(slices, now, field)
  for _, key in ipairs(slices) do
    local record = ends_of(key) > now and redis.call('HGET', key, field)
    if record then return record end
  end
end

-- Many at once: field -> record, of those that there are.
local function find_records(slices, now, fields)
  local found = {}
  for _, key in ipairs(slices) do
    if ends_of(key) > now then
      for i, record in ipairs(redis.call('HMGET', key, unpack(fields))) do
        found[fields[i]] = found[fields[i]] or record or nil
      end
    end
  end
  return found
end

-- Another entry may hold the ID: its record is not ours to take away.
local function forget_record(slices, now, field, expected)
  if find_record(slices, now, field) ~= expected then return end
  for _, key in ipairs(slices) do
    if ends_of(key) > 0 then redis.call('HDEL', key, field) end
  end
end

-- fields and values alternate in pairs; a record moves to the current slice, so each is in one place only.
local function put_records(slices, now, slice_ms, fields, pairs_)
  local turn = math.floor(now / slice_ms)
  local current = slices[turn % #slices + 1]
  local due = (turn + #slices) * slice_ms
  local old = ends_of(current)
  if old <= now then
    redis.call('UNLINK', current)
    old = 0
  end
  for _, key in ipairs(slices) do
    if key ~= current and ends_of(key) > 0 then redis.call('HDEL', key, unpack(fields)) end
  end
  redis.call('HSET', current, unpack(pairs_))
  if old < due then
    redis.call('HSET', current, '', string.format('%.0f', due))
    slice_ends[current] = due
    local expires = due + (#slices - 1) * slice_ms + EXPIRE_AFTER_MS
    redis.call('PEXPIREAT', current, string.format('%.0f', expires))
  end
end
