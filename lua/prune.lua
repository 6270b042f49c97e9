-- prune.lua: remove consumers that hold nothing and were not heard of for a while.
--
-- KEYS[1]  stream   T:stream   stream
-- KEYS[2]  workers  T:workers  hash, consumer -> who it is
-- ARGV[1]  group
-- ARGV[2]  least idle time in ms
-- ARGV[3]  most consumers to remove
--
-- Returns  names of the consumers that were removed
--          error WRONGTYPE  T:workers holds something else; nothing was written
--
-- Atomic because XGROUP DELCONSUMER throws away what the consumer has pending: between the look and the removal it must
-- not read. A live consumer that is removed is made again by its next delivery. Redis >= 6.2.
-- Uses: types

local stream = KEYS[1]
local workers = KEYS[2]
local group = ARGV[1]
local min_idle = tonumber(ARGV[2])
local most = tonumber(ARGV[3])

local wrong = check_hash(workers)
if wrong then return wrong end
local rows = redis.pcall('XINFO', 'CONSUMERS', stream, group)
if rows.err then
  local words = string.lower(rows.err)
  if string.find(words, 'nogroup', 1, true) or string.find(words, 'no such key', 1, true) then return {} end
  return rows
end
local names = {}
for _, row in ipairs(rows) do
  if #names >= most then break end
  local consumer = {}
  for i = 1, #row, 2 do consumer[row[i]] = row[i + 1] end
  if consumer.pending == 0 and consumer.idle >= min_idle then
    redis.call('HDEL', workers, consumer.name) -- first: what is written after it is not refused for lack of memory
    redis.call('XGROUP', 'DELCONSUMER', stream, group, consumer.name)
    names[#names + 1] = consumer.name
  end
end
return names
