-- migrate_adopt_hold.lua: see that the lock is still the caller's, and renew it, where it shares no slot with what is copied.
--
-- KEYS[1]  lock  D:migration_lock  string, who may
-- ARGV[1]  owner of the lock
-- ARGV[2]  ms for which it is renewed
--
-- Returns  1
--          error LOCKLOST  nothing was written
--
-- Atomic because between the look and the renewal it could run out, and be another's. Redis >= 6.2.
-- Uses: moving

local wrong = check_lock(KEYS[1], ARGV[1], ARGV[2])
if wrong then return wrong end
return 1
