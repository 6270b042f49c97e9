-- migrate_unlock.lua: give back the lock of migrations, or take away somebody else's.
--
-- KEYS[1]  lock  D:migration_lock  string, who may
-- ARGV[1]  its owner
--
-- Returns  1 removed, 0 it is not that owner's
--
-- Atomic because between the look and the removal it could run out, and be another's. Redis >= 6.2.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('UNLINK', KEYS[1])
