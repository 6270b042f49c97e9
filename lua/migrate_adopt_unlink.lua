-- migrate_adopt_unlink.lua: remove a key that was copied, if nobody has changed it since it was compared.
--
-- KEYS[1]  key  old:stream  stream, sorted set or hash; of any name
-- ARGV[1]  how many entries, members or fields it had
-- ARGV[2]  last ID that it gave out, if it is a stream
--
-- Returns  1 removed, or not there; 0 it has changed
--
-- Atomic because what somebody adds between the look and the removal would be lost. Redis >= 6.2.
-- Uses: ids, groups

local key = KEYS[1]
local count = tonumber(ARGV[1])
local last = ARGV[2]

local kind = redis.call('TYPE', key).ok
if kind == 'none' then return 1 end
local size
if kind == 'stream' then
  size = redis.call('XLEN', key)
  if by_name({ redis.call('XINFO', 'STREAM', key) })[1]['last-generated-id'] ~= last then return 0 end
elseif kind == 'zset' then
  size = redis.call('ZCARD', key)
elseif kind == 'hash' then
  size = redis.call('HLEN', key)
end
if size ~= count then return 0 end
redis.call('UNLINK', key)
return 1
