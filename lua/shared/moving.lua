-- moving.lua: what the scripts of migrations share. Whoever moves keys holds a lock; each batch looks for it, and renews it.

-- An error if the lock is not the caller's any more: then somebody else may be moving the same keys. A lock that ran out
-- because the caller stood still is found here, before the first write.
local function check_lock(lock, owner, ttl)
  if redis.call('GET', lock) ~= owner then
    return redis.error_reply('LOCKLOST the lock ran out or was taken away')
  end
  redis.call('PEXPIRE', lock, ttl)
end

-- Fields with the payload under the name that it has here. One that was named so already is still there, as was:job.
local function with_payload(fields, name)
  if name == '' or name == 'job' then return fields end
  local renamed, seen = { unpack(fields) }, false
  for i = 1, #fields, 2 do
    if fields[i] == name and not seen then renamed[i], seen = 'job', true end
  end
  for i = 1, #fields, 2 do
    if seen and fields[i] == 'job' then renamed[i] = 'was:job' end
  end
  return renamed
end
