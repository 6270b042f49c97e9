-- migrate_record.lua: note what became of a migration.
--
-- KEYS[1]  lock    D:migration_lock    string, who may
-- KEYS[2]  record  D:migration:<name>  hash
-- ARGV[1]  owner of the lock
-- ARGV[2]  ms for which it is renewed
-- ARGV[3..]  fields and values
--
-- Returns  1
--          error LOCKLOST  nothing was written
--
-- Atomic because who has lost the lock must not note an end that somebody else has not reached. Redis >= 6.2.
-- Uses: moving

local wrong = check_lock(KEYS[1], ARGV[1], ARGV[2])
if wrong then return wrong end
redis.call('HSET', KEYS[2], unpack(ARGV, 3, #ARGV))
return 1
