-- migrate_letters.lua: move a batch of dead letters out of the previous layout.
--
-- KEYS[1]  lock  D:migration_lock  string, who may
-- KEYS[2]  old   old:dead          stream of dead letters
-- KEYS[3]  dead  T:dead            stream of dead letters
-- ARGV[1]  owner of the lock
-- ARGV[2]  ms for which it is renewed
-- ARGV[3]  most letters
-- ARGV[4]  bytes of letters after which no further ones are moved
--
-- Returns  how many were moved; 0 at the end
--          error LOCKLOST, WRONGTYPE  nothing was written
--
-- Atomic because a letter must be in one of the layouts. All move at once, with their IDs, if this layout has none yet; else
-- each gets a new ID. The keys lie in several slots: never on a cluster. Redis >= 6.2.
-- Uses: ids, groups, types, moving

local lock = KEYS[1]
local old = KEYS[2]
local dead = KEYS[3]
local owner = ARGV[1]
local ttl = ARGV[2]
local most = tonumber(ARGV[3])
local most_bytes = tonumber(ARGV[4])

local wrong = check_stream(old) or check_stream(dead) or check_lock(lock, owner, ttl)
if wrong then return wrong end
local there = redis.call('XLEN', old)
if there == 0 then return 0 end
if redis.call('EXISTS', dead) == 0 then
  redis.call('RENAME', old, dead)
  return there
end
local moved, bytes, page = 0, 0, nil
while moved < most and bytes <= most_bytes and (not page or #page > 0) do
  page = redis.call('XRANGE', old, '-', '+', 'COUNT', math.min(10, most - moved)) -- they may be large
  for _, letter in ipairs(page) do
    redis.call('XADD', dead, '*', unpack(letter[2]))
    redis.call('XDEL', old, letter[1])
    moved, bytes = moved + 1, bytes + size_of(letter)
  end
end
return moved
