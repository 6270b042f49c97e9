-- prune.lua: remove consumers that hold nothing and were not heard of for a while, and what dead workers said of themselves.
--
-- KEYS[1]  stream   T:stream   stream
-- KEYS[2]  workers  T:workers  hash, consumer -> <time in ms> <beat>
-- KEYS[3]  meta     T:meta     hash; field cursor:workers is where the next look at beats starts
-- ARGV[1]  group
-- ARGV[2]  least idle time in ms
-- ARGV[3]  most consumers to remove
-- ARGV[4]  most beats to look at, about
--
-- Returns  names of the consumers that were removed
--          error WRONGTYPE  a key holds something else; nothing was written
--
-- A worker beats while it waits for jobs, when some servers do not note that it reads: either sign of life keeps it. A
-- worker that died before its first job left a beat and no consumer; such beats go too, if no group knows the name.
--
-- Atomic because XGROUP DELCONSUMER throws away what the consumer has pending: between the look and the removal it must
-- not read. A live consumer that is removed is made again by its next delivery. Redis >= 6.2.
-- Uses: groups, records, types

local stream = KEYS[1]
local workers = KEYS[2]
local meta = KEYS[3]
local group = ARGV[1]
local min_idle = tonumber(ARGV[2])
local most = tonumber(ARGV[3])
local now = server_ms()

local function is_silent(beat)
  local at = beat and tonumber(string.match(beat, '^(%d+) '))
  return not at or now - at >= min_idle
end

-- Beats of silent workers that no group has as a consumer. The names are asked for only if there are such beats.
local function forget_beats()
  local from = string.match(redis.call('HGET', meta, 'cursor:workers') or '', '^%d+$') or '0'
  local cursor, beats = unpack(redis.call('HSCAN', workers, from, 'COUNT', ARGV[4]))
  if cursor ~= from then redis.pcall('HSET', meta, 'cursor:workers', cursor) end
  local silent = {}
  for i = 1, #beats, 2 do
    if is_silent(beats[i + 1]) then silent[#silent + 1] = beats[i] end
  end
  if #silent == 0 then return end
  local known = {}
  for _, row in ipairs(group_rows(stream)) do
    for _, consumer in ipairs(consumer_rows(stream, row.name) or {}) do known[consumer.name] = true end
  end
  for _, name in ipairs(silent) do
    if not known[name] then redis.call('HDEL', workers, name) end
  end
end

local wrong = check_hash(workers) or check_hash(meta)
if wrong then return wrong end
local consumers, refused = consumer_rows(stream, group)
if refused then return refused end
local names = {}
for _, consumer in ipairs(consumers) do
  if #names >= most then break end
  local is_old = consumer.pending == 0 and consumer.idle >= min_idle
  if is_old and is_silent(redis.call('HGET', workers, consumer.name)) then
    redis.call('HDEL', workers, consumer.name) -- first: what is written after it is not refused for lack of memory
    redis.call('XGROUP', 'DELCONSUMER', stream, group, consumer.name)
    names[#names + 1] = consumer.name
  end
end
forget_beats()
return names
