-- check.lua: may the user run what the scripts run? Asked once, before the first job is touched.
--
-- KEYS[1]  probe  T:probe  never written
--
-- Returns  the commands the user may not run on a stream's keys, in words of the server; empty when all is well
--
-- Scripts do not roll back: one that lacks a permission in its middle would write half, fail, and be repeated for ever.
-- Each call here finds no key to work on, so nothing is written.
--
-- Atomic because it costs nothing: one request, in which nobody else's changes matter. Redis >= 6.2.

local probe = KEYS[1]

local CALLS = {
  { 'XADD', 'NOMKSTREAM', '*', 'f', 'v' }, { 'XACK', 'g', '0-1' }, { 'XDEL', '0-1' },
  { 'XCLAIM', 'g', 'c', '0', '0-1', 'JUSTID' }, { 'XAUTOCLAIM', 'g', 'c', '0', '0', 'COUNT', '1', 'JUSTID' },
  { 'XPENDING', 'g', '-', '+', '1' }, { 'XRANGE', '-', '+', 'COUNT', '1' }, { 'HGET', 'f' }, { 'HDEL', 'f' },
  { 'TYPE' }, { 'EXISTS' }, { 'UNLINK' }, { 'PEXPIREAT', '1' }, { 'HEXISTS', 'f' },
}
-- These have no call without effect; their category or a missing argument tells, depending on the server.
local WRITES = { { 'HSET', 'f', 'v' }, { 'HINCRBY', 'f', '1' } }

local denied = {}
local function note(command, reply)
  if type(reply) == 'table' and reply.err then
    local words = string.lower(reply.err)
    if string.find(words, 'noperm', 1, true) or string.find(words, 'acl failure', 1, true)
      or string.find(words, "can't run this command", 1, true) or string.find(words, "can't access at least", 1, true) then
      denied[#denied + 1] = command
    end
  end
end

for _, call in ipairs(CALLS) do note(call[1], redis.pcall(call[1], probe, unpack(call, 2))) end
note('XINFO GROUPS', redis.pcall('XINFO', 'GROUPS', probe))
note('TIME', redis.pcall('TIME'))
for _, call in ipairs(WRITES) do
  if redis.acl_check_cmd and not redis.acl_check_cmd(call[1], probe, unpack(call, 2)) then
    denied[#denied + 1] = call[1]
  end
end
return denied
