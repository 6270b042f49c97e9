-- records.lua: what is remembered of job IDs, in hashes (slices) that take turns by server time.
--
-- A slice is written for one turn of slice_ms and kept for as many more as there are other slices; then it is unlinked
-- whole, which costs nothing per record. Its field '' holds the time when that is due, so processes that disagree on
-- slice_ms at worst keep a record longer. PEXPIREAT, one turn later, is for streams on which nothing is written any more.

local function server_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function check_slices(slices)
  for _, key in ipairs(slices) do
    local kind = redis.call('TYPE', key).ok
    if kind ~= 'hash' and kind ~= 'none' then
      return redis.error_reply('WRONGTYPE ' .. key .. ' holds a ' .. kind .. ', not a hash')
    end
  end
end

local function find_record(slices, now, field)
  for _, key in ipairs(slices) do
    local record = redis.call('HGET', key, field)
    if record and tonumber(redis.call('HGET', key, '') or 0) > now then return record end
  end
end

-- Many at once: field -> record, of those that there are.
local function find_records(slices, now, fields)
  local found = {}
  for _, key in ipairs(slices) do
    if tonumber(redis.call('HGET', key, '') or 0) > now then
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
  for _, key in ipairs(slices) do redis.call('HDEL', key, field) end
end

-- fields and values alternate in pairs; a record moves to the current slice, so each is in one place only.
local function put_records(slices, now, slice_ms, fields, pairs_)
  local turn = math.floor(now / slice_ms)
  local current = slices[turn % #slices + 1]
  local due = (turn + #slices) * slice_ms
  local old = tonumber(redis.call('HGET', current, '') or 0)
  if old <= now then
    redis.call('UNLINK', current)
    old = 0
  end
  for _, key in ipairs(slices) do
    if key ~= current then redis.call('HDEL', key, unpack(fields)) end
  end
  redis.call('HSET', current, unpack(pairs_))
  if old < due then
    redis.call('HSET', current, '', string.format('%.0f', due))
    redis.call('PEXPIREAT', current, string.format('%.0f', due + slice_ms))
  end
end
