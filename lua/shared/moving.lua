-- moving.lua: what the scripts of migrations share. Whoever moves keys holds a lock; each batch looks for it, and renews it.

-- An error if the lock is not the caller's any more: then somebody else may be moving the same keys. A lock that ran out
-- because the caller stood still is found here, before the first write.
local function check_lock(lock, owner, ttl)
  if redis.call('GET', lock) ~= owner then
    return redis.error_reply('LOCKLOST the lock ran out or was taken away')
  end
  redis.call('PEXPIRE', lock, ttl)
end
