-- migrate_meta.lua: move a stream's settings and counters out of the previous layout.
--
-- KEYS[1]  lock  D:migration_lock  string, who may
-- KEYS[2]  old   old:meta          hash
-- KEYS[3]  meta  T:meta            hash
-- ARGV[1]  owner of the lock
-- ARGV[2]  ms for which it is renewed
--
-- Returns  how many fields were moved
--          error LOCKLOST, WRONGTYPE  nothing was written
--
-- Atomic because counters are added up: twice would be wrong. Settings that this layout has stay as they are; cursors of
-- maintenance do not move, since they are only where to go on looking. The keys lie in several slots: never on a cluster.
-- Redis >= 6.2.
-- Uses: types, moving

local lock = KEYS[1]
local old = KEYS[2]
local meta = KEYS[3]
local owner = ARGV[1]
local ttl = ARGV[2]

local wrong = check_hash(old) or check_hash(meta) or check_lock(lock, owner, ttl)
if wrong then return wrong end
local COUNTERS = { done = true, passed = true, retried = true, dead = true, redriven = true, orphans = true, kept = true }

local rows = redis.call('HGETALL', old)
local moved = 0
for i = 1, #rows, 2 do
  local name, value = rows[i], rows[i + 1]
  local kind = string.match(name, '^[^:]*')
  if kind ~= 'cursor' then
    local is_counted = COUNTERS[kind] and string.find(value, '^%-?%d+$') and #value < 16
    if is_counted and type(redis.pcall('HINCRBY', meta, name, value)) == 'number' then
      moved = moved + 1
    else
      moved = moved + redis.call('HSETNX', meta, name, value)
    end
  end
end
redis.call('UNLINK', old)
return moved
