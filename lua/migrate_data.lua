-- migrate_data.lua: give keys that effects have written the names that they have in this layout.
--
-- KEYS[1]    lock  D:migration_lock  string, who may
-- KEYS[2..]  pairs: old:data:<key>, and T:data:<key>, which must not be there
-- ARGV[1]  owner of the lock
-- ARGV[2]  ms for which it is renewed
--
-- Returns  per pair 1 moved, 0 gone, -1 both are there: nothing says which counts, so both stay
--          error LOCKLOST  nothing was written
--
-- Atomic because it costs nothing: one request for many keys. The keys lie in several slots: never on a cluster.
-- Redis >= 6.2.
-- Uses: moving

local lock = KEYS[1]
local owner = ARGV[1]
local ttl = ARGV[2]

local wrong = check_lock(lock, owner, ttl)
if wrong then return wrong end
local answers = {}
for i = 2, #KEYS, 2 do
  local answer = -1
  if redis.call('EXISTS', KEYS[i]) == 0 then answer = 0
  elseif redis.call('EXISTS', KEYS[i + 1]) == 0 then
    redis.call('RENAME', KEYS[i], KEYS[i + 1])
    answer = 1
  end
  answers[#answers + 1] = answer
end
return answers
