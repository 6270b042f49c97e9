-- check.lua: may the user run what the scripts run? Asked once, before the first write.
--
-- KEYS[1]  probe  T:probe  never written
-- ARGV[1..]  commands, such as XADD or XINFO GROUPS
--
-- Returns  those that the user may not run on a stream's keys; empty when all is well
--
-- Scripts do not roll back: one that lacks a permission in its middle would write half, fail, and be repeated for ever.
-- Each call here finds no key to work on, so nothing is written.
--
-- Atomic because it costs nothing: one request, in which nobody else's changes matter. Redis >= 6.2.
-- Uses: rights

local probe = KEYS[1]

-- What follows the key.
local CALLS = {
  XADD = { 'NOMKSTREAM', '*', 'f', 'v' }, XACK = { 'g', '0-1' }, XDEL = { '0-1' }, XLEN = {},
  XCLAIM = { 'g', 'c', '0', '0-1', 'JUSTID' }, XAUTOCLAIM = { 'g', 'c', '0', '0', 'COUNT', '1', 'JUSTID' },
  XPENDING = { 'g', '-', '+', '1' }, XRANGE = { '-', '+', 'COUNT', '1' }, XTRIM = { 'MAXLEN', '0' },
  XREVRANGE = { '+', '-', 'COUNT', '1' }, HGETALL = {}, HSCAN = { '0' }, HLEN = {}, GET = {}, PEXPIRE = { '1' },
  ZCARD = {}, ZSCORE = { 'm' }, ZRANGE = { '0', '0' }, ZRANGEBYSCORE = { '0', '0' }, ZADD = { 'XX', '1', 'm' }, ZREM = { 'm' },
  HGET = { 'f' }, HMGET = { 'f' }, HDEL = { 'f' }, HEXISTS = { 'f' }, TYPE = {}, EXISTS = {}, UNLINK = {}, PEXPIREAT = { '1' },
  RENAME = { probe }, ZMSCORE = { 'm' }, PTTL = {}, XSETID = { '0-1' },
}
-- These have no call without effect; where the server cannot be asked, the command's category tells.
local WRITES = { HSET = { 'f', 'v' }, HSETNX = { 'f', 'v' }, HINCRBY = { 'f', '1' }, SET = { 'v', 'NX', 'PX', '1' }, SADD = { 'm' } }

local function may_not(command)
  if WRITES[command] then
    return redis.acl_check_cmd and not redis.acl_check_cmd(command, probe, unpack(WRITES[command]))
  elseif CALLS[command] then
    return is_denied(redis.pcall(command, probe, unpack(CALLS[command])))
  elseif command == 'TIME' then
    return is_denied(redis.pcall(command))
  elseif command == 'XREAD' then
    return is_denied(redis.pcall(command, 'STREAMS', probe, '0'))
  elseif command == 'XREADGROUP' then
    return is_denied(redis.pcall(command, 'GROUP', 'g', 'c', 'STREAMS', probe, '>'))
  end
  -- Two words: the key follows them, then a group and a consumer where the second word wants them.
  local words = {}
  for word in string.gmatch(command, '%S+') do words[#words + 1] = word end
  local more = ({ CONSUMERS = { 'g' }, DELCONSUMER = { 'g', 'c' }, CREATE = { 'g', '0' }, SETID = { 'g', '0' } })[words[2]] or {}
  return is_denied(redis.pcall(words[1], words[2], probe, unpack(more)))
end

local denied = {}
for i = 1, #ARGV do
  if may_not(ARGV[i]) then denied[#denied + 1] = ARGV[i] end
end
return denied
