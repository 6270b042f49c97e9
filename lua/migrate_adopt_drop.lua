-- migrate_adopt_drop.lua: remove the keys that a stream was adopted from, once nothing is left in them.
--
-- KEYS[1]    lock  D:migration_lock  string, who may
-- KEYS[2..]  pairs of any names: old:stream, old:dead
-- ARGV[1]  owner of the lock
-- ARGV[2]  ms for which it is renewed
--
-- Returns  { 1, number }  removed so many keys
--          { 0, key }     that key still holds something; nothing was removed
--          error LOCKLOST  nothing was written
--
-- Atomic because what somebody adds between the look and the removal would be lost. The keys lie in several slots: never on a
-- cluster. Redis >= 6.2.
-- Uses: ids, groups, moving

local lock = KEYS[1]
local owner = ARGV[1]
local ttl = ARGV[2]

local wrong = check_lock(lock, owner, ttl)
if wrong then return wrong end
local olds = {}
for i = 2, #KEYS do
  local key = KEYS[i]
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'none' and (kind ~= 'stream' or redis.call('XLEN', key) > 0) then return { 0, key } end
  for _, group in ipairs(kind == 'stream' and group_rows(key) or {}) do
    if group.pending > 0 then return { 0, key } end
  end
  olds[#olds + 1] = key
end
return { 1, redis.call('UNLINK', unpack(olds)) }
